#include "model/modules.h"

#include <cstring>

#include "model/mixers/paged_attention.h"
#include "model/step/multiply.h"

namespace forearm {
namespace {

constexpr int64_t kPhases = 2;  // phases of a call that are handed out piece by piece: rows and multiplication

}  // namespace

Modules::Modules(const Config& c, const Ranks& ranks, const Weights& weights, const KvBlocks& kv, Scratch& scratch,
                 Pool& pool)
    : weights_(weights),
      kv_(kv),
      step_(c, ranks, scratch, pool, kPhases),
      plan_(c, 0, kv, scratch.partial_floats, pool.threads()) {}

// Counters alternate between calls as they do between layers.
template <class Work>
void Modules::run(int64_t rows, const Work& work) {
  const size_t call = calls_++;
  step_.pool.run([&](int member) {
    StepWalk w{member, rows};
    step_.enter_layer(w, call);
    work(w);
  });
}

void Modules::begin(const Batch& batch) {
  const auto copy = [](std::vector<int32_t>& to, const int32_t* from, int64_t count) {
    to.assign(from, from + count);
    return to.data();
  };
  batch_ = {batch.tokens,
            batch.sequences,
            batch.logits,
            nullptr,
            copy(position_, batch.position, batch.tokens),
            copy(start_, batch.start, batch.sequences + 1),
            copy(block_start_, batch.block_start, batch.sequences + 1),
            batch.blocks,
            copy(block_, batch.block, batch.blocks),
            nullptr};
  step_.begin(batch_);
  plan_.make(batch_);
  run(batch.tokens, [&](StepWalk& w) { find_slots(w, step_, kv_); });
}

void Modules::attend(size_t layer, const ModuleAttention& in) {
  const Config& c = step_.config;
  AttendTask task{};
  task.q = in.q;
  task.q_stride = c.heads * c.head_dim;
  task.window = in.window;
  task.scale = in.scale;
  task.softcap = in.softcap;
  task.sinks = in.sinks;
  task.out = {in.out, task.q_stride, Form::f32_rows};
  run(tokens(), [&](StepWalk& w) {
    const Range rows = step_.mine(w, tokens());
    const int64_t stride = c.kv_heads * c.head_dim;
    for (int64_t h = 0; h < c.kv_heads && rows.size() > 0; ++h) {
      const int64_t at = rows.begin * stride + h * c.head_dim;
      step_.kernel.write_kv({kv_.layer(static_cast<int64_t>(layer), h), in.k + at, in.v + at, stride, rows.size(),
                             c.head_dim, h, step_.scratch.slots + rows.begin});
    }
    step_.barrier(w);
    forearm::attend(w, step_, kv_, plan_, layer, task);
  });
}

void Modules::multiply(const Linear& linear, const float* x, int64_t rows, Activation gate, float* out) {
  const bool gated = gate != Activation::none;
  GemmTask task{};
  task.row_end = rows;
  task.epilogue = gated ? Epilogue::gated : Epilogue::store;
  task.activation = gate;
  task.scale = 1.0f;
  task.out = {out, gated ? linear.matrix.n / 2 : linear.matrix.n, Form::f32_rows};
  run(rows, [&](StepWalk& w) {
    GemmTask own = task;
    const Operand raw{const_cast<float*>(x), linear.matrix.k, Form::f32_rows};  // only read
    own.a = step_.rows_of(w, step_.scratch.stream, raw, linear.matrix);
    step_.multiply(w, linear, own);
  });
}

void Modules::norm(const NormTask& task) {
  if (task.row_end <= kOwnRows) return step_.kernel.norm(task);
  run(task.row_end, [&](StepWalk& w) {
    NormTask own = task;
    const Range rows = step_.mine(w, task.row_end);
    own.row_begin = rows.begin;
    own.row_end = rows.end;
    step_.kernel.norm(own);
  });
}

void Modules::rope(const ModuleHeads& in, const RopeTask& task) {
  const auto rotate = [&](int64_t begin, int64_t end) {
    RopeTask own = task;
    own.rows = end - begin;
    own.x += begin * task.x_stride;
    own.cos += begin * (task.rotary_dim / 2);
    own.sin += begin * (task.rotary_dim / 2);
    float* to = own.x;
    for (int64_t row = begin; row < end; ++row)
      for (int64_t head = 0; head < task.heads; ++head, to += task.head_dim)
        std::memcpy(to, in.x + row * in.token_stride + head * in.head_stride,
                    static_cast<size_t>(task.head_dim) * sizeof(float));
    step_.kernel.rope(own);
  };
  if (task.rows <= kOwnRows) return rotate(0, task.rows);
  run(task.rows, [&](StepWalk& w) {
    const Range rows = step_.mine(w, task.rows);
    if (rows.size() > 0) rotate(rows.begin, rows.end);
  });
}

void Modules::take_logits(const float* logits, int64_t count) {
  const Operand &out = step_.scratch.logits, &maxima = step_.scratch.maxima;
  const int64_t vocab = step_.config.vocab_size;
  run(count, [&](StepWalk& w) {
    const Range rows = share(w.rows, 1, w.member, step_.pool.threads());
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      float* row = static_cast<float*>(out.data) + r * out.stride;
      std::memcpy(row, logits + r * vocab, static_cast<size_t>(vocab) * sizeof(float));
      step_.kernel.row_maxima({row, vocab}, static_cast<float*>(maxima.data) + r * maxima.stride);
    }
  });
}

}  // namespace forearm
