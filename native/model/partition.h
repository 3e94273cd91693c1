// The division of columns among the team: each member has fixed columns of every matrix, so that it reads the pages
// that it has packed. The division never changes a result.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/config.h"

namespace forearm {

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Returns part `index` of `parts` of the range 0 .. count - 1, cut at multiples of `unit`.
inline Range share(int64_t count, int64_t unit, int64_t index, int64_t parts) {
  const int64_t units = (count + unit - 1) / unit;
  return {std::min(units * index / parts * unit, count), std::min(units * (index + 1) / parts * unit, count)};
}

// The team, divided into ranks. A rank's cores belong to one NUMA node. Its memory holds the columns of the rank's
// members, which follow each other in every matrix, and the keys and values of its heads.
class Ranks {
 public:
  // Members of each rank. Throws std::invalid_argument if there is no rank, or one without members.
  explicit Ranks(const std::vector<int>& threads);
  // One rank of all. Not explicit: a number of threads is a team.
  Ranks(int threads) : Ranks(std::vector<int>{threads}) {}

  bool operator==(const Ranks& other) const { return rank_ == other.rank_; }
  int count() const { return static_cast<int>(members_.size()); }
  int threads() const { return static_cast<int>(rank_.size()); }
  int of(int member) const { return rank_[static_cast<size_t>(member)]; }
  Range members(int rank) const { return members_[static_cast<size_t>(rank)]; }
  // Returns the member that comes `step` after this one in the ring of its rank.
  int mate(int member, int step) const {
    const Range mates = members(of(member));
    return static_cast<int>(mates.begin + (member - mates.begin + step) % mates.size());
  }
  // Returns the part of 0 .. count - 1 that the rank's members have together (see share).
  Range part(int64_t count, int64_t unit, int rank) const {
    const Range mates = members(rank);
    return {share(count, unit, mates.begin, threads()).begin, share(count, unit, mates.end - 1, threads()).end};
  }

 private:
  std::vector<Range> members_;  // by rank
  std::vector<int> rank_;       // by member
};

// The packed columns of each member.
using Partition = std::vector<Range>;

inline Partition split_columns(int64_t columns, int64_t unit, int threads) {
  Partition partition;
  for (int member = 0; member < threads; ++member) partition.push_back(share(columns, unit, member, threads));
  return partition;
}

// The columns of queries, keys, values and, if the layer has them, what a bias by distance is made of and gates:
// sections that are each padded to whole panels. Those that a layer does not project are behind the columns of its
// matrix.
struct QkvColumns {
  int64_t key, value, bias, gate, end;  // the queries start at 0
  int64_t projected;                    // columns of the joint matrix, of which one section alone is not padded

  explicit QkvColumns(const HeadShape& s)
      : key(round_up(s.heads * s.head_dim, kPanel)),
        value(key + round_up(s.kv_heads * s.head_dim, kPanel)),
        bias(value + round_up(s.kv_heads * s.value_dim(), kPanel)),
        gate(bias + round_up(s.heads * s.bias, kPanel)),
        end(gate + round_up(s.heads * s.gates, kPanel)),
        projected(s.values ? end
                  : s.keys ? value
                           : s.heads * s.head_dim) {}
};

// The channels of a layer's four convolutions (LayerConvolutions): keys at 0, values, and the results of both halves.
struct LayerConvChannels {
  int64_t value, mixer, feed_forward, end;

  LayerConvChannels(const Config& c, size_t layer)
      : value(c.head_shape(layer).kv_heads * c.head_shape(layer).head_dim),
        mixer(2 * value),
        feed_forward(mixer + c.hidden),
        end(feed_forward + c.hidden) {}
};

// The columns of a short convolution's joint matrix (ShortConvTask's b, c and x): as QkvColumns'.
struct ShortConvColumns {
  int64_t c, x, end;  // b starts at 0

  explicit ShortConvColumns(const Config& config) : c(round_up(config.hidden, kPanel)), x(2 * c), end(3 * c) {}
};

// The columns of Mamba2's joint matrix: as QkvColumns'.
struct Mamba2Columns {
  int64_t xbc, dt, end;  // z starts at 0

