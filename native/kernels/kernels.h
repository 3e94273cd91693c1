// Every operation of a CPU tier: shapes, dtypes, layouts, rounding, order of reduction. No code.
//
// A tier fills one `Kernels` table (tiers/<tier>.cpp); `kernels()` returns the one in use, which tiers.cpp chooses
// once. One call covers one operation and one thread's slice of it. Kernels only compute: no threads, no allocation, no
// failure. Shapes were checked and rows cut by the caller.
//
// Same request, same tokens: every output element is reduced in one fixed order that depends on the shape of the
// weight alone (attention: on the positions of query and key alone), never on the number of rows or on the slice.
#pragma once
#include <stdint.h>

namespace forearm {

// f32, f16 and bf16 are numbers. The others are quantized: a value is a code times a scale (PackedWeights, KvCache).
// The integers are signed, fp8 is OCP's E4M3 (without infinities) and E5M2. int4, int6 and fp4 are dtypes of weights
// only. So is f16_scaled: f16 with a power of two as the scale of each row, which a tier multiplies in 16 bits
// (Kernels::scales_halves). Twice a number of OCP's E2M1 is a small integer, so fp4_e2m1 has integers as codes
// (nibble_code) and is multiplied as they are. e8m0 is a dtype of scales only, powers of two.
// Source of E2M1 and E8M0: OCP, "Microscaling Formats (MX) Specification" 1.0, sections 5 and 6.
enum class DType : int32_t {
  f32 = 0,
  f16 = 1,
  bf16 = 2,
  int8 = 3,
  int4 = 4,
  fp8_e4m3 = 5,
  fp8_e5m2 = 6,
  f16_scaled = 7,
  fp4_e2m1 = 8,
  e8m0 = 9,
  int6 = 10
};
constexpr int kDTypes = 11;

// What the code that packs, checks and dispatches has to know of a number format. A new one is a row here, its loops in
// ops/ and simd/, and its packer (pack_quantized.cpp).
//   name       in configurations and error texts; null: chosen by a tier, never by name
//   kind       of codes, integers and fp8 differ in how they are dequantized, and only integers have zeros and offsets
//   bits       of a value in memory; codes of 4 and 6 bits share bytes (Layout)
//   largest    the magnitude that rounding scales a group's largest value to; 0: codes are not scaled so
//   in_cache   whether a KV cache may hold it
enum class NumberKind : int32_t { floating, integer, fp8, scaled_halves, scale };
struct NumberFormat {
  DType dtype;
  const char* name;
  NumberKind kind;
  int bits;
  float largest;
  bool in_cache;
};
constexpr NumberFormat kNumberFormats[kDTypes] = {{DType::f32, "float32", NumberKind::floating, 32, 0, true},
                                                  {DType::f16, "float16", NumberKind::floating, 16, 0, true},
                                                  {DType::bf16, "bfloat16", NumberKind::floating, 16, 0, true},
                                                  {DType::int8, "int8", NumberKind::integer, 8, 127, true},
                                                  {DType::int4, "int4", NumberKind::integer, 4, 8, false},
                                                  {DType::fp8_e4m3, "fp8_e4m3", NumberKind::fp8, 8, 448, true},
                                                  {DType::fp8_e5m2, "fp8_e5m2", NumberKind::fp8, 8, 57344, true},
                                                  {DType::f16_scaled, nullptr, NumberKind::scaled_halves, 16, 0, false},
                                                  {DType::fp4_e2m1, "fp4_e2m1", NumberKind::integer, 4, 0, false},
                                                  {DType::e8m0, "e8m0", NumberKind::scale, 8, 0, false},
                                                  {DType::int6, "int6", NumberKind::integer, 6, 0, false}};

constexpr NumberFormat number_format(DType d) { return kNumberFormats[static_cast<int>(d)]; }
constexpr bool is_float(DType d) { return number_format(d).kind == NumberKind::floating; }
constexpr bool is_integer(DType d) { return number_format(d).kind == NumberKind::integer; }
constexpr bool is_fp8(DType d) { return number_format(d).kind == NumberKind::fp8; }
constexpr int64_t dtype_bits(DType d) { return number_format(d).bits; }
constexpr int64_t dtype_bytes(DType d) { return dtype_bits(d) / 8; }  // undefined where codes share a byte
constexpr bool has_nibbles(DType d) { return dtype_bits(d) == 4; }
constexpr bool has_six_bits(DType d) { return dtype_bits(d) == 6; }
constexpr bool holds_scales(DType d) { return is_float(d) || number_format(d).kind == NumberKind::scale; }

// The code that the four bits of int4 or fp4_e2m1 stand for: a signed integer, or twice a number of E2M1.
constexpr int8_t kE2m1Codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr int8_t nibble_code(DType dtype, int nibble) {
  return dtype == DType::fp4_e2m1 ? kE2m1Codes[nibble] : static_cast<int8_t>(nibble < 8 ? nibble : nibble - 16);
}

constexpr int64_t kPanel = 16;         // output columns of a packed panel
constexpr int64_t kSixBitK = 16;       // k of a step of 6-bit codes
constexpr int64_t kSixBitBytes = 192;  // bytes of a step of a panel
constexpr int64_t kBlockTokens = 32;   // tokens of a KV block
constexpr int64_t kChunkTokens = 512;  // keys that one partial attention result covers; a multiple of kBlockTokens

// Left operand of a multiplication (activations), in the form that a tier's MMA reads.
//   f32_rows    float    [rows][stride]                stride in elements, >= dim rounded up to 4
//   bf16_rows   uint16_t [rows][stride]                as f32_rows, rounded to bf16
//   bf16_pairs  uint16_t [rows / 2][stride / 4][2][4]  two rows by four k in 16 bytes, as BFMMLA takes them
//   f16_rows    uint16_t [rows][stride]                as f32_rows, rounded to f16
//   i8_rows     int8_t   [rows][stride]                stride >= dim rounded up to 64
//   i8_pairs    int8_t   [rows / 2][stride / 8][2][8]  two rows by eight k in 16 bytes, as SMMLA takes them
//   f16_scaled  uint16_t [rows][stride]                f16 by a scale for each row; stride >= dim rounded up to 32
//   i16_rows    int8_t   [2 * rows][stride]            16 bits as two rows of i8_rows; stride as i8_rows'
//   i16_pairs   int8_t   [rows][stride / 8][2][8]      the same as a pair of i8_pairs
// Row r of a form in pairs is row r % 2 of pair r / 2; rows are allocated in pairs. Columns from dim up to the next
// multiple of 4 are zero: allocated zeroed and never written; of i8 and i16 up to a multiple of 64, of f16_scaled of
// 32, as `quantize` leaves them: matrices of different k share an operand.
//
// The i8 forms hold quantized values with one scale for each row and group of `group` columns (the last group may be
// shorter):
//   x[r][k] ~ scales[r * groups + k / group] * code[r][k],  groups = ceil(dim / group)
//   sums[r * groups + g] is the sum of the group's codes.
// scale = absmax / 127, code = x * (127 / absmax) rounded to nearest even; a group of zeros has scale 0. The absmax is
// the largest |x| by its bits, so that an infinity or a NaN makes the scale, and all products with it, not finite.
//
// The i16 forms split a row into digits of base 255, high and low ones, each a row of the i8 form: rows 2r and 2r + 1.
//   x[r][k] ~ scale * (255 * high[r][k] + low[r][k]),  scale = absmax / 32512 of each row and group
// The scales of row 2r are 255 * scale, those of row 2r + 1 scale; sums are of each row's own digits. 255 is odd, so
// that digits are -127 to 127, as codes of i8 are, without ties: q = x * (32512 / absmax) to nearest even, high = q /
// 255 to nearest, low = q - 255 * high. The error is 2^-16 of the group's absmax.
//
// f16_scaled has one group and no sums: scale = 2^(e - kScaledTop) where the row's absmax is in [2^e, 2^(e + 1)) and e
// at least kLeastExponent, code = x / scale rounded to nearest even. If the absmax is not finite, the codes are 0 and
// the scale is NaN.
enum class Form : int32_t {
  f32_rows,
  bf16_rows,
  bf16_pairs,
  f16_rows,
  i8_rows,
  i8_pairs,
  f16_scaled,
  i16_rows,
  i16_pairs
};
constexpr int kForms = 9;
constexpr bool is_quantized(Form f) { return f >= Form::i8_rows; }
constexpr int64_t form_bytes(Form f) {  // of an element
  return f == Form::f32_rows ? 4 : f == Form::i8_rows || f == Form::i8_pairs ? 1 : 2;
}
constexpr int64_t digits_of(Form f) { return f >= Form::i16_rows ? 2 : 1; }  // rows of the i8 form that a row takes
constexpr Form digit_form(Form f) {
  return f == Form::i16_rows ? Form::i8_rows : f == Form::i16_pairs ? Form::i8_pairs : f;
}
constexpr Form in_16_bits(Form f) { return f == Form::i8_pairs ? Form::i16_pairs : Form::i16_rows; }  // of an i8 form
struct Operand {
  void* data;
  int64_t stride;
  Form form;
  int64_t group = 0;
  float* scales = nullptr;
  int32_t* sums = nullptr;
};

constexpr float kDigitBase = 255, kDigitsTop = 32512;
// Codes of f16_scaled are below 2^5 in magnitude, rows and weights alike: sums of 32 products stay below 2^15.
constexpr int kScaledTop = 4, kLeastExponent = -100;
constexpr int64_t kScaledBlock = 32;

// How a tier packs matrices of one dtype, and the form of the operand that multiplies them.
//   W [n, k] is stored as  B[ceil(n / 16)][ceil(k / quantum)][16][quantum],  zeros beyond n and k.
// The quantum is 1 for f32; for 16-bit types 2 (4 bytes) where k is widened or multiplied pairwise, 4 (8 bytes) where
// MMLA reads it; for int8 4 or 8 (SMMLA). int4 and fp4 store two chunks of k in a byte: B[ceil(n / 16)][ceil(k / (2
// quantum))][16] [quantum], k chunk 2i in the low and 2i + 1 in the high nibbles, quantum as int8's. A stored code is
// code + bias, as an unsigned number where bias is not 0 (VPDPBUSD multiplies unsigned by signed): zeros beyond n and k
// are `bias` then. fp4 stores E2M1's bits, without bias.
//
// int6 stores sixteen k of a panel in 192 bytes. The 256 codes are in the order of int8's bytes and in four quarters:
// bytes 0 to 63 have the low four bits of quarters 0 and 1 as nibbles, bytes 64 to 127 those of quarters 2 and 3; bytes
// 128 to 191 have the high two bits of all four, quarter 0 lowest. The bias is kSixBitBias in every tier.
constexpr int32_t kSixBitBias = 32;
struct Layout {
  int32_t quantum;
  Form form;
  int32_t bias = 0;
};
constexpr int64_t packed_elements(int64_t n, int64_t k, int64_t quantum) {
  return (n + kPanel - 1) / kPanel * kPanel * ((k + quantum - 1) / quantum * quantum);
}
// Always inlined: a copy would be a weak symbol, of which the linker keeps one of any tier.
[[gnu::always_inline]] constexpr int64_t packed_bytes(DType dtype, int64_t n, int64_t k, int64_t quantum) {
  const int64_t together = has_six_bits(dtype) ? kSixBitK : has_nibbles(dtype) ? 2 * quantum : quantum;
  return packed_elements(n, k, together) * dtype_bits(dtype) / 8;
}

// Where int8's order of bytes has column `lane` of a panel and k, counted from the step's first.
constexpr int64_t place_in_step(int64_t lane, int64_t k, int64_t quantum) {
  return (k / quantum * kPanel + lane) * quantum + k % quantum;
}
// The code at a place of a step of int6.
constexpr int8_t six_bit_code(const uint8_t* step, int64_t place) {
  const int64_t quarter = place / 64, i = place % 64;
  const int low = step[quarter / 2 * 64 + i] >> quarter % 2 * 4 & 15, high = step[128 + i] >> quarter * 2 & 3;
  return static_cast<int8_t>((high << 4 | low) - kSixBitBias);
}

// A packed matrix W [n, k]. In a quantized dtype, w[n, k] = s * (code - zero) or s * code + offset, where s, zero and
// offset (float16) are those of column n's group k / group, stored by panel: [ceil(n / 16)][groups][16], groups =
// ceil(k / group). `group` is a multiple of 16 or >= k: one scale for a whole row. At most one of zeros and offsets is
// given; without them the matrix is symmetric. fp8 has neither.
//
// The operand's form decides how it is multiplied:
//   i8 forms (integers; a.group == group): for each group, ascending: i = sum of a_code * w_code, exact in
//   int32;
//     acc = fma(float(i) * a_scale, s, acc);  where there is a zero or an offset o (o = -s * zero, float32):
//     acc = fma(float(a_sum) * a_scale, o, acc).  acc starts at 0.
//   i16 forms (integers; a.group == group): as i8 forms, with fma(255, float(i of high digits), float(i of low))
//   for float(i), 255 * (a_sum of high digits) + (that of low ones) for a_sum, and the scale of low digits.
//   f16_scaled (of f16_scaled, without zeros and offsets, group >= k): every operation rounds to nearest even, those of
//     blocks of 32 k, the last one filled up with zeros, to f16, denormals kept. Chains of four: c = a[0] * w[0], then
//     c = fma(a[i], w[i], c); eight chains are added in pairs, their sums in pairs, and so on: no product is rounded
//     more than 4 + 3 times. Blocks, ascending: acc = acc + float(block) in float32. acc starts at 0; the sum is acc *
//     a_scale * s.
//     With the rounding of the activation that is (1 + 2^-11)^8, 2^-8 of the sum of magnitudes, as is bf16's of the
//     activation alone; kernel_check_f16_scaled.cpp has the rest of the bound.
//   float forms (fp8): weights are dequantized to `wide` (Kernels): w = s * code in float32, rounded to `wide`, and
//     multiplied as a matrix of that dtype is.
struct PackedWeights {
  const void* data;
  DType dtype;
  int64_t n, k;  // unpadded
  int64_t group = 0;
  const void* scales = nullptr;
  DType scale_dtype = DType::f32;  // f32, f16, bf16 or e8m0: 2^(byte - 128), half of OCP's, as fp4's codes are twice
  const int8_t* zeros = nullptr;
  const uint16_t* offsets = nullptr;
};

// swiglu_oai is only `gated`, and of both: gate = min(gate_v, 7), up = max(-7, min(7, up_v)),
// gate * sigmoid(1.702 gate) * (up + 1), the last one fused (gpt-oss).
// xielu is never gated: with the constants of the task's Xielu, positive * x^2 + linear * x above 0, and
// negative * (e^min(x, limit) - 1 - x) + linear * x up to 0 (Huang and Schlag 2024, arXiv:2411.13010).
enum class Activation : int32_t { none, silu, gelu_tanh, gelu_erf, relu, relu_squared, swiglu_oai, xielu };
struct Xielu {
  float positive, negative, linear, limit;
};

// What a gate of attention's results becomes before they are multiplied with it.
enum class Gate : int32_t { none, sigmoid, softplus };

// The epilogue of a tile of sums. v = sum + bias[n].
//   store       out[m, n]  = scale * v
//   add         out[m, n] += scale * v, fused             (out is f32_rows: the residual stream)
//   activate    out[m, n]  = activation(v)
//   gated       panels alternate gate, up (panel 2p is gate, 2p + 1 is up of columns 16p .. 16p + 15):
//               out[m, 16p + i] = activation(min(gate_limit, scale * gate_v)) * max(-limit, min(limit, up_v));
//               n counts packed columns, so slices are multiples of 32
//   softcap     out[m, n]  = softcap * tanh(scale * v / softcap)
enum class Epilogue : int32_t { store, add, activate, gated, softcap };

// out = epilogue(A W^T) for rows [row_begin, row_end) and packed columns [n_begin, n_end).
//   n_begin is a multiple of 16 (32 when gated); n_end is one too, or the last column of W (columns beyond n in the
//   last panel are not written).
//   Sums are float32, one accumulator per output element, added in the order of k (f32_rows: fused multiply-add, k
//   ascending; bf16_rows: VDPBF16PS, pairs of k ascending, the odd k of a pair first, or, in avx512_amx of a k that is
//   a multiple of 32, TDPBF16PS, steps of 32 k ascending, of each the sum of the even ones' and the odd ones' chains;
//   bf16_pairs: BFMMLA steps of 4 k, ascending). 16-bit weights are widened exactly.
struct GemmTask {
  Operand a;
  int64_t row_begin, row_end;
  PackedWeights w;  // w.n counts both halves when gated
  int64_t n_begin, n_end;
  const float* bias;  // [n] (gated: in packed order, [n rounded up to whole pairs of panels]) or null
  Epilogue epilogue;
  Activation activation;
  float scale;
  float softcap;
  Operand out;    // a float form; what follows quantizes to i8 forms
  void* scratch;  // gemm_scratch_bytes(k) of the calling thread's own memory, 64-byte aligned; null for float dtypes
  const Xielu* xielu = nullptr;                                   // of that activation
  float gate_limit = __builtin_inff(), limit = __builtin_inff();  // of gated; not of swiglu_oai, which has its own
};

// out[r] = scale * W[tokens[r]] for a packed W [n, k]; out float [rows][out_stride]. Codes: w = fma(s, code, o).
struct EmbedTask {
  const int32_t* tokens;
  int64_t rows;
  PackedWeights w;
  float scale;
  float* out;
  int64_t out_stride;
};

// RMSNorm:   y = x / sqrt(mean(x^2) + eps) * weight
// LayerNorm: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias      (bias may be null)
// Families with 1 + weight have the 1 added at load. `weight` may be null: all ones. Sums run over 16 lanes (lane i
// takes elements i, i + 16, ...), folded by halves: 8, 4, 2, 1, in every tier.
struct NormTask {
  const float* x;
  int64_t x_stride;
  int64_t row_begin, row_end;
  int64_t dim;
  const float* weight;
  const float* bias;
  float eps;
  bool layer_norm;
  Operand out;
};

// residual[r] += scale * norm(x[r]): norms that follow a layer (Gemma 2 and 3, OLMo2). `norm.out` is the residual,
// f32_rows.
struct AddNormTask {
  NormTask norm;
  float scale;
};

// Rows [row_begin, row_end) of float x [rows][x_stride] in the form of `out`: a copy, rounded or quantized as Operand
// says. Where `order` is given (act-order checkpoints), column k of `out` is column order[k] of x.
//   turned   room for `dim` floats, which may be x itself, a row alone; null: rows are not turned. Each group, as rows
//            of 64 columns, is multiplied with an orthogonal matrix, times the root of its columns, before it is
//            quantized, which spreads a large value over all of them (Ashkboos et al. 2024, QuaRot, arXiv:2404.00456):
//            the Kronecker product of Hartley's matrix of each odd prime factor of the number of rows, the largest
//            first, and Hadamard's matrix of the rest by 64. Results are stored in the order of their columns, but for
//            that of column 64 r + 16 i + 4 q + l, which stands in column 64 r + 16 q + 4 l + i. is_turnable(dim, the
//            group of `out`) holds
constexpr int kMostOddRows = 61;
// Whether rows of `dim` columns can be turned in groups of `group`, of which the last may be shorter: each is a
// multiple of 64, by primes up to kMostOddRows.
constexpr bool is_turnable(int64_t dim, int64_t group) {
  const auto fits = [](int64_t columns) {
    int64_t rows = columns / 64;
    if (columns % 64 != 0 || rows == 0) return false;
    for (int64_t factor = 2; factor <= kMostOddRows; ++factor)
      while (rows % factor == 0) rows /= factor;
    return rows == 1;
  };
  return group > 0 && group < dim ? fits(group) && (dim % group == 0 || fits(dim % group)) : fits(dim);
}
struct QuantizeTask {
  const float* x;
  int64_t x_stride;
  int64_t row_begin, row_end;
  int64_t dim;
  const int32_t* order;
  Operand out;
  float* turned = nullptr;
};

// Quantizes weights while they are loaded: float w [rows][k] to codes [rows][k] and scales [rows][ceil(k / group)], w ~
// s * code. 8 bits: s = absmax / 127. 4 bits: tries scales that put the largest weight at code -8 or beyond (so s may
// be negative), refits each to its codes, and takes the one with the least squared error over the group
// (ops/load/quantize_weights.h). Scales are rounded to scale_dtype before codes are.
//   importance   [k]: weights of the columns' squared errors in the search of scales; null: all 1
//   feedback     a and v, each [k][kFeedback]; null: codes are those nearest to w / s. Columns are then rounded one after
//                another, each to the code nearest to (w[j] - a[j].e) / s, where e = sum over columns c < j of
//                v[c] * (s * code[c] - w[c]): what the errors so far do to the activations' main directions
constexpr int kFeedback = 16;
struct RoundTask {
  const float* w;
  int64_t rows, k, group;
  DType dtype;  // of integers that are scaled to a largest code (NumberFormat)
  DType scale_dtype;
  int8_t* codes;
  float* scales;
  const float* importance = nullptr;
  const float* feedback = nullptr;
};

// RMSNorm over each head, in place: x float [rows][x_stride], heads x head_dim from the row's start.
struct HeadNormTask {
  float* x;
  int64_t x_stride;
  int64_t rows, heads, head_dim;
  const float* weight;  // [head_dim], or null
  float eps;
};

// Rotates the first rotary_dim values of each head, in place.
//   cos, sin   float [rows][rotary_dim / 2], the attention factor of yarn and longrope multiplied in
//   half-split pairs (i, i + rotary_dim / 2), or interleaved pairs (2i, 2i + 1)
struct RopeTask {
  float* x;
  int64_t x_stride;
  int64_t rows, heads, head_dim, rotary_dim;
  const float* cos;
  const float* sin;
  bool interleaved;
};

// One layer's KV cache. Keys of a block are packed as a matrix W [32 tokens, head_dim], values as W [head_dim, 32
// tokens], both in the tier's layout for `dtype`; quantized ones take one byte each in the order of the layout for
// `wide`. So the tiles that multiply weights also multiply the cache.
//   keys of (block, kv_head) start at keys + block * block_bytes + kv_head * head_bytes; values likewise.
//   Codes of 8 bits: key t of a block is scale[t] * code, float scale[32] standing behind the head's codes; absmax /
//   cache_top over the head and codes as Operand has them. Values likewise. In a cache of fp8 values alone are fp8: its
//   keys are int8 (key_dtype), because three bits of fraction in keys cost most (bench/results/quantization.md: the KL
//   divergence is 0.0065 nats with E4M3 keys by such scales, 0.0006 with values).
//   Blocks are zeroed when allocated to the process; what is stored beyond a context is finite.
//   latent, if not 0: only keys are stored, and the value of a token is the first `latent` numbers of its key
//   (multi-head latent attention: DeepSeek-AI 2024, arXiv:2405.04434); `values` is null.
//   value, if not 0: values are narrower than keys (MiMo-V2-Flash); their heads begin where wide ones would.
//   by_token: keys of a block are rows [block_keys][head_dim] that attention cannot multiply; gather_keys packs those
//   that it is to see. Fewer than 32, and as many scales, if a key stands for several tokens.
constexpr DType key_dtype(DType kv) { return is_fp8(kv) ? DType::int8 : kv; }
constexpr bool has_scales(DType kv) { return !is_float(kv); }
// The code of a token's largest magnitude: of fp8 1.75 * 2^6, which E4M3 and E5M2 have and codes of int8 are as large.
constexpr float cache_top(DType codes) { return is_fp8(codes) ? 112.0f : 127.0f; }
constexpr int64_t kv_head_bytes(DType kv, int64_t head_dim, int64_t keys = kBlockTokens) {
  return keys * (head_dim * dtype_bytes(kv) + (has_scales(kv) ? 4 : 0));
}
struct KvCache {
  char* keys;
  char* values;
  int64_t block_bytes;
  int64_t head_bytes;
  DType dtype;
  int64_t head_dim;    // a multiple of 16; smaller heads are padded with zeros
  int64_t latent = 0;  // a multiple of 16, at most head_dim
  bool by_token = false;
  int64_t value = 0;  // numbers of a value, at most head_dim, unpadded; 0: those of a key
  int64_t block_keys = kBlockTokens;

