// Arithmetic that CUDA C++ does not spell.
#pragma once

#include <cstdint>

namespace santa {

__device__ inline float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// To one part in 10^6.
__device__ inline double rough_inverse(double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    return y;
}

// A shift by the word's width or more gives zero, as the contract has it and CUDA C++ has not.
__device__ inline uint32_t shift_right(uint32_t x, int shift) {
    uint32_t y;
    asm("shr.u32 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(shift));
    return y;
}

} // namespace santa
