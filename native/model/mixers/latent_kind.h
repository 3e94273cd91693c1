// Latent attention, as a part of the config (config.h).
#pragma once
#include <cstdint>
#include <optional>

#include "model/mixers/indexer_kinds.h"

namespace forearm {

// Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434). The cache has one vector of rank + rotary numbers
// for each token: the latent, from which every head's keys and values follow, and a rotated key that all heads share.
// So Config::kv_heads is 1, and a head has rank + rotary numbers.
struct LatentKind {
  std::optional<int> rope;  // index into Config::ropes; none: nothing is rotated
  int64_t rank;             // of the latent
  int64_t plain, rotary,
      value;                  // of each head: query and key numbers that are not rotated, rotated ones, value numbers
  int64_t q_rank = 0;         // of the latent of queries; 0: queries are projected at once
  float query_growth = 0.0f;  // AttentionKind's
  int64_t query_positions = 0;
  std::optional<IndexerKind> indexer = std::nullopt;  // none: queries see all keys
  bool sinks = false;                                 // AttentionKind's
  int64_t heads = 0;                                  // 0: Config's
  int64_t window = 0;                                 // AttentionKind's
  float norm_eps = 1e-6f;                             // of the norms of latents
  bool key_norm = false;                              // the rotated key is normalized before its rotation
  bool joint_gates = false;  // queries and gates of values are made of the latent of queries twice: normed, as it is

  int64_t query_dim() const { return plain + rotary; }
  int64_t query_columns() const { return joint_gates ? 2 * q_rank : q_rank; }  // that queries are made of
  int64_t key_dim() const { return rank + rotary; }
};

}  // namespace forearm
