// Writes packed weights to a file and reads them back: the region unchanged, and vectors and orders of columns.
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "model/weights/packed_file.h"
#include "model/weights/weights.h"

namespace forearm {
namespace {

// Must be increased whenever the output of a packer or of rounding changes.
constexpr int kPacking = 1;

}  // namespace

// A line for each matrix and vector; files with the same lines have the same layout of bytes.
std::string Weights::identity(const std::string& key) const {
  std::ostringstream text;
  text << "packing " << kPacking << "\n" << key << "\n";
  for (const Matrix* m : shaped_) {
    const Format& f = m->format;
    text << m->name << ' ' << m->experts << ' ' << m->n << ' ' << m->k << ' ' << static_cast<int>(f.dtype) << ' '
         << f.group << ' ' << static_cast<int>(f.scale_dtype) << ' ' << static_cast<int>(f.zero) << ' ' << f.ordered
         << ' ' << f.turned << ' ' << m->layout().quantum << ' ' << m->layout().bias << "\n";
  }
  for (const auto& [name, part] : vectors_) text << name << ' ' << part.place.all_rows() << ' ' << part.plus << "\n";
  return text.str();
}

// Calls visit(data, bytes) for everything outside the region. A bias with several parts comes several times.
template <class Visit>
void Weights::each_small(const Visit& visit) {
  for (auto& [name, part] : vectors_) visit(part.values->data(), part.values->size() * sizeof(float));
  for (Matrix* matrix : shaped_) {
    if (!matrix->format.ordered) continue;
    visit(matrix->order.data(), matrix->order.size() * sizeof(int32_t));
  }
}

void Weights::save(const std::string& path, const std::string& key) {
  finish();
  PackedFile file{identity(key), {}};
  each_small([&file](const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    file.small.insert(file.small.end(), from, from + bytes);
  });
  write_packed_file(path, file, region_);
}

void Weights::map(const std::string& path, const std::string& key, Pool& pool) {
  PackedFile file{identity(key), {}};
  Region region = map_packed_file(path, file, region_.bytes(), pool);
  for (Matrix* matrix : shaped_)
    if (matrix->format.ordered) matrix->order.resize(static_cast<size_t>(matrix->experts * matrix->k));
  size_t at = 0;  // sizes agree, because the identity does
  each_small([&](void* to, size_t bytes) {
    std::memcpy(to, file.small.data() + at, bytes);
    at += bytes;
  });
  if (ranks_.count() > 1)
    copy_to_ranks(region, pool);
  else
    region_ = std::move(region);
  for (Matrix* matrix : shaped_) matrix->settle(region_.data());
  for (auto& [name, part] : matrices_) part.loaded.assign(part.loaded.size(), true);
  for (auto& [name, part] : vectors_) std::fill(part.loaded.begin(), part.loaded.end(), true);
  mapped_ = true;
}

// Copies a file into the allocated region, whose pages have not been touched yet.
void Weights::copy_to_ranks(const Region& file, Pool& pool) {
  pool.run([&](int member) {
    for (const Matrix* matrix : shaped_) matrix->touch(member);
    pool.barrier(member);  // the last page of a member also holds columns of the next one
    const Range own = share(file.bytes(), kHugePage, member, pool.threads());
    std::memcpy(region_.data() + own.begin, file.data() + own.begin, static_cast<size_t>(own.size()));
  });
}

}  // namespace forearm