  explicit Mamba2Columns(const Mamba2Kind& kind)
      : xbc(round_up(kind.inner(), kPanel)),
        dt(xbc + round_up(kind.channels(), kPanel)),
        end(dt + round_up(kind.heads, kPanel)) {}
};

// The columns of a gated delta rule's matrices, side by side: queries at 0, keys, values and the gates z of the
// results, then the gates b and a of the rule. If z and a are made of latents, these stand in their places, and they
// behind them. As QkvColumns'.
struct DeltaColumns {
  int64_t k, v, z_latent, b, a_latent, projected, z, a, end;

  explicit DeltaColumns(const GatedDeltaKind& d)
      : k(round_up(d.key_heads * d.key_dim, kPanel)),
        v(2 * k),
        z_latent(v + round_up(d.value_heads * d.value_dim, kPanel)),
        b(z_latent + round_up(d.gate_rank ? d.gate_rank : d.value_heads * d.value_dim, kPanel)),
        a_latent(b + round_up(d.value_heads, kPanel)),
        projected(a_latent + round_up(d.gate_rank ? d.gate_rank : d.value_heads * d.decays(), kPanel)),
        z(d.gate_rank ? projected : z_latent),
        a(d.gate_rank ? z + z_latent - v : a_latent),
        end(d.gate_rank ? a + round_up(d.value_heads * d.key_dim, kPanel) : projected) {}
};

// The columns of lightning attention's two matrices, side by side: values at 0, keys, queries, and the gates.
struct LightningColumns {
  int64_t k, q, gate, end;

  explicit LightningColumns(const LightningKind& kind)
      : k(round_up(kind.inner(), kPanel)), q(2 * k), gate(3 * k), end(4 * k) {}
};

// The columns of a selective scan's matrices, side by side: x at 0, whose place dt takes when x has been convolved, the
// gates z, and dt's latent, b and c.
struct SelectiveScanColumns {
  int64_t z, latent, b, c, end;

  explicit SelectiveScanColumns(const SelectiveScanKind& kind)
      : z(round_up(kind.inner, kPanel)),
        latent(2 * z),
        b(latent + round_up(kind.dt_rank, kPanel)),
        c(b + round_up(kind.state_dim, kPanel)),
        end(c + round_up(kind.state_dim, kPanel)) {}
};

// The columns of an RG-LRU's matrices, side by side: x at 0, whose place its gates take when x has been convolved, y,
// and the gates of the recurrence.
struct RgLruColumns {
  int64_t y, recurrence, end;

  explicit RgLruColumns(const RgLruKind& kind) : y(round_up(kind.inner, kPanel)), recurrence(2 * y), end(3 * y) {}
};

// The columns of the matrices of RWKV-7's time mixing, side by side: r at 0, k, v, the latents of decays, rates, the
// part of the first layer's values, and gates, and what is made of these.
struct Rwkv7Columns {
  int64_t k, v, w_latent, a_latent, v_latent, g_latent, w, a, mix, g, end;

  explicit Rwkv7Columns(const Rwkv7Kind& kind)
      : k(round_up(kind.inner(), kPanel)),
        v(2 * k),
        w_latent(3 * k),
        a_latent(w_latent + round_up(kind.decay_rank, kPanel)),
        v_latent(a_latent + round_up(kind.rate_rank, kPanel)),
        g_latent(v_latent + round_up(kind.value_rank, kPanel)),
        w(g_latent + round_up(kind.gate_rank, kPanel)),
        a(w + k),
        mix(a + k),
        g(mix + k),
        end(g + k) {}
};

// The columns of latent attention's joint matrix: the queries or their latent, then the keys' latent with the rotated
// key, then the gates, if there are any beside these: one of each head, or of each number of its value.
struct LatentColumns {
  int64_t latent, gate, end;

  LatentColumns(const LatentKind& kind, const Config& c)
      : latent(round_up(kind.q_rank ? kind.q_rank : c.heads_of(kind) * kind.query_dim(), kPanel)),
        gate(latent + round_up(kind.key_dim(), kPanel)),
        end(gate + (c.attention_gate == Gate::none || kind.joint_gates
                        ? 0
                        : round_up(c.heads_of(kind) * (c.head_gates ? 1 : kind.value), kPanel))) {}
};

// The columns of what is made of a latent of queries: the queries of all heads, and the gates beside them, if there are
// any.
struct QueryColumns {
  int64_t gate, end;