  int64_t value_dim() const { return latent ? latent : value ? (value + 15) / 16 * 16 : head_dim; }
};

// Stores rows of one kv head. k, v: float [rows][stride], head_dim (unpadded) values each, of v cache.value if that is
// not 0, rounded to nearest even; v is not read if the cache is latent.
//   slots[r] = block * 32 + offset of row r.
struct KvWriteTask {
  KvCache cache;
  const float* k;
  const float* v;
  int64_t stride;
  int64_t rows;
  int64_t head_dim;
  int64_t kv_head;
  const int32_t* slots;
};

// Packs keys of one kv head from a cache by token, so that the attention of a token sees those that were chosen for it.
//   from    by token, of `blocks`, as AttendTask's; to: packed, of the same dtype and head_dim, its block i at i
//   chosen  the key that becomes key i of `to`; null: key i itself
// Packs i in [begin, end), begin a multiple of 32, and zeros up to the end of the last block.
struct GatherTask {
  KvCache from, to;
  const int32_t* blocks;
  int64_t kv_head;
  const int32_t* chosen;
  int64_t begin, end;
};

// The scores that keys are chosen by for one token (DeepSeek-AI 2025, arXiv:2512.02556, the lightning indexer), of keys
// [begin, end), begin a multiple of 64:
//   scores[j] = sum over heads h, ascending, of weights[h] * max(least, q[h] . key[j])
//   cache    keys alone, of one head; blocks: as AttendTask's
//   q        float [heads][head_dim], rounded as attention's is; weights: float [heads]
//   scores   readable and writable up to the end of the last pair of blocks
// `scratch` as attend's, of attend_scratch_bytes(cache.head_dim).
struct IndexTask {
  KvCache cache;
  const int32_t* blocks;
  const float* q;
  const float* weights;
  int64_t heads, head_dim;
  int64_t begin, end;
  float* scores;
  void* scratch;
  float least = 0.0f;
};

// What attention adds to the score of a head's query at position i and a key at position j, by distance j - i.
//   values  [heads][stride()], of distances -(reach + 15) to reach + 15, those beyond reach as those at reach; null:
//   none
struct DistanceBias {
  const float* values;
  int64_t reach;

