// Entries of the cache that stand for several tokens each (DeepSeek V4's compressed attention): sums of numbers that
// tokens give, weighted by a softmax of gates over these tokens, for each number by itself.
//
// The softmax is computed online (Milakov and Gimelshein 2018, arXiv:1805.02867), token by token in their order, so its
// running maximum, sum and weighted sum are all that is kept of a window, as a state of the sequence (StateShape's
// tail), and an entry is the same bits however its tokens are cut into steps. Where windows overlap, a token adds to
// two series: the first one makes the entry of the next window, the second one that of its own.
#pragma once
#include "model/cache/kv_cache.h"
#include "model/cache/states.h"
#include "model/step/step.h"

namespace forearm {

class Compressor {
 public:
  // All arguments must outlive this.
  Compressor(const Weights& weights, const KvBlocks& kv, const States& states, Step& step)
      : weights_(weights), kv_(kv), states_(states), step_(step) {}

  // Moves the states of the member's numbers by the step's tokens, whose numbers and gates are in Scratch::index_in.
  // The sum of a window's end replaces the numbers of the token that ends it.
  void move_states(const StepWalk& w, size_t layer) const;
  // Normalizes, rotates and stores the entries that end at the member's rows; after a barrier.
  void store(const StepWalk& w, size_t layer) const;

 private:
  // The numbers of entries, or of the keys that entries are chosen by: their columns in Scratch::index_in, and where
  // their channels begin in the state.
  struct Numbers {
    bool index;
    int64_t dim, at, gates, channel;
  };
  const CompressedKind& kind(size_t layer) const { return *step_.config.layers[layer].mixer_as<CompressedKind>(); }
  template <class Visit>
  void each(size_t layer, const Visit& visit) const;
  void move(size_t layer, const Numbers& numbers, Range channels, int64_t sequence, float* room) const;
  void add(const float* numbers, const float* gates, const float* bias, int64_t count, float* state, int64_t stride,
           float* room) const;
  void store_entry(size_t layer, const Numbers& numbers, int64_t row) const;

  const Weights& weights_;
  const KvBlocks& kv_;
  const States& states_;
  Step& step_;
};

}  // namespace forearm
