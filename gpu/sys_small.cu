// `sys` on bfloat16 and half for head dimensions 64, 80, 96; in files of their own to compile in parallel.
#include "decode.cuh"

namespace santa {

Compiled sys_64(int group) { return compiled<Sys, uint16_t, 64>(group); }
Compiled sys_80(int group) { return compiled<Sys, uint16_t, 80>(group); }
Compiled sys_96(int group) { return compiled<Sys, uint16_t, 96>(group); }

} // namespace santa
