// Arithmetic that CUDA C++ does not spell.
#pragma once

#include <cstdint>

namespace santa {

__device__ inline float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What follows from x is computed here, and does not wait in registers from earlier on.
__device__ inline int anew(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// A shift by the word's width or more gives zero, as the contract has it and CUDA C++ has not.
__device__ inline uint32_t shift_right(uint32_t x, int shift) {
    uint32_t y;
    asm("shr.u32 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(shift));
    return y;
}

} // namespace santa
