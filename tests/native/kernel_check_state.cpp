// Mixers that keep a state, in every tier: the same bits as scalar's, and the same however the rows are cut.
#include <algorithm>

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

}  // namespace

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
                                   0};
          const Convolved wanted = convolved(scalar, task, form, rows);
          for (const int64_t cut : {rows, int64_t{1}, int64_t{3}}) {
            const Convolved got = convolved(tier, task, form, cut);
            report.same_bits(got.out, wanted.out, "rows");
            report.same_bits(got.state, wanted.state, "state");
          }
        }
}

}  // namespace forearm::checks
