#include "model/mixers/recurrent/selective_scan.h"

#include <string>

#include "model/mixers/recurrent/convolve_channels.h"
#include "model/step/multiply.h"

namespace forearm {

SelectiveScan::SelectiveScan(const Weights& weights, const States& states, Step& step)
    : weights_(weights), states_(states), step_(step) {
  const Config& c = step.config;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    LayerMatrices& own = layers_.emplace_back();
    if (!c.layers[i].mixer_as<SelectiveScanKind>()) continue;
    const std::string layer = "layers." + std::to_string(i) + ".";
    const SelectiveScanColumns at(kind(i));
    own.in = &weights.linear(layer + "scan_in", at.latent, c.hidden);
    own.select = &weights.linear(layer + "scan_select", at.end - at.latent, kind(i).inner);
    own.dt = &weights.linear(layer + "scan_dt", kind(i).inner, kind(i).dt_rank);
    own.out = &weights.linear(layer + "scan_out", c.hidden, kind(i).inner);
  }
}

const Norm* SelectiveScan::mix(StepWalk& w, size_t layer, const Norm* add) {
  const LayerMatrices& own = layers_[layer];
  const SelectiveScanColumns at(kind(layer));
  const Site& inner = step_.scratch.inner;
  step_.multiply(w, *own.in, step_.stream(w, add, weights_.norms(layer).input, own.in->matrix), columns(0));
  step_.barrier(w);
  convolve_channels(w, step_, states_, layer, weights_.convolution(layer), kind(layer).inner, kind(layer).taps, false);
  step_.barrier(w);
  const Operand& x = step_.scratch.convolved;
  step_.multiply(w, *own.select, step_.rows_of(w, inner, x, own.select->matrix), columns(at.latent));
  step_.barrier(w);
  if (kind(layer).norm_eps > 0.0f) {
    normalize(w, layer);
    step_.barrier(w);
  }
  step_.multiply(w, *own.dt, step_.rows_of(w, inner, columns(at.latent), own.dt->matrix), columns(0));
  step_.barrier(w);
  scan(w, layer);
  if (layer + 1 == layers_.size()) step_.keep_logit_rows(w);
  step_.barrier(w);
  const Norm* after = weights_.norms(layer).post_attention.if_there();
  step_.project_back(w, step_.output(w, step_.scratch.mixed, own.out->matrix), *own.out, after);
  step_.barrier(w);
  return after;
}

// Normalizes dt's latent, b and c of the member's rows.
void SelectiveScan::normalize(const StepWalk& w, size_t layer) {
  const SelectiveScanKind& k = kind(layer);
  const SelectiveScanColumns at(k);
  const Range rows = step_.mine(w, w.rows);
  const float* weight = or_null(weights_.recurrence(layer).norm);
  const auto normalize_part = [&](int64_t column, int64_t size) {
    step_.kernel.head_norm({step_.scratch.mixer_at(rows.begin, column), step_.scratch.mixer_in.stride, rows.size(), 1,
                            size, weight, k.norm_eps});
    if (weight) weight += size;
  };
  normalize_part(at.latent, k.dt_rank);
  normalize_part(at.b, k.state_dim);
  normalize_part(at.c, k.state_dim);
}

// Moves the states of the member's channels by all sequences. In the last layer only rows that need logits have a
// result.
void SelectiveScan::scan(const StepWalk& w, size_t layer) {
  const Batch& batch = step_.batch();
  const SelectiveScanKind& k = kind(layer);
  const SelectiveScanColumns at(k);
  const Operand& x = step_.scratch.convolved;
  const Range channels = share(k.inner, kPanel, w.member, step_.pool.threads());
  SelectiveScanTask task{};
  task.x_stride = x.stride;
  task.stride = step_.scratch.mixer_in.stride;
  task.state_dim = k.state_dim;
  task.channel_begin = channels.begin;
  task.channel_end = channels.end;
  task.a = weights_.recurrence(layer).a_log.data();
  task.d = weights_.recurrence(layer).d.data();
  task.out = step_.scratch.mixed.target(layers_[layer].out->matrix);
  const auto scan_rows = [&](Range rows, int64_t first_output, int64_t out_row) {
    task.x = static_cast<const float*>(x.data) + rows.begin * x.stride;
    task.dt = step_.scratch.mixer_at(rows.begin, 0);
    task.z = step_.scratch.mixer_at(rows.begin, at.z);
    task.b = step_.scratch.mixer_at(rows.begin, at.b);
    task.c = step_.scratch.mixer_at(rows.begin, at.c);
    task.rows = rows.size();
    task.first_output = first_output;
    task.out_row = out_row;
    step_.kernel.selective_scan(task);
  };
  for (int64_t s = 0; s < batch.sequences; ++s) {
    task.state = states_.at(layer, batch.state[s]).heads;
    batch.for_rows_of(s, layer + 1 == layers_.size(), scan_rows);
  }
}

}  // namespace forearm
