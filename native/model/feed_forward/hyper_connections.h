// Hyper-connections whose matrix of residual streams is doubly stochastic (Zhu et al. 2024, arXiv:2409.19606; Xie et
// al. 2025, arXiv:2512.24880): each half of a layer reads a weighted sum of several streams, its result is added to
// each by a weight, and the streams are mixed with each other. The weights are functions of the token's streams.
//
// With streams s[i] of a row, W [(2 + streams) * streams, streams * hidden], b as long and a of three numbers:
//   u = W s / sqrt(mean(s^2) + norm_eps), in parts for pre, post and the matrix M of the streams
//   pre[i] = sigmoid(a[0] u + b) + eps,  post[i] = 2 sigmoid(a[1] u + b)
//   M[i] = softmax over j of (a[2] u + b) + eps, then its columns and rows are divided by their sums + eps, `rounds`
//   times, columns first and last
//   the half reads x = sum over i of pre[i] s[i] and gives y;  s[j] = post[j] y + sum over i of M[i][j] s[i]
// The embedded row is each of the first streams; the final norm reads such a sum by pre of its own.
//
// Or (HyperKind::rank, Qwen4-Exp), with n[i] = norm(s[i]) of weights of the stream's own, all of them side by side n:
//   g = sigmoid(W_up silu(W_down n / streams)), post[i] = 2 sigmoid((W n)[i] / streams)
//   the half reads the mean of g[i] n[i], without another norm;  s[j] += post[j] y
// and so does the output head, without a final norm.
#pragma once
#include <vector>

#include "model/feed_forward/ngram_embeddings.h"
#include "model/step/step.h"

namespace forearm {

class HyperConnections {
 public:
  // Of a layer: of each half rows and multiplication twice.
  static constexpr int64_t kPhases = 8 + NgramEmbeddings::kPhases;

  // All arguments must outlive this. Throws std::invalid_argument if a matrix is missing or has a wrong size.
  HyperConnections(const Weights& weights, const States& states, Step& step);

  // Floats of a row's sums.
  static int64_t sums(const Config& config);

  // Makes the streams of the embedded rows, and the residual that the first layer reads; ends with a barrier.
  void begin(StepWalk& w);
  // Adds the projected result of a half of a layer to the streams, and makes the residual that the next half, or the
  // final norm, reads; ends with a barrier. half: 2 * layer, of the feed-forward 1 more. Returns null: nothing is left
  // to be added.
  const Norm* join(StepWalk& w, size_t half);

 private:
  // What weighs the streams of a row before a half.
  struct StreamWeights {
    float pre[HyperKind::kMost], post[HyperKind::kMost], mix[HyperKind::kMost][HyperKind::kMost];
  };

  Range columns_of(int64_t part) const;
  float* stream(int64_t i, int64_t row) const;
  void keep_logit_rows(const StepWalk& w) const;
  template <class Work>
  void each_part(const StepWalk& w, const Work& work) const;
  void add_up(size_t half, int64_t row, int64_t part) const;
  void mix(int64_t row, Range columns) const;
  void weigh(size_t half, int64_t row, StreamWeights& own) const;
  void balance(const float* logits, StreamWeights& own) const;
  void collapse(const StepWalk& w, size_t half) const;
  void read_streams(StepWalk& w, size_t half);
  void gate(StepWalk& w, size_t half);
  void multiply_gates(StepWalk& w, size_t half);
  float inject(size_t half, int64_t stream, int64_t row) const;

  struct Gates {
    const Linear *down = nullptr, *up = nullptr;
  };

  const Weights& weights_;
  Step& step_;
  NgramEmbeddings ngrams_;
  std::vector<Gates> gates_;                         // by half, the last of the head; empty: streams are summed
  const int64_t streams_, hidden_, stride_, parts_;  // stride_: columns of a stream
};

}  // namespace forearm