  int64_t stride() const { return 2 * (reach + 15) + 1; }
};

// What attention adds to the score of each row, token * group + head of the group, and key, from the key `first` on.
//   values  [rows][stride], readable, if not meaningful, up to the end of the last pair of blocks; null: none
// With a reach, each row's values are those of distances j - i from -(reach + 15) on instead, and keys farther back
// have that of the first.
struct KeyBias {
  const float* values = nullptr;
  int64_t stride = 0;
  int64_t first = 0;  // a multiple of two blocks
  int64_t reach = 0;  // 0: values are by key
};

// Attention of one slice's tokens [token_begin, token_end) for one kv head and its `group` query heads, over the paged
// cache. Token t has position first_position + t; it sees keys j <= its position, or all `keys` keys where that is not
// 0 (encoders); and |position - j| < window when window > 0, or those with j / segment = position / segment when
// segment > 0.
//   q        float [tokens][q_stride], head h of token t at t * q_stride + (kv_head * group + h) * head_dim
//   out      columns of head h from (kv_head * group + h) * head_dim on; of a latent cache from h * cache.latent on,
//            of narrower values from h * cache.value on
//   score    = log2(e) * (softcap ? softcap * tanh(scale * q.k / softcap) : scale * q.k) + log2(e) * bias, the bias
//              added with one rounding; a weight is 2^(score - max)
// Keys come in chunks of kChunkTokens counted from position 0. Within a chunk: online softmax over pairs of blocks,
// ascending: 64 keys, of which a row takes the blocks that it sees. A chunk gives (max, sum, weighted values); chunks
// are folded in ascending order. So a result depends on positions alone, not on which thread computes a chunk. Products
// are summed as gemm sums them, keys ascending within a pair; weights in 16 lanes (key j in lane j % 16). A code's
// scale multiplies the score's sum, or the weight. Where the layout takes a bf16 form, the scaled q and the weights are
// rounded to bf16 for the products, the sum of the weights is not. A weight of 0 times a value that is not finite is
// NaN. attend computes chunks [chunk_begin, chunk_end) and either
//   partials == null: folds them (all chunks that any of the tokens sees must be in the range), divides, and writes
//                     rows t, columns of the heads, of `out`;
//   else: chunk_end == chunk_begin + 1, and writes float partials[token - token_begin][head][2 + cache.value_dim()]
//         = {max, sum, values...} (max = -inf, sum = 0, values 0 where nothing is visible).
// `scratch` is attend_scratch_bytes(head_dim) of the calling thread's own memory, 64-byte aligned.
struct AttendTask {
  KvCache cache;
  const int32_t* blocks;  // block id of keys 32 i .. 32 i + 31
  const float* q;
  int64_t q_stride;
  int64_t head_dim;  // unpadded
  int64_t kv_head, group;
  int64_t token_begin, token_end, first_position;
  int64_t window;  // 0: none
  int64_t keys;    // 0: those up to the token's own
  float scale, softcap;
  const float* sinks;  // [heads], one more logit in the denominator, or null
  DistanceBias bias;
  int64_t chunk_begin, chunk_end;
  float* partials;
  Operand out;
  int64_t out_row;  // row of `out` that token 0 has
  void* scratch;
  // Gates, strided like q, whose `gate_kind` results are multiplied with; null: they are not. gates: of a head, 1 for
  // all its numbers or head_dim.
  const float* gate = nullptr;
  KeyBias key_bias{};   // instead of `bias`
  int64_t segment = 0;  // 0: none
  Gate gate_kind = Gate::none;
  int64_t gates = 0;
  // The first blocks, two at the most, and the kv head that the caller is likely to attend to next, in the same cache:
  // they are prefetched while the last ones are read.
  const int32_t* next_blocks = nullptr;
  int64_t next_count = 0, next_kv_head = 0;

