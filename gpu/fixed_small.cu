// `fixed` on int8 for head dimensions 64, 80, 96; in files of their own to compile in parallel.
#include "decode.cuh"

namespace santa {

Compiled fixed_64(int group) { return compiled<Fixed, int8_t, 64>(group); }
Compiled fixed_80(int group) { return compiled<Fixed, int8_t, 80>(group); }
Compiled fixed_96(int group) { return compiled<Fixed, int8_t, 96>(group); }

} // namespace santa