  QueryColumns(const LatentKind& kind, const Config& c)
      : gate(kind.joint_gates ? round_up(c.heads_of(kind) * kind.query_dim(), kPanel)
                              : c.heads_of(kind) * kind.query_dim()),
        end(gate + (kind.joint_gates ? round_up(c.heads_of(kind) * kind.value, kPanel) : 0)) {}
};

// The columns of an indexer's joint matrix: keys at 0, and the weight of each head.
struct IndexColumns {
  int64_t weights, end;

  explicit IndexColumns(const IndexerKind& kind)
      : weights(round_up(kind.head_dim, kPanel)), end(weights + round_up(kind.heads, kPanel)) {}
};

// The columns of the joint matrix of an indexer of blocks: a query of each kv head, or of each of its own, and the key.
struct BlockIndexColumns {
  int64_t key, end;

  BlockIndexColumns(const BlockIndexerKind& kind, int64_t kv_heads)
      : key((kind.heads ? kind.heads : kv_heads) * kind.head_dim), end(key + kind.head_dim) {}
};

// The columns of the joint matrix behind embeddings of several tokens: a key of each stream at 0, and the value.
struct NgramColumns {
  int64_t value, end;

  explicit NgramColumns(const Config& c)
      : value(round_up(c.hyper->streams * c.hidden, kPanel)), end(value + round_up(c.hidden, kPanel)) {}
};

// The columns of compressed attention's joint matrices: the latent of queries at 0, and the key; of entries the numbers
// that they are sums of and the gates, for each series, those of the entries that are scored, and the weight of each
// head that scores.
struct CompressedColumns {
  int64_t key, end;
  int64_t gate, index, index_gate, weights, entry_end;  // the numbers of entries start at 0

  CompressedColumns(const CompressedKind& kind, int64_t head_dim)
      : key(round_up(kind.q_rank, kPanel)),
        end(key + head_dim),
        gate(kind.series() * head_dim),
        index(2 * gate),
        index_gate(index + kind.series() * kind.index_dim),
        weights(index_gate + kind.series() * kind.index_dim),
        entry_end(weights + round_up(kind.index_heads, kPanel)) {}
};

// Heads that end where a panel of the queries, keys or values ends. Once all their columns are computed, the member
// that computed the last ones normalizes, rotates and stores them. `kv` heads have columns in both keys and values, if
// the layer projects both.
struct HeadUnit {
  Range query, kv;  // one of them is empty
  int64_t columns;
};
class HeadUnits {
 public:
  explicit HeadUnits(const HeadShape& shape);

  int64_t count() const { return static_cast<int64_t>(units_.size()); }
  const HeadUnit& operator[](int64_t unit) const { return units_[static_cast<size_t>(unit)]; }

  // Calls visit(unit, number of `columns` that belong to it) for each unit that has any.
  template <class Visit>
  void each(Range columns, const Visit& visit) const {
    for (const Section& section : sections_) {
      const Range part{std::max(columns.begin, section.columns.begin), std::min(columns.end, section.columns.end)};
      for (int64_t at = part.begin; at < part.end;) {
        const int64_t unit = (at - section.columns.begin) / section.unit_columns;
        const int64_t end = std::min(section.columns.begin + (unit + 1) * section.unit_columns, part.end);
        visit(section.first_unit + unit, end - at);
        at = end;
      }
    }
  }

 private:
  struct Section {
    Range columns;
    int64_t first_unit, unit_columns;
  };
  // Adds a section of `heads` heads of `dim` columns, whose units are new, or those of the section before it.
  void add_section(Range columns, int64_t heads, int64_t dim, bool kv, bool with_last);

  int64_t unit_heads_;
  std::vector<HeadUnit> units_;
  std::vector<Section> sections_;  // queries; keys, values if the layer projects them
};

// The columns of the widest mixer's joint matrix.
int64_t mixer_columns(const Config& c);

}  // namespace forearm
