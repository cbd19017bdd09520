// The emulator's arithmetic: what gpu/arithmetic.cuh is on a GPU.
#pragma once

#include "emulator.hpp"

namespace santa {

inline float power_of_two(float x) { return std::exp2(x); }
inline int anew(int x) { return x; }
inline uint32_t shift_right(uint32_t x, int shift) { return unsigned(shift) > 31 ? 0 : x >> shift; }

} // namespace santa
