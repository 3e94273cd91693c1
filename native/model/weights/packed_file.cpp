#include "model/weights/packed_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "threads/idle.h"

namespace forearm {
namespace {

constexpr char kMagic[8] = {'f', 'o', 'r', 'e', 'a', 'r', 'm', '1'};
constexpr uint64_t kRegionUnit = 2 << 20;  // the region starts at a huge page's boundary
constexpr uint64_t kChunk = 4 << 20;
constexpr uint64_t kMostSmall = uint64_t{1} << 30;  // a larger size means a damaged file

struct Head {
  char magic[8];
  uint64_t identity_bytes, small_bytes, region_bytes, hash;
  uint64_t chunks() const { return (region_bytes + kChunk - 1) / kChunk; }
  uint64_t body_bytes() const { return identity_bytes + small_bytes + chunks() * sizeof(uint64_t); }
  uint64_t region_at() const { return (sizeof(Head) + body_bytes() + kRegionUnit - 1) / kRegionUnit * kRegionUnit; }
};

// A 64-bit hash of a range, in eight sums that the compiler keeps in vectors: the accumulation of XXH3 (Y. Collet,
// xxHash). Every bit counts, because each word is also added to its neighbour's sum unchanged. It detects accidents,
// not attacks.
uint64_t hash_of(const char* data, uint64_t bytes) {
  constexpr uint64_t kOdd = 0x9e3779b185ebca87u;
  uint64_t sums[8], words[8];
  for (uint64_t i = 0; i < 8; ++i) sums[i] = (i + 1) * kOdd;
  for (uint64_t at = 0; at < bytes; at += 64) {
    if (bytes - at < 64) std::memset(words, 0, sizeof words);
    std::memcpy(words, data + at, std::min<uint64_t>(64, bytes - at));
    for (uint64_t i = 0; i < 8; ++i) {
      const uint64_t mixed = words[i] ^ ((i + 3) * kOdd);
      sums[i ^ 1] += words[i];
      sums[i] += (mixed & 0xffffffffu) * (mixed >> 32);
    }
    if (at % 1024 == 960)
      for (uint64_t i = 0; i < 8; ++i) sums[i] = (sums[i] ^ sums[i] >> 47 ^ (i + 5) * kOdd) * 0x9e3779b1u;
  }
  uint64_t hash = bytes * kOdd;
  for (const uint64_t sum : sums) hash = ((hash ^ sum) * kOdd) ^ ((hash ^ sum) >> 29);
  return hash;
}

// The hashes of a region's chunks; `run` calls its argument on one thread or more.
template <class Run>
std::vector<uint64_t> hash_chunks(const char* region, uint64_t bytes, const Run& run) {
  std::vector<uint64_t> hashes((bytes + kChunk - 1) / kChunk);
  std::atomic<uint64_t> next{0};
  run([&](int) {
    for (uint64_t i = next++; i < hashes.size(); i = next++)
      hashes[i] = hash_of(region + i * kChunk, std::min(kChunk, bytes - i * kChunk));
  });
  return hashes;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// Throws an error with the system's reason from `errno`.
[[noreturn]] void fail(const std::string& what, const std::string& path) {
  throw std::runtime_error(what + " " + path + ": " + std::strerror(errno));
}

void write_all(int fd, const void* data, uint64_t bytes, uint64_t at, const std::string& path) {
  const char* from = static_cast<const char*>(data);
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t count = pwrite(fd, from + done, bytes - done, static_cast<off_t>(at + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("can't write", path);
    done += static_cast<uint64_t>(count);
  }
}

bool read_all(int fd, void* data, uint64_t bytes, uint64_t at) {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t count = pread(fd, static_cast<char*>(data) + done, bytes - done, static_cast<off_t>(at + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<uint64_t>(count);
  }
  return true;
}

void append(std::vector<char>& body, const void* data, uint64_t bytes) {
  const char* from = static_cast<const char*>(data);
  body.insert(body.end(), from, from + bytes);
}

// The head, and the parts between it and the region.
std::vector<char> head_and_body(const PackedFile& file, const Region& region, const std::vector<uint64_t>& hashes) {
  Head head{{}, file.identity.size(), file.small.size(), static_cast<uint64_t>(region.bytes()), 0};
  std::memcpy(head.magic, kMagic, sizeof kMagic);
  std::vector<char> body;
  append(body, file.identity.data(), file.identity.size());
  append(body, file.small.data(), file.small.size());
  append(body, hashes.data(), hashes.size() * sizeof(uint64_t));
  head.hash = hash_of(body.data(), body.size());
  std::vector<char> bytes;
  append(bytes, &head, sizeof head);
  append(bytes, body.data(), body.size());
  return bytes;
}

void write_all_of(const std::string& path, const PackedFile& file, const Region& region) {
  const std::vector<uint64_t> hashes =
      hash_chunks(region.data(), static_cast<uint64_t>(region.bytes()), [](const auto& work) { work(0); });
  const std::vector<char> front = head_and_body(file, region, hashes);
  std::string temporary = path + ".XXXXXX";
  const Descriptor fd(mkstemp(temporary.data()));
  if (fd.get() < 0) fail("can't write", temporary);
  try {
    write_all(fd.get(), front.data(), front.size(), 0, temporary);
    const Head* head = reinterpret_cast<const Head*>(front.data());
    write_all(fd.get(), region.data(), head->region_bytes, head->region_at(), temporary);
    if (rename(temporary.c_str(), path.c_str()) != 0) fail("can't rename to", path);
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

}  // namespace

void write_packed_file(const std::string& path, const PackedFile& file, const Region& region) {
  run_idle([&] { write_all_of(path, file, region); });
}

Region map_packed_file(const std::string& path, PackedFile& file, int64_t bytes, Pool& pool) {
  const auto must = [&path](bool holds, const std::string& why) {
    if (!holds) throw std::invalid_argument(path + " " + why);
  };
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  must(fd.get() >= 0, "can't be opened: " + std::string(std::strerror(errno)));
  Head head{};
  must(read_all(fd.get(), &head, sizeof head, 0) && std::memcmp(head.magic, kMagic, sizeof kMagic) == 0,
       "is not a file of packed weights");
  must(head.identity_bytes == file.identity.size() && head.region_bytes == static_cast<uint64_t>(bytes) &&
           head.small_bytes <= kMostSmall,
       "holds other weights");
  std::vector<char> body(head.body_bytes());
  must(read_all(fd.get(), body.data(), body.size(), sizeof head), "is cut off");
  must(std::memcmp(body.data(), file.identity.data(), head.identity_bytes) == 0, "holds other weights");
  must(hash_of(body.data(), body.size()) == head.hash, "is damaged");
  struct stat status{};
  must(fstat(fd.get(), &status) == 0 && static_cast<uint64_t>(status.st_size) == head.region_at() + head.region_bytes,
       "is cut off");
  Region region = Region::of_file(fd.get(), static_cast<int64_t>(head.region_at()), bytes);
  const std::vector<uint64_t> found =
      hash_chunks(region.data(), head.region_bytes, [&pool](const auto& work) { pool.run(work); });
  const char* small = body.data() + head.identity_bytes;
  must(std::memcmp(found.data(), small + head.small_bytes, found.size() * sizeof(uint64_t)) == 0, "is damaged");
  file.small.assign(small, small + head.small_bytes);
  return region;
}

}  // namespace forearm
