#include "model/mixers/side_block.h"

#include <algorithm>
#include <string>

#include "model/step/multiply.h"
#include "model/step/multiply_heads.h"

namespace forearm {

SideBlock::SideBlock(const Weights& weights, Attention& attention, FeedForward& feed_forward, Step& step)
    : weights_(weights), attention_(attention), feed_forward_(feed_forward), step_(step) {
  const Config& c = step.config;
  for (size_t i = 0; i < c.layers.size(); ++i)
    last_.push_back(c.layers[i].aside ? &weights.linear("layers." + std::to_string(i) + ".side", c.hidden, c.hidden)
                                      : nullptr);
}

void SideBlock::begin(const StepWalk& w) {
  const Range own = step_.mine(w, w.rows);
  const int64_t hidden = step_.config.hidden;
  for (int64_t r = own.begin; r < own.end; ++r)
    std::copy_n(step_.residual_row(r), hidden, floats_at(step_.scratch.side, r, hidden));
}

void SideBlock::apply(StepWalk& w, size_t layer) {
  const Scratch& scratch = step_.scratch;
  const LayerNorms& norms = weights_.norms(layer);
  const Range own = step_.mine(w, w.rows);
  for (int64_t r = own.begin; r < own.end; ++r)
    std::copy_n(step_.residual_row(r), step_.config.hidden, floats_at(scratch.side, r, 0));
  step_.barrier(w);
  const Operand both = step_.normed_rows(w, scratch.side, norms.input, attention_.in(layer).matrix);
  step_.multiply(w, attention_.out(layer), attention_.attend_to(w, layer, both), scratch.projected);
  step_.barrier(w);
  const Operand rows = step_.normed_rows(w, scratch.projected, norms.pre_mlp, feed_forward_.up(layer).matrix);
  step_.multiply(w, feed_forward_.down(layer), feed_forward_.activate(w, layer, rows), scratch.projected);
  step_.barrier(w);
  const Linear& last = *last_[layer];
  step_.project_back(w, step_.rows_of(w, scratch.stream, scratch.projected, last.matrix), last, false);
  step_.barrier(w);
}

void SideBlock::restore(const StepWalk& w) {
  const Range own = step_.mine(w, w.rows);
  for (int64_t r = own.begin; r < own.end; ++r)
    std::copy_n(floats_at(step_.scratch.side, r, 0), step_.config.hidden, step_.residual_row(r));
}

}  // namespace forearm
