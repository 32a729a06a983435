// What kernel text and the scheduler know of each other. No library but the processor's own types.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct tapml_index { unsigned x, y, z; };

enum tapml_fault : uint32_t {
  TAPML_NONE = 0,
  TAPML_DIVERGENT_BARRIER = 1,
  TAPML_DIVERGENT_EXCHANGE = 2,
  TAPML_BAD_ADDRESS = 3,
  TAPML_STACK = 4,
  TAPML_DIVIDE = 5,
};

// What ended a launch early. `line` is 0 where it is unknown; `other_line` belongs to `other_thread`.
struct tapml_failure {
  uint32_t fault;
  int32_t line, other_line;
  uint32_t thread[3], block[3], other_thread[3];
  uint64_t address, program_counter;
};

struct tapml_launch {
  void (*entry)(void** arguments);
  void** arguments;
  uint32_t grid[3], block[3];
  uint32_t wave_width;
  uint32_t order;  // 0 ascending, 1 descending, 2 random
  uint64_t seed;
  uint64_t next_block;  // where to go on; advanced by the call
  uint64_t most_blocks;  // of this call
  char* stacks;
  uint64_t stack_bytes;
  uint64_t dynamic_shared_bytes;
  tapml_failure failure;
};

extern "C" {
// Set before a thread runs on.
extern tapml_index tapml_thread, tapml_block_index, tapml_block_extent, tapml_grid_extent;
extern unsigned tapml_wave_width, tapml_lane, tapml_linear_thread;
extern unsigned char tapml_dynamic_shared[];

// Wait for all threads of the block.
void tapml_barrier(int line);
// Wait for the lanes of the wave that come here; `mask` names those that have to, 0 for any.
// Without bytes it is a barrier of the wave, which orders memory.
// Returns the lanes that came. What each gave is read by tapml_received.
uint64_t tapml_exchange(const void* value, unsigned nbytes, uint64_t mask, int line);
const void* tapml_received(unsigned lane);
}

#define TAPML_INLINE static inline __attribute__((always_inline, nodebug, unused))
#define TAPML_SHARED static __attribute__((section("tapml_shared"), used))