  // The first key that a token at this position sees.
  int64_t first_key(int64_t position) const {
    if (segment > 0) return position / segment * segment;
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
};

// Folds partials[chunk][token][head][2 + cache.value_dim()] of `chunks` chunks in order and writes `out` as attend
// does. Takes the same task; `partials` points at the first chunk's.
struct MergeTask {
  AttendTask attend;
  int64_t chunks;
  int64_t chunk_stride;  // floats between chunks
};

// Statistics and passes over one row of logits, n long; any n >= 1. Used by sampling/. With a mask, only logits count
// whose bit is set: bit i % 32 of word i / 32.
struct LogitRow {
  const float* x;
  int64_t n;
  const uint32_t* mask = nullptr;
};
constexpr int64_t kMaximumLogits =
    64;  // logits that one of a row's maxima covers; the output head is cut at multiples of it
constexpr int64_t maxima_of(int64_t n) { return (n + kMaximumLogits - 1) / kMaximumLogits; }
struct RowMax {
  float value;
  int32_t index;  // lowest index of the largest value
  bool nan;       // any NaN in the row
};

// Chooses the experts of rows [row_begin, row_end) of a router's logits, float [rows][stride], `experts` of each.
//   score       softmax: exp(logit - max) / sum, summed in 16 lanes as row_exp_sum does; sigmoid: of each logit.
//               sqrt_softplus: the root of its softplus. softmax_chosen: as softmax, of the chosen alone;
//               sigmoid_chosen: as sigmoid, so the correction is added to logits. sparse_mixer
//               (Phi-3.5-MoE): 1 / sum of exp(logit - its own) over the experts not chosen before it that are nearer to
//               it than 2 * jitter * max(|logit|, its own)
//   correction  [experts], added to the scores to choose by, not to the weights; infinite of experts that are always
//               chosen; or null
//   groups      if more than 1: only the `groups_kept` groups of experts / groups neighbours are chosen from whose
//               `group_best` best, added best first, have the largest sums
// The `active` best are chosen, best first, of equal ones the lowest: by the logits themselves where there is neither
// correction nor group. A weight is the score; renormalized: divided by (the sum of the chosen, best first, +
// sum_epsilon), as softmax_chosen always is; times `scale`. A row with a NaN chooses expert 0 again and again.
enum class Score : int32_t { softmax, sigmoid, softmax_chosen, sparse_mixer, sqrt_softplus, sigmoid_chosen };
struct RouteTask {
  const float* logits;
  int64_t stride;
  int64_t row_begin, row_end;
  int64_t experts, active;
  int64_t slots;  // stride of what is chosen, and of the weights
  Score score;
  const float* correction;
  int64_t groups, groups_kept, group_best;
  bool renormalized;
  float sum_epsilon, scale, jitter;
  int32_t* chosen;  // [rows][slots]
  float* weights;   // [rows][slots]
  float* scratch;   // [4 * experts + groups] of the calling thread's own memory
};

// The weighted sums of results, of rows [row_begin, row_end) and columns [column_begin, column_end):
//   v = sum over j, ascending, of weights[row][j] * y[place[row][j]], fused, from 0
//   out[row] += scale * v, fused, if `add`; otherwise out[row] = scale * v
struct CombineTask {
  const float* y;  // [..][y_stride]: columns from column_begin on
  int64_t y_stride;
  int64_t row_begin, row_end, slots;
  const float* weights;  // [rows][slots]
  const int32_t* place;  // [rows][slots]: rows of y
  int64_t column_begin, column_end;
  float scale;
  bool add;
  Operand out;  // f32_rows
};

// A short convolution over neighbouring tokens of one sequence, of columns [column_begin, column_end), of which the
// first is a multiple of 16:
//   u[t] = b[t] * x[t], or b[t] without x
//   s[t] = bias + sum over j, ascending, of taps[j] * u[t - width + 1 + j], fused
//   row out_row + t - first_output of `out` = c[t] * s[t], or silu(s[t]) without c, for rows t from first_output on;
//   or s[t] itself if `plain`, which has no c
// The u before the first row are the state; it becomes the last u of the rows.
struct ShortConvTask {
  float* b;            // [rows][stride]; u replaces it
  const float *c, *x;  // [rows][stride], or null
  int64_t stride, rows;
  int64_t first_output;
  int64_t width;
  const float* taps;  // [width][channels]
  const float* bias;  // [channels], or null
  float* state;       // [width - 1][channels]
  int64_t channels;
  int64_t column_begin, column_end;
  Operand out;  // a float form
  int64_t out_row;
  bool plain = false;
};

// A recurrence keeps a head's state S [rows][columns] as scale * kept, by panels of 16 columns: kept [rows][16], zeros
// beyond `columns`, and 16 floats of which the first is the scale. The scale is the same in all panels of a head, but
// each has its own, so that threads may divide a head's panels; and with it a panel's size is no power of two, or
// panels that are computed together would share sets of a cache. A token's decay multiplies the scale alone, which
// saves an operation on each value of the state and token; where that makes it less than kLeastScale, kept is
// multiplied instead:
//   forget(decay): d = decay * scale; if d < kLeastScale then kept = d * kept, scale = 1; otherwise scale = d
// So zeros are a state before its first token. kept is up to 1 / kLeastScale times S: finite while |S| is below 2^67.
constexpr float kLeastScale = 0x1p-60f;
constexpr int64_t state_panels(int64_t columns) { return (columns + kPanel - 1) / kPanel; }
constexpr int64_t panel_floats(int64_t rows) { return (rows + 1) * kPanel; }
constexpr int64_t state_floats(int64_t rows, int64_t columns) { return state_panels(columns) * panel_floats(rows); }

// Mamba2's recurrence over neighbouring tokens of one sequence, of panels [panel_begin, panel_end), counted through all
// heads, which have state_panels(head_dim) each. A head has its own state [state_dim][head_dim]; b and c are those of
// its group, which heads / groups neighbours share:
//   dt = min(dt_most, max(dt_least, softplus(dt_scale * dt + dt_bias))); forget(exp(-dt * exp(a_log)))
//   kept[n][p] = fma(b[n], dt / scale * x[p], kept[n][p])
//   y[p] = fma(d, x[p], scale * sum over n, ascending, of c[n] * kept[n][p], fused, from 0)
// A cut between any rows changes no bit.
struct Mamba2Task {
  float* x;            // [rows][stride]: [heads][head_dim]; y replaces it
  const float *b, *c;  // [rows][stride]: [groups][state_dim]
  int64_t stride;
  const float* dt;  // [rows][dt_stride]: [heads]
  int64_t dt_stride, rows;
  int64_t heads, groups, head_dim, state_dim;
  int64_t panel_begin, panel_end;
  const float *dt_bias, *a_log, *d;  // [heads]
  float dt_scale, dt_least, dt_most;
  float* state;  // [heads][state_floats(state_dim, head_dim)]
};

// The selective scan of Mamba (Gu and Dao 2023, arXiv:2312.00752) over neighbouring tokens of one sequence, of channels
// [channel_begin, channel_end), of which the first is a multiple of 16. Each channel has a state h of its own; for each
// row t, ascending:
//   dt = softplus(dt[t]);  h[n] = fma(b[t][n], dt * x[t], 2^(dt * a[n]) * h[n])
//   y = fma(d, x[t], sum over n, ascending, of c[t][n] * h[n], fused, from 0)
// Row out_row + t - first_output of `out` is y * silu(z[t]), for rows t from first_output on. A cut between any rows
// changes no bit. `a` and the state are in panels of 16 channels, whose last one has numbers of no channel behind it.
struct SelectiveScanTask {
  const float* x;  // [rows][x_stride]
  int64_t x_stride;
  const float *dt, *z, *b, *c;  // [rows][stride]: of each channel, and [state_dim]
  int64_t stride, rows;
  int64_t first_output;
  int64_t state_dim;
  int64_t channel_begin, channel_end;
  const float* a;  // [panels][state_dim][16]: -log2(e) * exp(a_log)
  const float* d;  // [channels]
  float* state;    // [panels][state_dim][16]
  Operand out;     // a float form
  int64_t out_row;
};

// The real-gated linear recurrent unit (De et al. 2024, arXiv:2402.19427, equations 1 to 4) over neighbouring tokens of
// one sequence, of channels [channel_begin, channel_end), of which the first is a multiple of 16. Each channel has a
// state h of one number; for each row t, ascending:
//   a = e^(rate * sigmoid(r[t]));  h = fma(a, h, sqrt((1 - a) * (1 + a)) * (sigmoid(i[t]) * x[t]))
// with a root of 1 in row 0 if the sequence `begins` there. Row out_row + t - first_output of `out` is
// h * gelu_tanh(y[t]), for rows t from first_output on. A cut between any rows changes no bit.
struct RgLruTask {
  const float* x;  // [rows][x_stride]
  int64_t x_stride;
  const float *r, *i, *y;  // [rows][stride]
  int64_t stride, rows;
  int64_t first_output;
  bool begins;
  int64_t channel_begin, channel_end;
  const float* rate;  // [channels]: -8 * softplus of the parameter; at most 0
  float* state;       // [channels], to whole panels of 16
  Operand out;        // a float form
  int64_t out_row;
};

// Token shift (Peng et al. 2023, arXiv:2305.13048): rows of one sequence, each mixed with the row before it, of columns
// [column_begin, column_end), of which the first is a multiple of 16. Row out_row + t - first_output of `out` is
//   fma(mix, x[t - 1] - x[t], x[t])
// for rows t from first_output on.
struct TokenShiftTask {
  const float* x;  // [rows][stride]
  int64_t stride, rows;
  int64_t first_output;
  const float* before;  // [columns]: the row before the first; null: zeros
  const float* mix;     // [columns]
  int64_t column_begin, column_end;
  Operand out;  // a float form
  int64_t out_row;
};

// Rows [row_begin, row_end) of float x [rows][stride], with a function of each number, in the form of `out`.
enum class Squash : uint8_t { none, tanh, sigmoid };
struct SquashTask {
  const float* x;
  int64_t stride;
  int64_t row_begin, row_end;
  int64_t dim;
  Squash squash;
  Operand out;  // a float form
};

// The time mixing of RWKV-7 (Peng et al. 2025, arXiv:2503.14456, section 4.1) over neighbouring tokens of one sequence,
// of one head of `dim` numbers. For each row t, ascending, with products of numbers side by side:
//   decay = e^(-e^-0.5 * sigmoid(w));  rate = sigmoid(a);  v += sigmoid(mix) * (first - v), with `mix` alone
//   removal = (k * k_k) / max(|k * k_k|, 1e-12);  k += (rate - 1) * k_a * k
//   S = diag(decay) S + (rate * removal) (-S^T removal)^T + k v^T, of S before the row on both sides;  y = S^T r
//   y = layernorm(y) * norm + norm_bias;  y += (sum of r * k * r_k) * v
// Row out_row + t - first_output of `out` is y * g, for rows t from first_output on. The state S [dim of k][dim of v]
// lies in panels of 16 columns, zeros beyond `dim`. Sums over the state run over the dimensions of k, ascending, fused;
// others are NormTask's. A cut between any rows changes no bit.
struct Rwkv7Task {
  const float *r, *w, *k, *v, *a, *g;  // [rows][stride]
  const float* mix;                    // [rows][stride], or null
  const float* first;                  // [rows][first_stride], with `mix` alone: the first layer's values
  int64_t stride, first_stride;
  int64_t rows, dim;
  int64_t first_output;
  const float *k_k, *k_a, *r_k, *norm, *norm_bias;  // [dim]
  float eps;
  float* state;  // [rwkv7_state_floats(dim)]
  float* room;   // [rows][rwkv7_room_floats(dim)]
  Operand out;   // a float form
  int64_t out_row, out_column;
};
constexpr int64_t rwkv7_state_floats(int64_t dim) { return state_panels(dim) * dim * kPanel; }
constexpr int64_t rwkv7_room_floats(int64_t dim) { return 6 * state_panels(dim) * kPanel; }

// The gate and norm behind a recurrence, of rows [row_begin, row_end), with g = silu(z_scale * z), or its sigmoid:
//   out = rmsnorm(y * g) * weight if gate_first, rmsnorm(y) * weight * g otherwise; y * g without weight
// The norm is over each of `groups` equal parts of a row; sums are NormTask's.
struct GatedNormTask {
  float* y;  // [rows][y_stride]; y * g may replace it
  int64_t y_stride;
  const float* z;  // [rows][z_stride]
  int64_t z_stride;
  int64_t row_begin, row_end;
  int64_t dim, groups;
  const float* weight;  // [dim], or null
  float eps;
  bool gate_first;
  float z_scale;
  Operand out;             // a float form
  int64_t out_row;         // row of `out` that row_begin has
  int64_t out_column = 0;  // column of `out` that column 0 has
  bool by_sigmoid = false;
};

// The gates of the gated delta rule, of rows [rows][stride]:
//   decay = exp(-exp(a_log) * softplus(a + dt_bias)), beta = beta_scale * sigmoid(b)
//   or, if least is not 0, decay = exp(least * sigmoid(exp(a_log) * (a + dt_bias)))
struct DeltaGatesTask {
  const float *a, *b;  // [heads][channels], [heads]
  int64_t stride, rows;
  int64_t heads, channels;  // channels: decays of a head
  const float* a_log;       // [heads]
  const float* dt_bias;     // [heads][channels]
  float* decay;             // [rows][heads][channels]
  float* beta;              // [rows][heads]
  float beta_scale = 1.0f;
  float least = 0.0f;
};

// The gated delta rule over neighbouring tokens of one sequence, of one value head. For each row t, ascending, with S
// the state [key_dim][value_dim]:
//   change = beta[t] * (v[t] - decay[t] * S^T k[t]);  S = decay[t] * S + k[t] change^T;  out[t] = S^T q[t]
// that is, with told = kept^T k[t] before forget(decay[t]), and d there:
//   kept += k[t] (beta[t] / scale * (v[t] - d * told))^T;  out[t] = scale * kept^T q[t]
// With a decay for each channel of the keys (Kimi Team 2025, arXiv:2510.26692, equation 1), kept is S, whose scale
// becomes 1:
//   S = diag(decay[t]) S;  S += k[t] (beta[t] * (v[t] - S^T k[t]))^T;  out[t] = S^T q[t]
// Sums run over the dimensions of the keys, ascending, fused: the same bits however rows are cut into tasks. A task may
// have some panels of the head alone: columns of values and results, and the state from the first panel on.
struct DeltaRuleTask {
  const float *q, *k;  // [rows][qk_stride]
  int64_t qk_stride;
  const float* v;  // [rows][v_stride]
  int64_t v_stride;
  const float* decay;  // [rows] or, by channel, [rows][key_dim]; decay_stride apart
  int64_t decay_stride;
  bool by_channel;
  const float* beta;  // [rows], beta_stride apart
  int64_t beta_stride;
  int64_t rows, key_dim, value_dim;
  float* state;  // [state_floats(key_dim, value_dim)]
  float* out;    // [rows][out_stride]; may be v
  int64_t out_stride;
};

struct Kernels {
  const char* tier;
  Layout layout[kDTypes];  // by DType; of fp8: as `wide`'s
  DType wide;              // what fp8 weights are dequantized to: f32 or bf16
  bool scales_halves;      // matrices of f16 and bf16 are faster as f16_scaled

