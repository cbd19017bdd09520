// The library for the emulator: the kernels for head dimensions 64 and 128, or `fixed` for 128 alone.
#include "emulator.hpp"

#include "library.cu"

namespace santa {

#define SANTA_NOT_HERE(dim) \
    Compiled sys_##dim(int) { return {}; } \
    Compiled fixed_##dim(int) { return {}; }

Compiled fixed_128(int group) { return compiled<Fixed, int8_t, 128>(group); }
#ifdef FIXED_128_ALONE
Compiled sys_128(int) { return {}; }
SANTA_NOT_HERE(64)
#else
Compiled sys_128(int group) { return compiled<Sys, uint16_t, 128>(group); }
Compiled sys_64(int group) { return compiled<Sys, uint16_t, 64>(group); }
Compiled fixed_64(int group) { return compiled<Fixed, int8_t, 64>(group); }
#endif
SANTA_NOT_HERE(80)
SANTA_NOT_HERE(96)
SANTA_NOT_HERE(256)

} // namespace santa

extern "C" {

void emulator_seed(uint32_t seed) { emulator::random.seed(seed); }

// Run what was launched; what went wrong, or null.
const char* emulator_synchronize() { return emulator::synchronize(); }
}
