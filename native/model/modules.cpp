#include "model/modules.h"

#include <algorithm>
#include <cstring>

#include "model/mixers/paged_attention.h"
#include "model/step/multiply.h"

namespace forearm {
namespace {

constexpr int64_t kPhases = 5;  // most phases of a call or half that are handed out piece by piece: those of mix

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
  AttendTask task{};
  task.window = in.window;
  task.scale = in.scale;
  task.softcap = in.softcap;
  task.sinks = in.sinks;
  task.q = in.q;
  task.q_stride = step_.config.heads * step_.config.head_dim;
  task.out = {in.out, task.q_stride, Form::f32_rows};
  run(tokens(), [&](StepWalk& w) {
    write_kv(w, layer, in.k, in.v, step_.config.kv_heads * step_.config.head_dim);
    step_.barrier(w);
    forearm::attend(w, step_, kv_, plan_, layer, task);
  });
}

// Stores keys and values of the member's share of the tokens. stride: floats between tokens.
void Modules::write_kv(const StepWalk& w, size_t layer, const float* k, const float* v, int64_t stride) {
  const int64_t dim = step_.config.head_dim;
  const Range rows = step_.mine(w, tokens());
  for (int64_t h = 0; h < step_.config.kv_heads && rows.size() > 0; ++h) {
    const int64_t at = rows.begin * stride + h * dim;
    step_.kernel.write_kv({kv_.layer(static_cast<int64_t>(layer), h), k + at, v + at, stride, rows.size(), dim, h,
                           step_.scratch.slots + rows.begin});
  }
}

size_t Modules::add(const ModuleHalf& half) {
  halves_.push_back(half);
  return halves_.size() - 1;
}

// Counters alternate between halves as between calls. Each half begins after a barrier: it reads all rows.
void Modules::compute(size_t begin, size_t end, size_t layer, const ModuleRows& rows) {
  const size_t call = calls_;
  calls_ += end - begin;
  step_.pool.run([&](int member) {
    StepWalk w{member, tokens()};
    ModuleRows own = rows;
    size_t cached = layer;
    for (size_t i = begin; i < end; ++i) {
      step_.enter_layer(w, call + i - begin);
      if (halves_[i].attends())
        mix(w, halves_[i], cached++, own);
      else
        feed_forward(w, halves_[i], own);
      step_.barrier(w);
      own.x = rows.out;
    }
  });
}

void Modules::mix(StepWalk& w, const ModuleHalf& half, size_t layer, const ModuleRows& rows) {
  const Config& c = step_.config;
  const Operand& joint = step_.scratch.mixer_in;
  product(w, *half.first, begin_half(w, half, rows), Epilogue::store, Activation::none, joint);
  step_.barrier(w);
  if (const Range own = step_.mine(w, w.rows); own.size() > 0) {
    const int64_t angles = own.begin * (c.head_dim / 2);
    step_.kernel.rope({step_.scratch.mixer_at(own.begin, 0), joint.stride, own.size(), c.heads + c.kv_heads, c.head_dim,
                       c.head_dim, rows.cos + angles, rows.sin + angles, false});
  }
  const float* k = step_.scratch.mixer_at(0, c.heads * c.head_dim);
  write_kv(w, layer, k, k + c.kv_heads * c.head_dim, joint.stride);
  step_.barrier(w);
  AttendTask task{};
  task.window = half.window;
  task.scale = half.scale;
  task.q = step_.scratch.mixer_at(0, 0);
  task.q_stride = joint.stride;
  task.out = step_.scratch.activated.target(half.last->matrix);
  forearm::attend(w, step_, kv_, plan_, layer, task);
  step_.barrier(w);
  end_half(w, half, rows);
}

void Modules::feed_forward(StepWalk& w, const ModuleHalf& half, const ModuleRows& rows) {
  const Operand out = step_.scratch.activated.target(half.last->matrix);
  product(w, *half.first, begin_half(w, half, rows), Epilogue::gated, half.gate, out);
  step_.barrier(w);
  end_half(w, half, rows);
}

// Returns the normalized rows as `first` takes them, and copies x to out, which is complete after a barrier.
Operand Modules::begin_half(StepWalk& w, const ModuleHalf& half, const ModuleRows& all) {
  const Matrix& matrix = half.first->matrix;
  const int64_t width = half.width();
  const auto copy = [&](Range rows) {
    if (all.out != all.x) std::copy_n(all.x + rows.begin * width, rows.size() * width, all.out + rows.begin * width);
  };
  const auto norm = [&](Range rows, const Operand& out) {
    step_.kernel.norm({all.x, width, rows.begin, rows.end, width, half.norm, nullptr, half.eps, false, out});
  };
  const auto make = [&](Range rows, const Operand& out) {
    if (Site::is_direct(matrix)) return norm(rows, out);
    float* own = step_.scratch.row(w.member);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      norm({r, r + 1}, {own, 0, Form::f32_rows});  // a stride of 0 maps every row to the one buffer
      step_.kernel.quantize({own, 0, r, r + 1, width, matrix.order_of(0), out});
    }
  };
  Site& site = step_.scratch.stream;
  const bool few = w.rows <= kOwnRows && w.rows * width <= kOwnValues;  // as in Step::prepare
  const Operand out = (few ? site.own[static_cast<size_t>(w.member)] : site.shared).operand(matrix);
  if (few) {
    copy(step_.mine(w, w.rows));
    make({0, w.rows}, out);
  } else {
    step_.make_together(w, w.rows, [&](Range rows) {
      make(rows, out);
      copy(rows);  // while they are in a near cache
    });
  }
  return out;
}

// Adds the product of `last` and the rows of Scratch::activated to out.
void Modules::end_half(StepWalk& w, const ModuleHalf& half, const ModuleRows& rows) {
  const Linear& last = *half.last;
  const Operand out{rows.out, last.matrix.n, Form::f32_rows};
  product(w, last, step_.output(w, step_.scratch.activated, last.matrix), Epilogue::add, Activation::none, out);
}

void Modules::multiply(const Linear& linear, const float* x, int64_t rows, Activation gate, float* out) {
  const bool gated = gate != Activation::none;
  const Operand to{out, gated ? linear.matrix.n / 2 : linear.matrix.n, Form::f32_rows};
  run(rows, [&](StepWalk& w) {
    const Operand raw{const_cast<float*>(x), linear.matrix.k, Form::f32_rows};  // only read
    const Operand a = step_.rows_of(w, step_.scratch.stream, raw, linear.matrix);
    product(w, linear, a, gated ? Epilogue::gated : Epilogue::store, gate, to);
  });
}

void Modules::product(StepWalk& w, const Linear& linear, const Operand& a, Epilogue epilogue, Activation gate,
                      const Operand& out) {
  GemmTask task{};
  task.a = a;
  task.row_end = w.rows;
  task.epilogue = epilogue;
  task.activation = gate;
  task.scale = 1.0f;
  task.out = out;
  step_.multiply(w, linear, task);
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