  void (*gemm)(const GemmTask&);
  int64_t (*gemm_scratch_bytes)(int64_t k);
  void (*quantize)(const QuantizeTask&);
  void (*round)(const RoundTask&);
  void (*embed)(const EmbedTask&);
  void (*norm)(const NormTask&);
  void (*add_norm)(const AddNormTask&);
  void (*head_norm)(const HeadNormTask&);
  void (*rope)(const RopeTask&);
  void (*write_kv)(const KvWriteTask&);
  int64_t (*attend_scratch_bytes)(int64_t head_dim_padded);
  void (*attend)(const AttendTask&);
  void (*merge)(const MergeTask&);
  void (*gather_keys)(const GatherTask&);
  void (*index_scores)(const IndexTask&);
  void (*route)(const RouteTask&);
  void (*combine)(const CombineTask&);
  void (*short_conv)(const ShortConvTask&);
  void (*mamba2)(const Mamba2Task&);
  void (*selective_scan)(const SelectiveScanTask&);
  void (*rg_lru)(const RgLruTask&);
  void (*token_shift)(const TokenShiftTask&);
  void (*squash)(const SquashTask&);
  void (*rwkv7)(const Rwkv7Task&);
  void (*gated_norm)(const GatedNormTask&);
  void (*delta_gates)(const DeltaGatesTask&);
  void (*delta_rule)(const DeltaRuleTask&);

