// Loops that are unrolled wholly: tiles of sums stay in registers only where every index is a constant.
//
// gcc and clang read the same pragma. UNROLLED_FOR(i, count) runs i from 0 to count - 1, a constant of at most 32;
// UNROLL(n) stands before any other loop.
#pragma once

#define UNROLL_PRAGMA(text) _Pragma(#text)
#define UNROLL(n) UNROLL_PRAGMA(GCC unroll n)
#define UNROLLED_FOR(i, count) \
  UNROLL(32)                   \
  for (int i = 0; i < (count); ++i)
