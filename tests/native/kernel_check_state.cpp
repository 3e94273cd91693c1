// Mixers that keep a state, in every tier: the same bits as scalar's, and the same however the rows are cut.
#include <algorithm>
#include <cmath>

#include "kernel_check.h"

namespace forearm::checks {
namespace {

struct Convolved {
  std::vector<float> out, state;
};

// Columns [begin, end) of all rows, `cut` rows at a time; only the last piece has outputs.
Convolved convolved(const Kernels& kernels, ShortConvTask task, Form form, int64_t cut) {
  const int64_t all = task.rows, outputs = all - task.first_output;
  std::vector<float> u(task.b, task.b + all * task.stride);
  std::vector<float> state(task.state, task.state + (task.width - 1) * task.channels);
  Rows out(form, outputs, task.channels);
  task.state = state.data();
  task.out = out.operand();
  const float *c = task.c, *x = task.x;
  const int64_t first = task.first_output;
  for (int64_t row = 0; row < all; row += cut) {
    task.b = u.data() + row * task.stride;
    if (c) task.c = c + row * task.stride;
    if (x) task.x = x + row * task.stride;
    task.rows = std::min(cut, all - row);
    task.first_output = std::clamp<int64_t>(first - row, 0, task.rows);
    task.out_row = std::max<int64_t>(row - first, 0);
    kernels.short_conv(task);
  }
  return {out.values(), state};
}

// States of heads whose scales lie between 2^-58 and 2: the next decays bring some below the least scale, others not.
std::vector<float> scaled_states(Random& random, int64_t heads, int64_t rows, int64_t columns) {
  std::vector<float> state = random.floats(heads * state_floats(rows, columns));
  float* scale = state.data() + panel_floats(rows) - kPanel;
  for (int64_t head = 0; head < heads; ++head) {
    const float own = std::ldexp(1.5f + random.floats(1)[0], static_cast<int>(head % 2) * -58);
    for (int64_t panel = 0; panel < state_panels(columns); ++panel, scale += panel_floats(rows)) *scale = own;
  }
  return state;
}

// The results and state of a selective scan of all channels, `cut` rows and at most `columns` channels at a time.
Convolved scanned(const Kernels& kernels, const SelectiveScanTask& task, Form form, int64_t cut, int64_t columns) {
  const int64_t all = task.rows, channels = task.channel_end;
  std::vector<float> state(task.state, task.state + round_up(channels, kPanel) * task.state_dim);
  Rows out(form, all - task.first_output, channels);
  for (int64_t column = 0; column < channels; column += columns) {
    for (int64_t row = 0; row < all; row += cut) {
      SelectiveScanTask part = task;
      part.x += row * task.x_stride;
      for (const float** rows : {&part.dt, &part.z, &part.b, &part.c}) *rows += row * task.stride;
      part.rows = std::min(cut, all - row);
      part.first_output = std::clamp<int64_t>(task.first_output - row, 0, part.rows);
      part.out_row = std::max<int64_t>(row - task.first_output, 0);
      part.channel_begin = column;
      part.channel_end = std::min(column + columns, channels);
      part.state = state.data();
      part.out = out.operand();
      kernels.selective_scan(part);
    }
  }
  return {out.values(), state};
}

// The results and states of an RG-LRU of all channels, `cut` rows and at most `columns` channels at a time.
Convolved moved_by_gates(const Kernels& kernels, const RgLruTask& task, Form form, int64_t cut, int64_t columns) {
  const int64_t all = task.rows, channels = task.channel_end;
  std::vector<float> state(task.state, task.state + round_up(channels, kPanel));
  Rows out(form, all - task.first_output, channels);
  for (int64_t column = 0; column < channels; column += columns) {
    for (int64_t row = 0; row < all; row += cut) {
      RgLruTask part = task;
      part.x += row * task.x_stride;
      for (const float** rows : {&part.r, &part.i, &part.y}) *rows += row * task.stride;
      part.rows = std::min(cut, all - row);
      part.begins = task.begins && row == 0;
      part.first_output = std::clamp<int64_t>(task.first_output - row, 0, part.rows);
      part.out_row = std::max<int64_t>(row - task.first_output, 0);
      part.channel_begin = column;
      part.channel_end = std::min(column + columns, channels);
      part.state = state.data();
      part.out = out.operand();
      kernels.rg_lru(part);
    }
  }
  return {out.values(), state};
}

// A value head's results and state, `cut` rows and `panels` panels at a time.
Convolved ruled(const Kernels& kernels, const DeltaRuleTask& task, int64_t cut, int64_t panels) {
  const int64_t all = task.rows, columns = panels * kPanel;
  std::vector<float> state(task.state, task.state + state_floats(task.key_dim, task.value_dim));
  std::vector<float> out(all * task.out_stride);
  for (int64_t row = 0; row < all; row += cut) {
    for (int64_t column = 0; column < task.value_dim; column += columns) {
      DeltaRuleTask part = task;
      part.q += row * task.qk_stride;
      part.k += row * task.qk_stride;
      part.v += row * task.v_stride + column;
      part.decay += row * task.decay_stride;
      part.beta += row * task.beta_stride;
      part.rows = std::min(cut, all - row);
      part.value_dim = std::min(columns, task.value_dim - column);
      part.state = state.data() + column / kPanel * panel_floats(task.key_dim);
      part.out = out.data() + row * task.out_stride + column;
      kernels.delta_rule(part);
    }
  }
  return {out, state};
}

// One of two heads' rows; with a decay for each channel of the keys, or one.
void check_delta_rows(Report& report, const Kernels& tier, const Kernels& scalar, DeltaRuleTask task, Random& random) {
  const int64_t heads = 2, channels = task.by_channel ? task.key_dim : 1, stride = heads * channels + 3;
  const std::vector<float> a = random.floats(task.rows * stride), b = random.floats(task.rows * stride);
  const std::vector<float> a_log = random.floats(heads, 8.0f), dt_bias = random.floats(heads * channels);
  const auto gates = [&](const Kernels& kernels, float least) {
    std::vector<float> both(task.rows * heads * (channels + 1));
    kernels.delta_gates({a.data(), b.data(), stride, task.rows, heads, channels, a_log.data(), dt_bias.data(),
                         both.data(), both.data() + task.rows * heads * channels, 1.0f, least});
    return both;
  };
  const std::vector<float> wanted_gates = gates(scalar, 0.0f);
  report.same_bits(gates(tier, 0.0f), wanted_gates, "gates");
  report.same_bits(gates(tier, -5.0f), gates(scalar, -5.0f), "gates with a lower bound");
  task.decay = wanted_gates.data();
  task.beta = wanted_gates.data() + task.rows * heads * channels;
  task.decay_stride = heads * channels;
  task.beta_stride = heads;
  const int64_t rows = task.rows, panels = state_panels(task.value_dim);
  const Convolved wanted = ruled(scalar, task, rows, panels);
  for (const int64_t cut : {rows, int64_t{1}, int64_t{3}}) {
    const Convolved got = ruled(tier, task, cut, cut == 3 ? (panels + 1) / 2 : panels);
    report.same_bits(got.out, wanted.out, "rows");
    report.same_bits(got.state, wanted.state, "state");
  }
}

}  // namespace

void check_delta_rule(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const int64_t key_dim : {8, 20, 128})
    for (const int64_t value_dim : {5, 16, 48, 77, 128})
      for (const int64_t rows : {1, 2, 23})
        for (const bool by_channel : {false, true}) {
          const int64_t key_stride = key_dim + 3, value_stride = value_dim + 5;
          report.begin(sizes({{"key_dim", key_dim}, {"value_dim", value_dim}, {"rows", rows}}) +
                       (by_channel ? " by channel" : ""));
          Random random(key_dim * value_dim + rows);
          const std::vector<float> q = random.floats(rows * key_stride), k = random.floats(rows * key_stride, 0.1f);
          const std::vector<float> v = random.floats(rows * value_stride);
          std::vector<float> state = scaled_states(random, 1, key_dim, value_dim);
          DeltaRuleTask task{};
          task.q = q.data();
          task.k = k.data();
          task.qk_stride = key_stride;
          task.v = v.data();
          task.v_stride = task.out_stride = value_stride;
          task.by_channel = by_channel;
          task.rows = rows;
          task.key_dim = key_dim;
          task.value_dim = value_dim;
          task.state = state.data();
          check_delta_rows(report, tier, scalar, task, random);
        }
}

