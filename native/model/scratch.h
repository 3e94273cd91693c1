// Everything a step writes besides the KV cache, allocated once for the largest step.
//
// Rows are an odd number of 64-byte lines apart: at a power of two they would share a few sets of the caches.
#pragma once
#include <array>
#include <vector>

#include "model/config.h"
#include "model/memory.h"
#include "model/weights/weights.h"

namespace forearm {

// Up to so many rows and values every member prepares all of them for itself: cheaper than waiting for others.
constexpr int64_t kOwnRows = 4, kOwnValues = 16384;

constexpr int64_t odd_lines(int64_t columns) { return ((columns + 15) / 16 | 1) * 16; }

constexpr size_t kForms = 7;

// What a matrix needs of the rows that it is multiplied with.
struct MatrixInput {
  Role role;
  int64_t k;
  Form form;
  int64_t groups;  // of a row, where the form is quantised
  bool direct;     // what comes before can write the form by itself; else it writes floats, and rows are prepared
  bool codes;      // weights are codes, which are widened or multiplied in scratch of the member
};
// Of every matrix that rows of a step are multiplied with. Throws std::invalid_argument if one has no format.
// any_tier: for the largest form that some tier takes, not for that of the tier in use.
std::vector<MatrixInput> matrix_inputs(const Config& config, const Formats& formats, bool any_tier = false);

class Carver;

// Rows that matrices are multiplied with, in each form that one of the matrices takes.
class Inputs {
 public:
  void need(const MatrixInput& input);
  // How `matrix` takes them.
  Operand operand(const Matrix& matrix) const;
  int64_t columns() const { return columns_; }

 private:
  friend class Carver;
  int64_t columns_ = 0;
  std::array<int64_t, kForms> groups_{};  // most groups of a row; 0: the form is not needed
  std::array<Operand, kForms> forms_{};
};

// One place of the model where rows are multiplied: as they come out of what is before, and as matrices take them.
struct Site {
  Operand raw;              // [rows, columns], f32_rows
  Inputs shared;            // all rows
  std::vector<Inputs> own;  // by member: its own copy of up to kOwnRows rows
  bool prepares = false;    // some matrix does not take rows as what comes before could write them

  // True if what comes before writes the form of `matrix` by itself; else it writes `raw`, and rows are prepared.
  static bool is_direct(const Matrix& matrix) { return !is_quantized(matrix.form()) && !matrix.format.ordered; }
  Operand target(const Matrix& matrix) const { return is_direct(matrix) ? shared.operand(matrix) : raw; }
};

class Scratch {
 public:
  Scratch(const Config& config, const Limits& limits, const std::vector<MatrixInput>& inputs, int64_t padded_head_dim,
          int threads);

  int64_t bytes() const { return region_.bytes(); }
  // The same before anything is allocated. any_tier: as of matrix_inputs.
  static int64_t bytes_for(const Config& config, const Limits& limits, const Formats& formats, int threads,
                           bool any_tier);

  Operand residual;                    // [step_tokens, hidden], f32_rows: the residual stream
  Operand qkv;                         // [step_tokens, QkvColumns], f32_rows
  Operand projected;                   // [step_tokens, hidden], f32_rows: what a norm follows; positions, types
  Operand logits;                      // [step_logit_rows, Config::out_columns()], f32_rows
  Operand maxima;                      // [step_logit_rows, maxima_of(vocab_size)]: row_maxima of the logits
  Site stream;                         // [step_tokens or step_logit_rows, hidden]: raw is the residual
  Site attention;                      // [step_tokens, heads * head_dim]
  Site activated;                      // [step_tokens, width of the widest feed-forward]
  std::vector<float*> cosines, sines;  // by rope: [step_tokens, rotary_dim / 2]
  int32_t* slots;                      // [step_tokens]
  float* partials;                     // [partial_floats]: attention of one chunk of keys each
  int64_t partial_floats;

  // Of one member: a row [hidden], and what attend, gemm and sample work in.
  float* row(int member) const { return reinterpret_cast<float*>(own_row_ + member * own_row_bytes_); }
  void* attend(int member) const { return own_attend_ + member * own_attend_bytes_; }
  void* gemm(int member) const { return own_gemm_ + member * own_gemm_bytes_; }
  void* sampler(int member) const { return own_sampler_ + member * own_sampler_bytes_; }

 private:
  Scratch() = default;
  // Returns the bytes of all pieces; `base` null: nothing is there yet.
  int64_t carve(char* base, const Config& config, const Limits& limits, int threads);
  void carve_sites(Carver& carver, const Limits& limits);
  void need(const Config& config, const Limits& limits, const std::vector<MatrixInput>& inputs, int64_t padded_head_dim,
            int threads);

  char *own_row_, *own_attend_, *own_gemm_, *own_sampler_;
  int64_t own_row_bytes_, own_attend_bytes_, own_gemm_bytes_ = 0, own_sampler_bytes_;
  Region region_;
};

}  // namespace forearm
