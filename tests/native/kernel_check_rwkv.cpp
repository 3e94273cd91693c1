// The operations of RWKV, in every tier: the same bits as scalar's, and the same however the rows are cut.
#include <algorithm>

#include "kernel_check.h"

namespace forearm::checks {
namespace {

constexpr Form kForms[] = {Form::f32_rows, Form::bf16_rows, Form::bf16_pairs, Form::f16_rows};

// Token shift of all rows, `cut` rows and at most `columns` columns at a time.
std::vector<float> shifted(const Kernels& kernels, const TokenShiftTask& task, Form form, int64_t cut,
                           int64_t columns) {
  const int64_t all = task.rows, end = task.column_end;
  Rows out(form, all - task.first_output, end);
  for (int64_t column = 0; column < end; column += columns) {
    for (int64_t row = 0; row < all; row += cut) {
      TokenShiftTask part = task;
      part.x += row * task.stride;
      if (row > 0) part.before = part.x - task.stride;
      part.rows = std::min(cut, all - row);
      part.first_output = std::clamp<int64_t>(task.first_output - row, 0, part.rows);
      part.out_row = std::max<int64_t>(row - task.first_output, 0);
      part.column_begin = column;
      part.column_end = std::min(column + columns, end);
      part.out = out.operand();
      kernels.token_shift(part);
    }
  }
  return out.values();
}

struct Mixed {
  std::vector<float> out, state;
};

// Time mixing of all rows, `cut` rows at a time.
Mixed time_mixed(const Kernels& kernels, const Rwkv7Task& task, Form form, int64_t cut) {
  const int64_t all = task.rows;
  std::vector<float> state(task.state, task.state + rwkv7_state_floats(task.dim));
  std::vector<float> room(static_cast<size_t>(all * rwkv7_room_floats(task.dim)));
  Rows out(form, all - task.first_output, task.dim);
  for (int64_t row = 0; row < all; row += cut) {
    Rwkv7Task part = task;
    for (const float** rows : {&part.r, &part.w, &part.k, &part.v, &part.a, &part.g}) *rows += row * task.stride;
    if (part.mix) part.mix += row * task.stride;
    part.first += row * task.first_stride;
    part.rows = std::min(cut, all - row);
    part.first_output = std::clamp<int64_t>(task.first_output - row, 0, part.rows);
    part.out_row = std::max<int64_t>(row - task.first_output, 0);
    part.state = state.data();
    part.room = room.data();
    part.out = out.operand();
    kernels.rwkv7(part);
  }
  return {out.values(), state};
}

}  // namespace

void check_token_shift(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const int64_t columns : {16, 40, 67})
    for (const int64_t rows : {1, 3, 22})
      for (const bool begins : {false, true})
        for (const Form form : kForms) {
          report.begin(sizes({{"columns", columns}, {"rows", rows}, {"begins", begins}}) +
                       " form=" + std::to_string(static_cast<int>(form)));
          Random random(columns + rows);
          const std::vector<float> x = random.floats(rows * (columns + 5)), before = random.floats(columns),
                                   mix = random.floats(columns);
          TokenShiftTask task{};
          task.x = x.data();
          task.stride = columns + 5;
          task.rows = rows;
          task.first_output = rows / 3;
          task.before = begins ? nullptr : before.data();
          task.mix = mix.data();
          task.column_end = columns;
          const std::vector<float> wanted = shifted(scalar, task, form, rows, columns);
          for (const int64_t cut : {rows, int64_t{1}, int64_t{7}})
            report.same_bits(shifted(tier, task, form, cut, cut == 7 ? 2 * kPanel : columns), wanted, "rows");
        }
}

void check_squash(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const int64_t dim : {16, 67})
    for (const Squash squash : {Squash::none, Squash::tanh, Squash::sigmoid})
      for (const Form form : kForms) {
        constexpr int64_t kRows = 5;
        report.begin(sizes({{"dim", dim}, {"squash", static_cast<int64_t>(squash)}}) +
                     " form=" + std::to_string(static_cast<int>(form)));
        Random random(dim);
        const std::vector<float> x = random.floats(kRows * (dim + 3), 20.0f);
        const auto squashed = [&](const Kernels& kernels) {
          Rows out(form, kRows, dim);
          kernels.squash({x.data(), dim + 3, 0, 2, dim, squash, out.operand()});
          kernels.squash({x.data(), dim + 3, 2, kRows, dim, squash, out.operand()});
          return out.values();
        };
        report.same_bits(squashed(tier), squashed(scalar), "rows");
      }
}

void check_rwkv7(Report& report, const Kernels& tier, const Kernels& scalar) {
  for (const int64_t dim : {16, 25, 64, 83})
    for (const int64_t rows : {1, 3, 22})
      for (const bool first : {false, true})
        for (const Form form : kForms) {
          const int64_t stride = 7 * dim + 5;
          report.begin(sizes({{"dim", dim}, {"rows", rows}, {"first", first}}) +
                       " form=" + std::to_string(static_cast<int>(form)));
          Random random(dim + rows);
          const std::vector<float> joint = random.floats(rows * stride, 2.0f), values = random.floats(rows * (dim + 1)),
                                   vectors = random.floats(5 * dim);
          std::vector<float> state = random.floats(rwkv7_state_floats(dim));
          Rwkv7Task task{};
          const float** parts[] = {&task.r, &task.w, &task.k, &task.v, &task.a, &task.g};
          for (size_t i = 0; i < 6; ++i) *parts[i] = joint.data() + static_cast<int64_t>(i) * dim;
          task.mix = first ? nullptr : joint.data() + 6 * dim;
          task.first = values.data();
          task.first_stride = dim + 1;
          task.stride = stride;
          task.rows = rows;
          task.dim = dim;
          task.first_output = rows / 3;
          task.k_k = vectors.data();
          task.k_a = task.k_k + dim;
          task.r_k = task.k_a + dim;
          task.norm = task.r_k + dim;
          task.norm_bias = task.norm + dim;
          task.eps = 64e-5f;
          task.state = state.data();
          const Mixed wanted = time_mixed(scalar, task, form, rows);
          for (const int64_t cut : {rows, int64_t{1}, int64_t{7}}) {
            const Mixed got = time_mixed(tier, task, form, cut);
            report.same_bits(got.out, wanted.out, "rows");
            report.same_bits(got.state, wanted.state, "state");
          }
        }
}

}  // namespace forearm::checks
