// Memory of the executor: one mapping each for weights, KV cache and scratch, on huge pages if the kernel has them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace forearm {

constexpr int64_t kHugePage = 2 << 20;

// Thrown if memory for something does not fit this machine; the text has the sizes.
struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A size as "1.50 GiB", for messages.
std::string gib(int64_t bytes);

// Bytes of memory of this machine.
int64_t machine_bytes();

// Zeroed memory, aligned to 2 MB. A page is allocated when it is first touched, on the node of the core that touches
// it.
class Region {
 public:
  Region() = default;
  // `purpose` names the memory in messages. Throws OutOfMemory if the machine has less memory, or none is free.
  Region(const std::string& purpose, int64_t bytes);
  // Maps bytes [at, at + bytes) of an open file, read-only; `at` is a multiple of the page size. Its pages are the
  // page cache of the file, which other processes share. Throws OutOfMemory if the system can't map it.
  static Region of_file(int descriptor, int64_t at, int64_t bytes);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // Forces small pages instead of the huge page with this byte: a page lies on a single node, and here memory of two
  // nodes meets.
  void split_page(char* at) const;
  // Keeps the 2 MB around `at` in small pages until merge_page: the system clears a page when it is first touched, a
  // huge one for the few kB that the first request needs of each layer's cache.
  void begin_small(char* at);
  // Makes a huge page where begin_small kept small ones, at one place a call: 2 MB are copied. Returns whether a place
  // was left.
  bool merge_page();

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
  void* mapping_ = nullptr;
  int64_t mapped_ = 0;
  std::vector<char*> small_;
};

// Hands out aligned pieces of a region before it is made: all sizes are taken first, then the region is allocated.
class Pieces {
 public:
  // Returns the offset of a new piece, on a 128-byte boundary: no two pieces share a cache line or a pair of lines.
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
