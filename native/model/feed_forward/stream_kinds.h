// What layers have beside their mixer and feed-forward, as a part of the config (config.h): further embeddings, several
// residual streams.
#pragma once
#include <cstdint>
#include <vector>

namespace forearm {

// A second embedding of each token: per_layer of app/forearm/model/families/config.py.
struct PerLayerKind {
  int64_t width;  // of one layer
  float scale;    // of the rows of the table
  int64_t vocab;  // rows of the table; tokens beyond have the first one's
};

// Several residual streams: AltUp of app/forearm/model/families/recurrences.py.
struct AltUpKind {
  static constexpr int64_t kMost = 8;

  int64_t streams;
  int64_t laurel;  // rank of the path beside attention
  bool scaled;     // the first stream is multiplied with a vector for the embedding of each layer
};

// Several residual streams: HyperConnections of app/forearm/model/families/recurrences.py.
struct HyperKind {
  static constexpr int64_t kMost = 8;

  int64_t streams;
  int64_t rounds;  // that make the matrix of the streams doubly stochastic; 0: they are not mixed
  float eps;
  float most = 2.0f;  // of the weight of a half's result
  int64_t rank = 0;   // of the gates of every number of the streams, whose mean a half reads; 0: streams are summed

  int64_t scales() const { return rounds ? 3 : 2; }
  int64_t weights() const { return (rounds ? 2 + streams : 2) * streams; }
};

// Embeddings of the last tokens together, which are added to residual streams: HashedNgrams of
// app/forearm/model/families/recurrences.py.
struct NgramKind {
  int64_t heads;                     // of each number of tokens
  int64_t width;                     // of all heads' embeddings
  int64_t taps;                      // of the convolution
  int64_t end;                       // the token that no longer one goes beyond
  std::vector<int64_t> multipliers;  // of the token itself, and of those before it
  std::vector<int64_t> sizes;        // rows of each head in the table
  int64_t rows;                      // of the table

  int64_t tokens() const { return static_cast<int64_t>(multipliers.size()); }
  int64_t all_heads() const { return (tokens() - 1) * heads; }
  int64_t tail_rows() const { return (taps - 1) * tokens(); }  // the convolution's taps are as far apart
};

}  // namespace forearm
