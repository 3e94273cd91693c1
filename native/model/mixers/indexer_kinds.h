// What chooses the keys that a token attends to, as a part of the config (config.h).
#pragma once
#include <cstdint>

namespace forearm {

// Small heads that choose blocks of keys: BlockIndexer of app/forearm/model/families/indexed/indexers.py.
struct BlockIndexerKind {
  int64_t head_dim, block, chosen, local;
  int64_t heads = 0;  // that choose for all kv heads, by the mean key of complete blocks; 0: one chooses for each

  // Keys that a token has before some are chosen: chosen blocks, and what is less than one more.
  int64_t most() const { return heads ? (chosen + 1) * block - 1 : chosen * block; }
};

// The indexer of sparse attention: Indexer of app/forearm/model/families/indexed/indexers.py.
struct IndexerKind {
  int64_t heads, head_dim;
  int64_t chosen;       // keys that a query attends to
  bool interleaved;     // its rope, whose angles are the layer's
  bool shared = false;  // the layer attends to the keys that an earlier layer has chosen
  bool last = false;    // the last numbers of a head are rotated, not the first
  float key_eps = 1e-6f;
};

}  // namespace forearm
