// Prepares rows for multiplication: normalizes, rounds, quantizes and permutes them. There is no barrier: members take
// a few rows at a time and then wait until the count of ready rows is complete.
#include "model/step/step.h"

namespace forearm {

Operand Step::stream(StepWalk& w, const Norm* add, const Norm& norm, const Matrix& matrix) {
  const Norm* before = norm.if_there();
  const bool as_it_is = !add && !before && matrix.form() == Form::f32_rows && !matrix.format.ordered;
  return as_it_is ? scratch.residual : prepare_stream(w, add, before, matrix);
}

Operand Step::stream_again(StepWalk& w, const Norm& norm, const Matrix& matrix, const Matrix& before,
                           const Operand& ready) {
  if (matrix.form() == before.form() && !before.format.ordered && !matrix.format.ordered) return ready;
  return prepare_stream(w, nullptr, norm.in_residual ? nullptr : norm.if_there(), matrix);
}

Operand Step::output(StepWalk& w, const Site& site, const Matrix& matrix, const Norm* norm) {
  if (!norm && Site::is_direct(matrix)) return site.shared.operand(matrix);
  return prepare(w, {site, site.raw, w.rows, nullptr, norm}, matrix);
}

Operand Step::raw_output(StepWalk& w, const Site& site, const Matrix& matrix) {
  return prepare(w, {site, site.raw, w.rows, nullptr, nullptr}, matrix);
}

Operand Step::output_again(StepWalk& w, const Site& site, const Matrix& matrix, const Matrix& before,
                           const Operand& ready) {
  const Format &one = before.format, &other = matrix.format;
  const bool same_form = matrix.form() == before.form();
  if (same_form && one.group == other.group && one.turned == other.turned && !one.ordered && !other.ordered)
    return ready;
  if (same_form) barrier(w);
  return output(w, site, matrix);
}

// With few rows every member prepares its own copy and waits for no other; not if the residual changes, which must
// happen only once.
Operand Step::prepare(StepWalk& w, const Source& source, const Matrix& matrix) {
  const int64_t rows = source.rows;
  const bool changes = source.add || (source.norm && source.norm->in_residual);
  if (rows <= kOwnRows && rows * matrix.k <= kOwnValues && !changes) {
    const Operand out = source.site.own[static_cast<size_t>(w.member)].operand(matrix);
    make_rows(w, source, {0, rows}, matrix, out);
    return out;
  }
  const Operand out = source.site.shared.operand(matrix);
  make_together(w, rows, [&](Range part) { make_rows(w, source, part, matrix, out); });
  return out;
}

void Step::make_rows(const StepWalk& w, const Source& source, Range rows, const Matrix& matrix, const Operand& out) {
  const Operand& raw = source.raw;
  auto* x = static_cast<float*>(raw.data);
  const int32_t* order = matrix.order_of(0);
  if (source.add) add_projected(*source.add, rows);
  if (source.norm && source.norm->in_residual) normalize(*source.norm, x, raw.stride, rows, scratch.residual);
  float* own = scratch.row(w.member);
  float* turned = matrix.format.turned ? own : nullptr;
  if (!source.norm || source.norm->in_residual)
    return kernel.quantize({x, raw.stride, rows.begin, rows.end, matrix.k, order, out, turned});
  if (Site::is_direct(matrix)) return normalize(*source.norm, x, raw.stride, rows, out);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    // a stride of 0 maps every row to the one buffer
    normalize(*source.norm, x, raw.stride, {r, r + 1}, {own, 0, Form::f32_rows});
    kernel.quantize({own, 0, r, r + 1, matrix.k, order, out, turned});
  }
}

// Computes residual += scale * norm(projected), or without the norm if it has no weights, and then multiplies the
// residual with the layer's scalar.
void Step::add_projected(const Norm& norm, Range rows) {
  if (!norm.merge.empty()) return merge_projected(norm.merge.data(), rows);
  for (int64_t r = norm.if_there() ? rows.end : rows.begin; r < rows.end; ++r)
    for (int64_t i = 0; i < config.hidden; ++i) residual_row(r)[i] += config.residual_scale * projected_row(r)[i];
  if (!norm.if_there()) return;
  kernel.add_norm({{projected_row(0), scratch.projected.stride, rows.begin, rows.end, config.hidden, norm.weight.data(),
                    or_null(norm.bias), config.norm_eps, config.layer_norm, scratch.residual},
                   config.residual_scale});
  for (const float scale : norm.stream_scale)
    for (int64_t r = rows.begin; r < rows.end; ++r)
      for (int64_t i = 0; i < config.hidden; ++i) residual_row(r)[i] *= scale;
}

// Computes residual = (projected + bias) * scale + (residual + bias) * scale, with vectors for each.
void Step::merge_projected(const float* merge, Range rows) {
  const int64_t n = config.hidden;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* x = residual_row(r);
    const float* y = projected_row(r);
    for (int64_t i = 0; i < n; ++i)
      x[i] = (y[i] + merge[n + i]) * merge[i] + (x[i] + merge[3 * n + i]) * merge[2 * n + i];
  }
}

void Step::normalize(const Norm& norm, const float* x, int64_t stride, Range rows, const Operand& out) {
  kernel.norm({x, stride, rows.begin, rows.end, static_cast<int64_t>(norm.weight.size()), norm.weight.data(),
               or_null(norm.bias), config.norm_eps, config.layer_norm, out});
}

}  // namespace forearm
