// A file of packed weights: written once, mapped read-only by later starts, checked by a hash of every byte.
//
//   Head              sizes, and a hash of the next three
//   identity          text: what the file holds and for what; another text is another file
//   small             bytes that are copied
//   chunk hashes      uint64, one for each kChunk bytes of the region
//   region            at a multiple of 2 MB
//
// Numbers stand as this machine has them: a file is for the machine that wrote it, or one like it.
#pragma once
#include <string>
#include <vector>

#include "model/memory.h"
#include "threads/pool.h"

namespace forearm {

struct PackedFile {
  std::string identity;
  std::vector<char> small;
};

// Writes a temporary file beside `path` and renames it: whoever maps `path` sees the old one or the new one, whole.
// Throws std::runtime_error naming the file and what the system says.
void write_packed_file(const std::string& path, const PackedFile& file, const Region& region, Pool& pool);

// Maps the region of a file with this identity, `bytes` long, and sets file.small. The team hashes it, at the speed of
// reading memory. Throws std::invalid_argument saying why the file is of no use: it is not there, it is of another
// model or build, it is damaged.
Region map_packed_file(const std::string& path, PackedFile& file, int64_t bytes, Pool& pool);

}  // namespace forearm