void check_short_conv(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const int64_t channels : {16, 40, 67})
    for (const int64_t width : {2, 3, 4, 9})
      for (const int64_t rows : {1, 2, 7})
        for (const Form form : {Form::f32_rows, Form::bf16_rows, Form::bf16_pairs, Form::f16_rows}) {
          const int64_t first_output = rows / 3, stride = channels + 5;
          const bool biased = width % 2;
          report.begin(sizes({{"channels", channels}, {"width", width}, {"rows", rows}}) +
                       " form=" + std::to_string(static_cast<int>(form)));
          Random random(channels * width + rows);
          std::vector<float> b = random.floats(rows * stride), state = random.floats((width - 1) * channels);
          const std::vector<float> c = random.floats(rows * stride), x = random.floats(rows * stride);
          const std::vector<float> taps = random.floats(width * channels), bias = random.floats(channels);
          const bool gated = rows != 2;
          const ShortConvTask task{b.data(),
                                   gated ? c.data() : nullptr,
                                   gated ? x.data() : nullptr,
                                   stride,
                                   rows,
                                   first_output,
                                   width,
                                   taps.data(),
                                   biased ? bias.data() : nullptr,
                                   state.data(),
                                   channels,
                                   0,
                                   channels,
                                   {},
                                   0,
                                   !gated && width == 4};
          const Convolved wanted = convolved(scalar, task, form, rows);
          for (const int64_t cut : {rows, int64_t{1}, int64_t{3}}) {
            const Convolved got = convolved(tier, task, form, cut);
            report.same_bits(got.out, wanted.out, "rows");
            report.same_bits(got.state, wanted.state, "state");
          }
        }
}

