// The states that layers keep of sequences beside the KV cache (Config::state): slots of a fixed size, of which each
// running sequence has one; others hold copies, from which later sequences with the same beginning go on.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/memory.h"
#include "model/partition.h"

namespace forearm {

// A layer's state in a slot: StateShape's tail, its heads, and what is behind these.
struct LayerState {
  float *tail, *heads, *more;
};

class States {
 public:
  explicit States(const Config& config) {
    for (size_t i = 0; i < config.layers.size(); ++i) {
      shape_.push_back(config.state(i));
      offset_.push_back(slot_.take(4 * shape_[i].floats()));
    }
  }

  // Allocates the slots and drops the old ones. Throws OutOfMemory.
  void allocate(int64_t slots) {
    region_ = Region();  // frees the old region before the new one is allocated
    slots_ = 0;
    region_ = Region("the states of " + std::to_string(slots) + " sequences", slots * bytes_per_slot());
    slots_ = slots;
  }

  int64_t slots() const { return slots_; }
  int64_t bytes_per_slot() const { return slot_.bytes(); }
  int64_t bytes() const { return region_.bytes(); }
  // Copies a share of a slot's bytes.
  void copy(int64_t from, int64_t to, Range bytes) const {
    std::memcpy(region_.data() + to * bytes_per_slot() + bytes.begin,
                region_.data() + from * bytes_per_slot() + bytes.begin, static_cast<size_t>(bytes.size()));
  }
  // A layer's state in a slot. What it holds before a sequence's first token is of the slot's last sequence.
  LayerState at(size_t layer, int64_t slot) const {
    auto* state = reinterpret_cast<float*>(region_.data() + slot * bytes_per_slot() + offset_[layer]);
    const StateShape& shape = shape_[layer];
    return {state, state + shape.tail_floats(), state + shape.floats() - shape.more};
  }
  // Zeroes these channels of the tail and these heads: the state before a sequence's first token.
  void clear(size_t layer, int64_t slot, Range channels, Range heads) const {
    const StateShape& shape = shape_[layer];
    const LayerState state = at(layer, slot);
    for (int64_t i = 0; i < shape.tail_rows; ++i)
      std::fill_n(state.tail + i * shape.channels + channels.begin, channels.size(), 0.0f);
    std::fill_n(state.heads + heads.begin * shape.head_floats, heads.size() * shape.head_floats, 0.0f);
  }

 private:
  Pieces slot_;
  std::vector<StateShape> shape_;  // by layer
  std::vector<int64_t> offset_;    // by layer, in a slot
  int64_t slots_ = 0;
  Region region_;
};

}  // namespace forearm
