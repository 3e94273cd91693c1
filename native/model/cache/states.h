// The states that layers keep of sequences beside the KV cache (Config::state_floats): slots of a fixed size, of which
// each running sequence has one.
#pragma once
#include <string>
#include <vector>

#include "model/config.h"
#include "model/memory.h"

namespace forearm {

class States {
 public:
  explicit States(const Config& config) {
    for (size_t i = 0; i < config.layers.size(); ++i) offset_.push_back(slot_.take(4 * config.state_floats(i)));
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
  // A layer's state in a slot. What it holds before a sequence's first token is of the slot's last sequence.
  float* at(size_t layer, int64_t slot) const {
    return reinterpret_cast<float*>(region_.data() + slot * bytes_per_slot() + offset_[layer]);
  }

 private:
  Pieces slot_;
  std::vector<int64_t> offset_;  // by layer, in a slot
  int64_t slots_ = 0;
  Region region_;
};

}  // namespace forearm
