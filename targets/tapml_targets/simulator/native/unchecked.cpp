// What the scheduler tells the checked mode, where there is none.
#include "core.h"
extern "C" {
void tapml_block_begins(const tapml_launch*) {}
void tapml_all_meet() {}
void tapml_wave_meets(unsigned, unsigned, uint64_t) {}
void tapml_atomic(const volatile void*, unsigned) {}
}
