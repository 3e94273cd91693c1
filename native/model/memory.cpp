#include "model/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#ifndef MADV_HUGEPAGE  // Linux': macOS chooses the size of pages itself
#define MADV_HUGEPAGE MADV_NORMAL
#define MADV_NOHUGEPAGE MADV_NORMAL
#elif !defined MADV_COLLAPSE
#define MADV_COLLAPSE 25  // since Linux 6.1
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE MADV_NORMAL
#endif

namespace forearm {
std::string gib(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

int64_t machine_bytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

Region::Region(const std::string& purpose, int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const std::string need = purpose + " needs " + gib(bytes);
  if (bytes > machine_bytes()) throw OutOfMemory(need + "; this machine has " + gib(machine_bytes()));
  mapped_ = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
  void* mapping =
      mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw OutOfMemory(need + "; the system gives no more (ulimit -v, overcommit)");
  mapping_ = mapping;
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  data_ = reinterpret_cast<char*>((address + kHugePage - 1) / kHugePage * kHugePage);
  madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // errors are ignored: small pages work too
}

Region Region::of_file(int descriptor, int64_t at, int64_t bytes) {
  void* mapping = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_PRIVATE, descriptor, at);
  if (mapping == MAP_FAILED) throw OutOfMemory("a mapping of " + gib(bytes) + " can't be had (ulimit -v)");
  madvise(mapping, static_cast<size_t>(bytes), MADV_WILLNEED);  // reads the whole file ahead
  Region region;
  region.mapping_ = mapping;
  region.data_ = static_cast<char*>(mapping);
  region.bytes_ = region.mapped_ = bytes;
  return region;
}

void Region::split_page(char* at) const {
  const int64_t offset = (at - data_) / kHugePage * kHugePage;
  if (data_ + offset != at) madvise(data_ + offset, kHugePage, MADV_NOHUGEPAGE);
}

void Region::begin_small(char* at) {
  char* page = data_ + (at - data_) / kHugePage * kHugePage;
  if (!small_.empty() && small_.back() == page) return;
  madvise(page, kHugePage, MADV_NOHUGEPAGE);
  (void)*static_cast<volatile char*>(page);  // a table of small pages, all of them the system's page of zeros
  madvise(page, kHugePage, MADV_HUGEPAGE);   // for merge_page, and the system's own merging where that is unknown
  small_.push_back(page);
}

bool Region::merge_page() {
  if (small_.empty()) return false;
  madvise(small_.back(), kHugePage, MADV_COLLAPSE);
  small_.pop_back();
  return true;
}

Region::~Region() {
  if (mapping_) munmap(mapping_, static_cast<size_t>(mapped_));
}

Region::Region(Region&& other) noexcept { *this = std::move(other); }

Region& Region::operator=(Region&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(small_, other.small_);
  return *this;
}

}  // namespace forearm
