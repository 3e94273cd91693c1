#include "model/mixers/recurrent/rwkv/rwkv7.h"

#include <algorithm>
#include <string>

#include "model/step/multiply.h"

namespace forearm {
namespace {

// Rows that are computed together: with heads of 64 numbers what is made of them takes 48 KiB, beside a state of 16.
constexpr int64_t kRows = 32;

// The vectors that r, w, k, v, a and g are mixed with lie side by side.
enum Mix : int64_t { kMixR, kMixW, kMixK, kMixV, kMixA, kMixG };
constexpr std::array<Mix, 3> kInMix{kMixR, kMixK, kMixV};
constexpr std::array<Mix, 4> kPairMix{kMixW, kMixA, kMixV, kMixG};

}  // namespace

int64_t Rwkv7::scratch_floats(const Rwkv7Kind& kind) { return kRows * rwkv7_room_floats(kind.head_dim); }

Rwkv7::Rwkv7(const Weights& weights, const States& states, TokenShift& token_shift, Step& step)
    : weights_(weights), states_(states), token_shift_(token_shift), step_(step) {
  const Config& c = step.config;
  for (size_t i = 0; i < c.layers.size(); ++i) {
    LayerMatrices& own = layers_.emplace_back();
    if (!c.layers[i].mixer_as<Rwkv7Kind>()) continue;
    const Rwkv7Kind& k = kind(i);
    const Rwkv7Columns at(k);
    const std::string layer = "layers." + std::to_string(i) + ".rwkv_";
    own.in = {&weights.linear(layer + "r", k.inner(), c.hidden), &weights.linear(layer + "k", k.inner(), c.hidden),
              &weights.linear(layer + "v", k.inner(), c.hidden)};
    const auto pair = [&](const char* name, int64_t rank, Squash squash, int64_t latent, int64_t column) {
      if (!rank) return Pair{};
      return Pair{&weights.linear(layer + name + "_down", rank, c.hidden),
                  &weights.linear(layer + name + "_up", k.inner(), rank), squash, latent, column};
    };
    own.pairs = {pair("w", k.decay_rank, Squash::tanh, at.w_latent, at.w),
                 pair("a", k.rate_rank, Squash::none, at.a_latent, at.a),
                 pair("v", k.value_rank, Squash::none, at.v_latent, at.mix),
                 pair("g", k.gate_rank, Squash::sigmoid, at.g_latent, at.g)};
    own.out = &weights.linear(layer + "out", c.hidden, k.inner());
  }
}

const Norm* Rwkv7::mix(StepWalk& w, size_t layer, const Norm* add) {
  const LayerNorms& norms = weights_.norms(layer);
  token_shift_.normalize(w, add, norms.input);
  step_.barrier(w);
  shift(w, layer);
  step_.barrier(w);
  project(w, layer);
  step_.barrier(w);
  squash(w, layer);
  step_.barrier(w);
  for (size_t i = 0; i < layers_[layer].pairs.size(); ++i) {
    const Pair& own = layers_[layer].pairs[i];
    if (!own.up) continue;
    step_.multiply(w, *own.up, step_.output(w, step_.scratch.latents[i], own.up->matrix), columns(own.column));
  }
  step_.barrier(w);
  // A head's state stays with the members of one rank; a head's sequences follow each other.
  const int64_t sequences = step_.batch().sequences;
  const auto heads = [&](int rank) { return step_.ranks.part(kind(layer).heads, 1, rank); };
  step_.hand_out(
      w, [&](int rank) { return heads(rank).size() * sequences; },
      [&](int rank, int64_t i) { compute_head(w, layer, heads(rank).begin + i / sequences, i % sequences); });
  ++w.phase;
  step_.barrier(w);
  const Linear& out = *layers_[layer].out;
  const Norm* after = norms.post_attention.if_there();
  step_.project_back(w, step_.output(w, step_.scratch.mixed, out.matrix), out, after);
  step_.barrier(w);
  return after;
}

void Rwkv7::shift(const StepWalk& w, size_t layer) {
  const float* mixes = weights_.recurrence(layer).mixes.data();
  const auto mix = [&](Mix mixed, const Site& site, const Linear& linear) {
    token_shift_.mix(w, layer, TokenShift::Half::mixer, mixes + mixed * step_.config.hidden, site.target(linear.matrix),
                     false);
  };
  const LayerMatrices& own = layers_[layer];
  for (size_t i = 0; i < own.in.size(); ++i) mix(kInMix[i], step_.scratch.shifted[i], *own.in[i]);
  for (size_t i = 0; i < own.pairs.size(); ++i)
    if (own.pairs[i].down) mix(kPairMix[i], step_.scratch.latents[i], *own.pairs[i].down);
  token_shift_.keep(w, layer, TokenShift::Half::mixer);
}

// Each matrix has rows of its own: no member waits for another between two of them.
void Rwkv7::project(StepWalk& w, size_t layer) {
  const LayerMatrices& own = layers_[layer];
  const Rwkv7Columns at(kind(layer));
  const std::array<int64_t, 3> column{0, at.k, at.v};
  for (size_t i = 0; i < own.in.size(); ++i)
    step_.multiply(w, *own.in[i], step_.output(w, step_.scratch.shifted[i], own.in[i]->matrix), columns(column[i]));
  for (size_t i = 0; i < own.pairs.size(); ++i)
    if (const Pair& pair = own.pairs[i]; pair.down)
      step_.multiply(w, *pair.down, step_.output(w, step_.scratch.latents[i], pair.down->matrix), columns(pair.latent));
}

void Rwkv7::squash(const StepWalk& w, size_t layer) {
  const Range rows = step_.mine(w, w.rows);
  for (size_t i = 0; i < layers_[layer].pairs.size(); ++i) {
    const Pair& own = layers_[layer].pairs[i];
    if (!own.up) continue;
    const Operand latent = columns(own.latent);
    step_.kernel.squash({static_cast<const float*>(latent.data), latent.stride, rows.begin, rows.end, own.up->matrix.k,
                         own.squash, step_.scratch.latents[i].target(own.up->matrix)});
  }
}

// Computes all rows of a sequence, kRows at a time.
void Rwkv7::compute_head(const StepWalk& w, size_t layer, int64_t head, int64_t sequence) {
  const Rwkv7Kind& k = kind(layer);
  const Rwkv7Columns at(k);
  const Recurrence& weights = weights_.recurrence(layer);
  const Batch& batch = step_.batch();
  const int64_t slot = batch.state[sequence], column = head * k.head_dim;
  const Operand& firsts = step_.scratch.first_values;
  if (batch.position[batch.start[sequence]] == 0) states_.clear(layer, slot, {0, 0}, {head, head + 1});
  Rwkv7Task task{};
  task.stride = step_.scratch.mixer_in.stride;
  task.first_stride = firsts.stride;
  task.dim = k.head_dim;
  task.k_k = weights.removal.data() + column;
  task.k_a = weights.replaced.data() + column;
  task.r_k = weights.bonus.data() + column;
  task.norm = weights.norm.data() + column;
  task.norm_bias = weights.norm_bias.data() + column;
  task.eps = k.norm_eps;
  task.state = states_.at(layer, slot).heads + head * rwkv7_state_floats(k.head_dim);
  task.room = step_.scratch.mixer(w.member);
  task.out = step_.scratch.mixed.target(layers_[layer].out->matrix);
  task.out_column = column;
  for (int64_t row = batch.start[sequence]; row < batch.start[sequence + 1]; row += kRows) {
    const auto of = [&](int64_t part) { return step_.scratch.mixer_at(row, part + column); };
    float* first = static_cast<float*>(firsts.data) + row * firsts.stride + column;
    task.rows = std::min(kRows, batch.start[sequence + 1] - row);
    task.r = of(0);
    task.k = of(at.k);
    task.v = of(at.v);
    task.w = of(at.w);
    task.a = of(at.a);
    task.g = of(at.g);
    task.mix = k.value_rank ? of(at.mix) : nullptr;
    task.first = first;
    task.out_row = row;
    for (int64_t r = 0; !k.value_rank && r < task.rows; ++r)
      std::copy_n(task.v + r * task.stride, k.head_dim, first + r * firsts.stride);
    step_.kernel.rwkv7(task);
  }
}

}  // namespace forearm