namespace {

struct Moved {
  std::vector<float> y, state;
};

// All rows of the task's panels, `cut` rows and `panels` panels at a time.
Moved moved(const Kernels& kernels, Mamba2Task task, int64_t cut, int64_t panels) {
  const int64_t all = task.rows;
  std::vector<float> x(task.x, task.x + all * task.stride);
  std::vector<float> state(task.state, task.state + task.heads * state_floats(task.state_dim, task.head_dim));
  task.state = state.data();
  const float *b = task.b, *c = task.c, *dt = task.dt;
  for (int64_t row = 0; row < all; row += cut) {
    task.x = x.data() + row * task.stride;
    task.b = b + row * task.stride;
    task.c = c + row * task.stride;
    task.dt = dt + row * task.dt_stride;
    task.rows = std::min(cut, all - row);
    for (Mamba2Task part = task; part.panel_begin < task.panel_end; part.panel_begin = part.panel_end) {
      part.panel_end = std::min(part.panel_begin + panels, task.panel_end);
      kernels.mamba2(part);
    }
  }
  return {x, state};
}

}  // namespace

void check_mamba2(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const int64_t head_dim : {16, 40, 64, 67})
    for (const int64_t state_dim : {1, 16, 21})
      for (const int64_t rows : {1, 3, 4, 22}) {
        const int64_t heads = 4, groups = rows % 2 ? 2 : 1, stride = heads * head_dim + 2 * groups * state_dim + 3;
        report.begin(sizes({{"head_dim", head_dim}, {"state_dim", state_dim}, {"rows", rows}}));
        Random random(head_dim * state_dim + rows);
        std::vector<float> x = random.floats(rows * stride);
        std::vector<float> state = scaled_states(random, heads, state_dim, head_dim);
        const std::vector<float> dt = random.floats(rows * (heads + 1), 40.0f);
        const std::vector<float> dt_bias = random.floats(heads), a_log = random.floats(heads, 3.0f);
        const std::vector<float> d = random.floats(heads);
        const float* b = x.data() + heads * head_dim;
        const std::vector<float> joint = x;  // b and c stay as they are
        Mamba2Task task{};
        task.x = x.data();
        task.b = joint.data() + (b - x.data());
        task.c = task.b + groups * state_dim;
        task.stride = stride;
        task.dt = dt.data();
        task.dt_stride = heads + 1;
        task.rows = rows;
        task.heads = heads;
        task.groups = groups;
        task.head_dim = head_dim;
        task.state_dim = state_dim;
        task.panel_begin = rows % 3 == 0;
        task.panel_end = heads * state_panels(head_dim);
        task.dt_bias = dt_bias.data();
        task.a_log = a_log.data();
        task.d = d.data();
        task.dt_scale = 0.75f;
        task.dt_most = 9.0f;
        task.state = state.data();
        const Moved wanted = moved(scalar, task, rows, task.panel_end);
        for (const int64_t cut : {rows, int64_t{1}, int64_t{3}, int64_t{7}}) {
          const Moved got = moved(tier, task, cut, cut);
          report.same_bits(got.y, wanted.y, "rows");
          report.same_bits(got.state, wanted.state, "state");
        }
      }
}

