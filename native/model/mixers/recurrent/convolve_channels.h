// The convolution over the last tokens of each channel, before a recurrence of Mamba or RecurrentGemma.
#pragma once
#include "model/cache/states.h"
#include "model/step/step.h"

namespace forearm {

// Convolves the member's channels of all sequences from Scratch::mixer_in to Scratch::convolved, and clears their
// states of those that begin. plain: without an activation.
inline void convolve_channels(const StepWalk& w, Step& step, const States& states, size_t layer,
                              const Convolution& weights, int64_t inner, int64_t taps, bool plain) {
  const Batch& batch = step.batch();
  const Range channels = share(inner, kPanel, w.member, step.pool.threads());
  const Range panels{channels.begin / kPanel, round_up(channels.end, kPanel) / kPanel};
  ShortConvTask task{};
  task.stride = step.scratch.mixer_in.stride;
  task.width = taps;
  task.taps = weights.taps.data();
  task.bias = or_null(weights.bias);
  task.channels = inner;
  task.column_begin = channels.begin;
  task.column_end = channels.end;
  task.out = step.scratch.convolved;
  task.plain = plain;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const Range rows{batch.start[s], batch.start[s + 1]};
    if (batch.position[rows.begin] == 0) states.clear(layer, batch.state[s], channels, panels);
    task.b = step.scratch.mixer_at(rows.begin, 0);
    task.rows = rows.size();
    task.state = states.at(layer, batch.state[s]).tail;
    task.out_row = rows.begin;
    step.kernel.short_conv(task);
  }
}

}  // namespace forearm
