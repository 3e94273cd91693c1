// A file of packed weights: written once, mapped read-only by later starts, checked by a hash of every byte.
//
//   Head              sizes, and a hash of the next three
//   identity          text that identifies the weights, formats and tier; a file with another text is refused
//   small             vectors and orders of columns, which are copied
//   chunk hashes      uint64, one for each kChunk bytes of the region
//   region            at a multiple of 2 MB
//
// Numbers have this machine's byte order: a file is for the machine that wrote it, or a similar one.
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

// Writes a temporary file next to `path` and renames it, so that `path` is always a complete file, old or new.
// It is written by a thread that runs only on idle cores, so that steps go on meanwhile.
// Throws std::runtime_error naming the file and the system's reason.
void write_packed_file(const std::string& path, const PackedFile& file, const Region& region);

// Maps the region of a file with this identity, `bytes` long, and sets file.small. The team hashes it, at the speed of
// reading memory. Throws std::invalid_argument with the reason why the file can't be used: it is missing, damaged,
// or of another model or build.
Region map_packed_file(const std::string& path, PackedFile& file, int64_t bytes, Pool& pool);

}  // namespace forearm
