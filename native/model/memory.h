// Memory of the executor: one mapping for each of weights, KV cache and scratch, on huge pages where the kernel has
// them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace forearm {

constexpr int64_t kHugePage = 2 << 20;

// Something does not fit this machine; the text has the sizes.
struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// "1.50 GiB", for messages.
std::string gib(int64_t bytes);

// Memory of this machine.
int64_t machine_bytes();

// Zeroed memory, 2 MB aligned. A page takes room once it is touched, next to the core that touches it first.
class Region {
 public:
  Region() = default;
  // `purpose` names it in the message.
  // Throws OutOfMemory if the machine has less memory than that, or none to give.
  Region(const std::string& purpose, int64_t bytes);
  // Maps bytes [at, at + bytes) of an open file, read-only; `at` is a multiple of the page size. Its pages are the
  // system's cache of the file, which other processes share.
  // Throws OutOfMemory if the system has no room for the mapping.
  static Region of_file(int descriptor, int64_t at, int64_t bytes);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // Keeps the huge page with this byte to small ones: a page lies on one node whole, and here those of two meet.
  void split_page(char* at) const;

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
  void* mapping_ = nullptr;
  int64_t mapped_ = 0;
};

// Hands out aligned pieces of a region that is still to be made: first all sizes are taken, then the region.
class Pieces {
 public:
  // Offset of `bytes` bytes, on a 128-byte boundary: no two pieces share a line or a pair of lines.
  int64_t take(int64_t bytes) {
    const int64_t offset = bytes_;
    bytes_ += (bytes + 127) / 128 * 128;
    return offset;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

}  // namespace forearm
