// AMX: eight tile registers of 16 rows by 64 bytes, and products of two of them added to a third.
//
// TDPBSUD, TDPBSSD and TDPBF16PS take 16 cycles for 16 x 16 sums of 64 bytes of k: 1024 multiply-adds of bytes a cycle,
// eight times VPDPBUSD's. Loads from the first-level cache take 8 cycles and overlap with them (Intel's optimization
// manual, chapter "Intel AMX"). In assembly, because gcc's intrinsics do not say that they read memory.
#pragma once
#include <stdint.h>

namespace forearm {
namespace {

// What LDTILECFG reads: Intel's manual, volume 1, section 18.2.
struct TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Registers 0 to 3 hold sums and 4 holds A, all of `rows` rows; 6 and 7 hold W; 5 holds the A of a second tile, or W.
// The destructor releases them, so that a context switch saves little.
class TileRegisters {
 public:
  TileRegisters(int rows, bool two) {
    TileShapes shapes;
    for (int t = 0; t < 8; ++t) {
      shapes.row_bytes[t] = 64;
      shapes.rows[t] = static_cast<uint8_t>(t < (two ? 6 : 5) ? rows : 16);
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
  }
  ~TileRegisters() { __asm__ volatile("tilerelease"); }
  TileRegisters(const TileRegisters&) = delete;

  template <int T>
  static void clear() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  static void load(const void* at, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(at), "r"(stride), "i"(T) : "memory");
  }
  // A streaming load: it leaves in the first-level cache what is used again.
  template <int T>
  static void load_once(const void* at, int64_t stride) {
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(at), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  static void store(void* at, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(at), "r"(stride), "i"(T) : "memory");
  }
  // sums += signed bytes of A by unsigned bytes of W, four k a place, in int32.
  template <int Sums, int A, int W>
  static void add_codes() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(W));
  }
  // sums += signed by signed bytes.
  template <int Sums, int A, int W>
  static void add_signed() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(W));
  }
  // sums += pairs of bf16. The even k of a step's 32 are one chain of additions, the odd k another; their sums are
  // added to each other, then to the old sum; denormals are flushed (volume 2B, TDPBF16PS).
  template <int Sums, int A, int W>
  static void add_halves() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(A), "i"(W));
  }
};

}  // namespace
}  // namespace forearm