void check_selective_scan(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const int64_t channels : {16, 40, 67})
    for (const int64_t state_dim : {1, 16, 21})
      for (const int64_t rows : {1, 3, 22})
        for (const Form form : {Form::f32_rows, Form::bf16_rows, Form::bf16_pairs, Form::f16_rows}) {
          const int64_t stride = 2 * channels + 2 * state_dim + 3, padded = round_up(channels, kPanel) * state_dim;
          report.begin(sizes({{"channels", channels}, {"state_dim", state_dim}, {"rows", rows}}) +
                       " form=" + std::to_string(static_cast<int>(form)));
          Random random(channels * state_dim + rows);
          const std::vector<float> x = random.floats(rows * (channels + 1)),
                                   joint = random.floats(rows * stride, 20.0f);
          std::vector<float> a = random.floats(padded, 3.0f), state = random.floats(padded);
          for (float& one : a) one = -std::fabs(one);
          const std::vector<float> d = random.floats(channels);
          SelectiveScanTask task{};
          task.x = x.data();
          task.x_stride = channels + 1;
          task.dt = joint.data();
          task.z = task.dt + channels;
          task.b = task.z + channels;
          task.c = task.b + state_dim;
          task.stride = stride;
          task.rows = rows;
          task.first_output = rows / 3;
          task.state_dim = state_dim;
          task.channel_end = channels;
          task.a = a.data();
          task.d = d.data();
          task.state = state.data();
          const Convolved wanted = scanned(scalar, task, form, rows, channels);
          for (const int64_t cut : {rows, int64_t{1}, int64_t{7}}) {
            const Convolved got = scanned(tier, task, form, cut, cut == 7 ? 2 * kPanel : channels);
            report.same_bits(got.out, wanted.out, "rows");
            report.same_bits(got.state, wanted.state, "state");
          }
        }
}

void check_rg_lru(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const int64_t channels : {16, 40, 67})
    for (const int64_t rows : {1, 3, 22})
      for (const bool begins : {false, true})
        for (const Form form : {Form::f32_rows, Form::bf16_rows, Form::bf16_pairs, Form::f16_rows}) {
          const int64_t stride = 3 * channels + 5;
          report.begin(sizes({{"channels", channels}, {"rows", rows}, {"begins", begins}}) +
                       " form=" + std::to_string(static_cast<int>(form)));
          Random random(channels + rows);
          const std::vector<float> x = random.floats(rows * (channels + 1)),
                                   joint = random.floats(rows * stride, 20.0f);
          std::vector<float> rate = random.floats(channels, 8.0f), state = random.floats(round_up(channels, kPanel));
          // From rates whose decays are 0 to those whose decays round to 1.
          for (int64_t i = 0; i < channels; ++i)
            rate[i] = -std::ldexp(std::fabs(rate[i]), static_cast<int>(4 - i % 40));
          RgLruTask task{};
          task.x = x.data();
          task.x_stride = channels + 1;
          task.r = joint.data();
          task.i = task.r + channels;
          task.y = task.i + channels;
          task.stride = stride;
          task.rows = rows;
          task.first_output = rows / 3;
          task.begins = begins;
          task.channel_end = channels;
          task.rate = rate.data();
          task.state = state.data();
          const Convolved wanted = moved_by_gates(scalar, task, form, rows, channels);
          for (const int64_t cut : {rows, int64_t{1}, int64_t{7}}) {
            const Convolved got = moved_by_gates(tier, task, form, cut, cut == 7 ? 2 * kPanel : channels);
            report.same_bits(got.out, wanted.out, "rows");
            report.same_bits(got.state, wanted.state, "state");
          }
        }
}

void check_gated_norm(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const int64_t dim : {16, 60, 128})
    for (const int64_t groups : {1, 4})
      for (const bool gate_first : {true, false})
        for (const bool weighted : {true, false})
          for (const Form form : {Form::f32_rows, Form::bf16_rows, Form::bf16_pairs, Form::f16_rows}) {
            const int64_t rows = 3, stride = dim + 5;
            report.begin(sizes({{"dim", dim}, {"groups", groups}, {"gate_first", gate_first}, {"weighted", weighted}}) +
                         " form=" + std::to_string(static_cast<int>(form)));
            Random random(dim + groups);
            const std::vector<float> y = random.floats(rows * stride), z = random.floats(rows * stride, 20.0f);
            const std::vector<float> weight = random.floats(dim);
            const auto normed = [&](const Kernels& kernels) {
              std::vector<float> own = y;
              Rows out(form, rows, dim);
              kernels.gated_norm({own.data(), stride, z.data(), stride, 0, 1, dim, groups,
                                  weighted ? weight.data() : nullptr, 1e-5f, gate_first, 0.5f, out.operand(), 2, 0,
                                  dim == 60});
              kernels.gated_norm({own.data(), stride, z.data(), stride, 1, rows, dim, groups,
                                  weighted ? weight.data() : nullptr, 1e-5f, gate_first, 0.5f, out.operand(), 0, 0,
                                  dim == 60});
              report.holds(out.padding_is_zero(), "padding");
              return out.values();
            };
            report.same_bits(normed(tier), normed(scalar), "rows");
          }
}

}  // namespace forearm::checks
