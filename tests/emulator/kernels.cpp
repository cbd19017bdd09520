// The library for the emulator: the kernels for head dimensions 64 and 128.
#include "emulator.hpp"

#include "library.cu"

namespace santa {

Compiled sys_64(int group) { return compiled<Sys, uint16_t, 64>(group); }
Compiled fixed_64(int group) { return compiled<Fixed, int8_t, 64>(group); }
Compiled sys_128(int group) { return compiled<Sys, uint16_t, 128>(group); }
Compiled fixed_128(int group) { return compiled<Fixed, int8_t, 128>(group); }
#define SANTA_NOT_HERE(dim) \
    Compiled sys_##dim(int) { return {}; } \
    Compiled fixed_##dim(int) { return {}; }
SANTA_NOT_HERE(80)
SANTA_NOT_HERE(96)
SANTA_NOT_HERE(256)

} // namespace santa

extern "C" {

void emulator_seed(uint32_t seed) { emulator::random.seed(seed); }

// Run what was launched; what went wrong, or null.
const char* emulator_synchronize() { return emulator::synchronize(); }
}
