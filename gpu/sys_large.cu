// `sys` on bfloat16 and half for head dimensions 128, 256; in files of their own to compile in parallel.
#include "decode.cuh"

namespace santa {

Compiled sys_128(int group) { return compiled<Sys, uint16_t, 128>(group); }
Compiled sys_256(int group) { return compiled<Sys, uint16_t, 256>(group); }

} // namespace santa