  // Largest value of x[0 .. n).
  RowMax (*row_max)(const float* x, int64_t n);
  // maxima[maxima_of(n)]: the largest of each 64 logits, NaN where there is one among them, -inf where none counts.
  void (*row_maxima)(const LogitRow& row, float* maxima);
  // Sum of exp((x[i] - max) * inverse_temperature), 16 lanes folded as NormTask says, terms that do not count 0; out
  // (may be null) gets the terms.
  float (*row_exp_sum)(const LogitRow& row, float max, float inverse_temperature, float* out);
  // Indices (ascending) and values of all x[i] >= threshold; returns their count, writes at most `room`. Blocks of 64
  // logits whose maximum is below the threshold are not read; maxima may be null, or of the row without its mask.
  int64_t (*row_collect)(const LogitRow& row, const float* maxima, float threshold, int32_t* index, float* value,
                         int64_t room);

  // The peak of this CPU, for bench/ and `forearm doctor` (ops/machine_peak.h). The results only keep compilers from
  // dropping the work.
  //   read_all loads every byte of data[0 .. bytes) once, bytes a multiple of 4096.
  //   multiply_rounds does `rounds` rounds of multiply-add on registers alone, by the instruction that multiplies
  //   operands of this form (one that a layout of the tier has), and adds to *operations what it did: 2 a multiply-add.
  float (*read_all)(const void* data, int64_t bytes);
  float (*multiply_rounds)(Form form, int64_t rounds, int64_t* operations);
};

// The dtype in which a matrix is kept in memory when `kernels` multiplies it.
constexpr DType kept_as(DType dtype, const Kernels& kernels) {
  return kernels.scales_halves && (dtype == DType::f16 || dtype == DType::bf16) ? DType::f16_scaled : dtype;
}

// The table of the tier in use, chosen at the first call from what the CPU has or by FOREARM_TIER, and tested then
// (self_test.h).
// Throws std::runtime_error, naming the value and the tiers this CPU runs, when FOREARM_TIER can't be run here.
const Kernels& kernels();
// The table of a tier by name; null if this build or this CPU does not have it. Tests and benchmarks.
const Kernels* find_tier(const char* name);
// Names of the tiers that this CPU runs, best first, null-terminated.
const char* const* tier_names();

}  // namespace forearm
