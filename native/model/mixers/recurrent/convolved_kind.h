// The convolutions of queries and keys, as a part of the config (config.h).
#pragma once
#include <cstdint>

namespace forearm {

// Compressed convolutional attention (ConvolvedHeads): ConvolvedHeads of app/forearm/model/families/recurrences.py.
struct ConvolvedKind {
  int64_t taps;       // of each channel: of a row and the taps - 1 rows before it
  int64_t head_taps;  // of each head, over the rows that the first convolution makes

  int64_t late() const { return head_taps - 1; }  // of these rows a sequence keeps so many
};

}  // namespace forearm
