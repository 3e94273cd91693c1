// The routing of experts and the sum of their results in every tier: the same bits as scalar's.
#include "kernel_check.h"

namespace forearm::checks {
namespace {

struct Routed {
  std::vector<float> chosen, weights;
};

Routed routed(const Kernels& kernels, RouteTask task, int64_t rows) {
  std::vector<int32_t> chosen(rows * task.slots);
  Routed out{{}, std::vector<float>(rows * task.slots)};
  std::vector<float> scratch(4 * task.experts + task.groups);
  task.row_end = rows;
  task.chosen = chosen.data();
  task.weights = out.weights.data();
  task.scratch = scratch.data();
  kernels.route(task);
  out.chosen.assign(chosen.begin(), chosen.end());
  return out;
}

}  // namespace

void check_route(Report& report, const Kernels& tier, const Kernels& scalar) {
  constexpr int64_t kRows = 5;
  for (const int64_t experts : {2, 8, 24, 60, 128, 256}) {
    const int64_t stride = experts + 3;
    std::vector<float> logits = Random(experts).floats(kRows * stride, 8.0f);
    for (int64_t i = 0; i < experts; ++i) {
      logits[stride + i] = static_cast<float>(i % 3);                     // ties
      if (i % 7 == 5) logits[2 * stride + i] = -__builtin_inff();         // experts that are masked
      if (i == experts / 2) logits[3 * stride + i] = __builtin_nanf("");  // what can't be routed
    }
    const std::vector<float> correction = Random(experts + 1).floats(experts, 0.2f);
    for (const Score score : {Score::softmax, Score::sigmoid, Score::softmax_chosen, Score::sparse_mixer,
                              Score::sqrt_softplus, Score::sigmoid_chosen})
      for (const int64_t active : {1, 2, 8})
        for (const int64_t groups : {1, 2, 4}) {
          if (active > experts || experts % groups != 0 || (groups > 1 && active > experts / groups)) continue;
          RouteTask task{};
          task.logits = logits.data();
          task.stride = stride;
          task.experts = experts;
          task.active = active;
          task.slots = active + 1;
          task.score = score;
          task.correction = active == 2 ? correction.data() : nullptr;
          task.groups = groups;
          task.groups_kept = (groups + 1) / 2;
          task.group_best = experts / groups > 1 ? 2 : 1;
          task.renormalized = active != 1;
          task.sum_epsilon = 1e-6f;
          task.scale = 1.5f;
          task.jitter = 0.01f;
          report.begin(sizes({{"experts", experts}, {"active", active}, {"groups", groups}}) +
                       " score=" + std::to_string(static_cast<int>(score)));
          const Routed got = routed(tier, task, kRows), wanted = routed(scalar, task, kRows);
          report.same_bits(got.chosen, wanted.chosen, "experts");
          report.same_bits(got.weights, wanted.weights, "weights");
        }
  }
}

void check_combine(Report& report, const Kernels& tier, const Kernels& scalar) {
  constexpr int64_t kRows = 3, kResults = 20;
  for (const int64_t columns : {1, 15, 16, 40, 67})
    for (const int64_t slots : {1, 2, 9}) {
      report.begin(sizes({{"columns", columns}, {"slots", slots}}));
      const int64_t begin = 16, stride = columns + 5, width = begin + columns + 2;
      Random random(columns * slots);
      const std::vector<float> y = random.floats(kResults * stride), weights = random.floats(kRows * slots);
      const std::vector<float> residual = random.floats(kRows * width);
      std::vector<int32_t> place(kRows * slots);
      for (size_t i = 0; i < place.size(); ++i) place[i] = static_cast<int32_t>(i * 7 % kResults);
      for (const bool add : {false, true}) {
        const auto sums = [&](const Kernels& kernels) {
          std::vector<float> out = residual;
          kernels.combine({y.data(),
                           stride,
                           1,
                           kRows,
                           slots,
                           weights.data(),
                           place.data(),
                           begin,
                           begin + columns,
                           0.5f,
                           add,
                           {out.data(), width, Form::f32_rows}});
          return out;
        };
        report.same_bits(sums(tier), sums(scalar), add ? "added" : "stored");
      }
    }
}

}  // namespace forearm::checks
