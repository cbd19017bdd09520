// `fixed` on int8 for head dimensions 128, 256; in files of their own to compile in parallel.
#include "decode.cuh"

namespace santa {

Compiled fixed_128(int group) { return compiled<Fixed, int8_t, 128>(group); }
Compiled fixed_256(int group) { return compiled<Fixed, int8_t, 256>(group); }

} // namespace santa
