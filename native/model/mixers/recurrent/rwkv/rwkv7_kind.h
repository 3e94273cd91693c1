// The sizes of RWKV-7's time mixing: Rwkv7 of app/forearm/model/families/recurrences.py.
#pragma once
#include <cstdint>

namespace forearm {

struct Rwkv7Kind {
  int64_t heads, head_dim;
  int64_t decay_rank, rate_rank, value_rank, gate_rank;  // of pairs of matrices; value_rank 0: the layer's values are
                                                         // those that later layers mix with their own
  float norm_eps;                                        // of the norm of each head's results

  int64_t inner() const { return heads * head_dim; }
};

}  // namespace forearm
