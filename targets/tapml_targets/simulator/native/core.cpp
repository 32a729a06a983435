// Runs the threads of a block as fibers of one processor thread, block after block.
//
// A thread runs until it waits: for its block at a barrier, for its wave where lanes exchange
// values. Lanes that wait at different lines of one wave go on at the smallest line first, so that
// parted lanes meet again where structured code joins.
#include "core.h"

extern "C" {
tapml_index tapml_thread, tapml_block_index, tapml_block_extent, tapml_grid_extent;
unsigned tapml_wave_width, tapml_lane, tapml_linear_thread;
alignas(1024) unsigned char tapml_dynamic_shared[256 << 10];

// The whole image begins here.
extern char __ehdr_start[] __attribute__((visibility("hidden")));
extern char __start_tapml_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_tapml_shared[] __attribute__((weak, visibility("hidden")));
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);

void tapml_switch(void** from, void* to);
void tapml_enter();
void tapml_block_begins(const tapml_launch* launch);
void tapml_all_meet();
// Lanes of a wave are past a barrier of their own, which orders their accesses.
void tapml_wave_meets(unsigned first, unsigned count, uint64_t lanes);
}

#if defined(__x86_64__)
asm(R"(
.text
.globl tapml_switch
.hidden tapml_switch
.type tapml_switch, @function
tapml_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tapml_switch, . - tapml_switch
.globl tapml_enter
.hidden tapml_enter
.type tapml_enter, @function
tapml_enter:
  callq tapml_fiber
  ud2
.size tapml_enter, . - tapml_enter
)");
enum { kSavedWords = 7 };
#elif defined(__aarch64__)
asm(R"(
.text
.globl tapml_switch
.hidden tapml_switch
.type tapml_switch, %function
tapml_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size tapml_switch, . - tapml_switch
.globl tapml_enter
.hidden tapml_enter
.type tapml_enter, %function
tapml_enter:
  bl tapml_fiber
  brk #1
.size tapml_enter, . - tapml_enter
)");
#endif

namespace {

enum State : uint8_t { kReady, kAtBarrier, kExchanging, kDone };
enum : unsigned { kMostThreads = 1024, kSlotBytes = 64, kMostWave = 64 };
constexpr unsigned char kPoison = 0xFF;  // a NaN in every float type, -1 in every integer

struct Thread {
  void* stack_pointer;
  uint64_t mask;
  int line;
  State state;
  bool orders_memory;
  tapml_index index;
};

Thread threads[kMostThreads];
alignas(64) unsigned char given[kMostThreads][kSlotBytes];
alignas(64) unsigned char taken[kMostThreads][kSlotBytes];
uint64_t came[kMostThreads];
uint16_t order_of[kMostThreads];
void* host_stack;
tapml_launch* running;
unsigned current, thread_count;
uint64_t random_state;
int sum;
unsigned added;

uint64_t next_random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

void set_index(uint32_t (&target)[3], const tapml_index& index) {
  target[0] = index.x, target[1] = index.y, target[2] = index.z;
}

void fail(tapml_fault fault, int line, unsigned thread, int other_line = 0, unsigned other = 0) {
  tapml_failure& failure = running->failure;
  if (failure.fault) return;
  failure.fault = fault;
  failure.line = line;
  failure.other_line = other_line;
  set_index(failure.thread, threads[thread].index);
  set_index(failure.other_thread, threads[other].index);
  set_index(failure.block, tapml_block_index);
}

void back_to_host() { tapml_switch(&threads[current].stack_pointer, host_stack); }

void prepare(unsigned number) {
  char* top = running->stacks + (number + 1) * running->stack_bytes;
#if defined(__x86_64__)
  // As a call leaves it, the stack pointer is a multiple of 16 where the first function is called.
  void** words = reinterpret_cast<void**>(top) - kSavedWords - 2;
  words[6] = reinterpret_cast<void*>(&tapml_enter);
#else
  void** words = reinterpret_cast<void**>(top - 160);
  words[11] = reinterpret_cast<void*>(&tapml_enter);
#endif
  threads[number].stack_pointer = words;
}

void resume(unsigned number) {
  current = number;
  tapml_thread = threads[number].index;
  tapml_linear_thread = number;
  tapml_lane = number % tapml_wave_width;
  tapml_switch(&host_stack, threads[number].stack_pointer);
}

// The places of `count` things in the order in which they are to run.
void arrange(uint16_t* places, unsigned count) {
  for (unsigned i = 0; i < count; ++i) places[i] = running->order == 1 ? count - 1 - i : i;
  if (running->order != 2) return;
  for (unsigned i = count; i > 1; --i) {
    unsigned other = next_random() % i;
    uint16_t kept = places[i - 1];
    places[i - 1] = places[other];
    places[other] = kept;
  }
}

// Let the exchanging lanes at the smallest line go on. False if there are none, or it failed.
bool release_wave(unsigned first, unsigned count) {
  int line = 0x7fffffff;
  for (unsigned i = 0; i < count; ++i) {
    const Thread& each = threads[first + i];
    if (each.state == kExchanging && each.line < line) line = each.line;
  }
  if (line == 0x7fffffff) return false;
  uint64_t group = 0;
  for (unsigned i = 0; i < count; ++i) {
    const Thread& each = threads[first + i];
    if (each.state == kExchanging && each.line == line) group |= uint64_t(1) << i;
  }
  const uint64_t present = count == 64 ? ~uint64_t(0) : (uint64_t(1) << count) - 1;
  for (unsigned i = 0; i < count; ++i) {
    if (!(group >> i & 1)) continue;
    const uint64_t mask = threads[first + i].mask;
    if (mask && !(mask >> i & 1)) {
      fail(TAPML_DIVERGENT_EXCHANGE, line, first + i, line, first + i);
      return false;
    }
    if (const uint64_t missing = mask & present & ~group) {
      const unsigned other = first + __builtin_ctzll(missing);
      const bool waits = threads[other].state != kDone;
      fail(TAPML_DIVERGENT_EXCHANGE, line, first + i, waits ? threads[other].line : 0, other);
      return false;
    }
  }
  // Those of another group of this wave have read theirs: they run before a group is released.
  memset(taken[first], kPoison, size_t(count) * kSlotBytes);
  for (unsigned i = 0; i < count; ++i) {
    if (!(group >> i & 1)) continue;
    memcpy(taken[first + i], given[first + i], kSlotBytes);
    came[first + i] = group;
    threads[first + i].state = kReady;
  }
  if (threads[first + __builtin_ctzll(group)].orders_memory) tapml_wave_meets(first, count, group);
  return true;
}

bool run_wave(unsigned first, unsigned count) {
  do {
    arrange(order_of, count);
    for (unsigned i = 0; i < count; ++i) {
      const unsigned number = first + order_of[i];
      if (threads[number].state != kReady) continue;
      resume(number);
      if (running->failure.fault) return false;
    }
  } while (release_wave(first, count));
  return !running->failure.fault;
}

bool run_block() {
  for (unsigned number = 0; number < thread_count; ++number) {
    prepare(number);
    threads[number].state = kReady;
    threads[number].line = 0;
  }
  memset(__start_tapml_shared, kPoison, __stop_tapml_shared - __start_tapml_shared);
  memset(tapml_dynamic_shared, kPoison, running->dynamic_shared_bytes);
  added = 0;
  tapml_block_begins(running);
  const unsigned width = tapml_wave_width, waves = (thread_count + width - 1) / width;
  uint16_t wave_order[kMostThreads];
  while (true) {
    arrange(wave_order, waves);
    for (unsigned i = 0; i < waves; ++i) {
      const unsigned first = wave_order[i] * width;
      const unsigned left = thread_count - first;
      if (!run_wave(first, left < width ? left : width)) return false;
    }
    unsigned done = 0, waiting = 0, other = 0;
    for (unsigned number = 0; number < thread_count; ++number) {
      if (threads[number].state == kDone) ++done;
      else waiting = number;
    }
    if (done == thread_count) return true;
    for (unsigned number = 0; number < thread_count; ++number) {
      const Thread& each = threads[number];
      if (each.state != kAtBarrier || each.line != threads[waiting].line) {
        other = each.state == kDone ? 0 : each.line;
        fail(TAPML_DIVERGENT_BARRIER, threads[waiting].line, waiting, other, number);
        return false;
      }
    }
    for (unsigned number = 0; number < thread_count; ++number) threads[number].state = kReady;
    tapml_all_meet();
  }
}

// glibc's and musl's on both processors.
struct Action {
  void (*handler)(int, void*, void*);
  uint64_t mask[16];
  int flags;
  void (*restorer)();
};
struct Stack {
  void* start;
  int flags;
  size_t nbytes;
};
extern "C" int sigaction(int, const Action*, Action*);
extern "C" int sigaltstack(const Stack*, Stack*);
enum { kOnStack = 0x08000000, kInfo = 4, kNoDefer = 0x40000000 };
constexpr int kSignals[] = {11, 7, 8};  // SIGSEGV, SIGBUS, SIGFPE
alignas(64) char signal_stack[65536];
bool in_thread;
Action before[3];

void on_fault(int signal, void* info, void* context) {
  if (!in_thread) {
    // Not a kernel's: as if we were not here.
    for (int i = 0; i < 3; ++i) sigaction(kSignals[i], &before[i], nullptr);
    return;
  }
  const uint64_t address = *reinterpret_cast<uint64_t*>(static_cast<char*>(info) + 16);
  const uint64_t stacks = reinterpret_cast<uint64_t>(running->stacks);
  const bool own = address - stacks < kMostThreads * running->stack_bytes;
  fail(signal == 8 ? TAPML_DIVIDE : own ? TAPML_STACK : TAPML_BAD_ADDRESS, 0, current);
  running->failure.address = address;
#if defined(__x86_64__)
  running->failure.program_counter = static_cast<uint64_t*>(context)[5 + 16];
#else
  running->failure.program_counter = *reinterpret_cast<uint64_t*>(static_cast<char*>(context) + 440);
#endif
  in_thread = false;
  // Never returns: the thread that failed is given up with its stack.
  tapml_switch(&threads[current].stack_pointer, host_stack);
}

}  // namespace

extern "C" {

void tapml_fiber() {
  running->entry(running->arguments);
  threads[current].state = kDone;
  threads[current].line = 0;
  back_to_host();
}

void tapml_barrier(int line) {
  Thread& self = threads[current];
  self.state = kAtBarrier;
  self.line = line;
  back_to_host();
}

uint64_t tapml_exchange(const void* value, unsigned nbytes, uint64_t mask, int line) {
  const unsigned number = current;
  Thread& self = threads[number];
  memcpy(given[number], value, nbytes < kSlotBytes ? nbytes : kSlotBytes);
  self.mask = mask;
  self.orders_memory = nbytes == 0;
  self.state = kExchanging;
  self.line = line;
  back_to_host();
  return came[number];
}

int tapml_block_sum(int value, int line) {
  // A thread runs on only after all have added; the second barrier keeps the next sum away.
  if (!added) sum = 0;
  if (++added == thread_count) added = 0;
  sum += value;
  tapml_barrier(line);
  const int result = sum;
  tapml_barrier(line);
  return result;
}

const void* tapml_received(unsigned lane) {
  return taken[current - current % tapml_wave_width + lane];
}

__attribute__((visibility("default"))) uint64_t tapml_base() {
  return reinterpret_cast<uint64_t>(__ehdr_start);
}

// Runs up to most_blocks blocks. Returns 0 when the launch is over, 1 when blocks are left, -1 where
// it failed.
__attribute__((visibility("default"))) int tapml_run(tapml_launch* launch) {
  running = launch;
  tapml_wave_width = launch->wave_width;
  tapml_block_extent = {launch->block[0], launch->block[1], launch->block[2]};
  tapml_grid_extent = {launch->grid[0], launch->grid[1], launch->grid[2]};
  thread_count = launch->block[0] * launch->block[1] * launch->block[2];
  random_state = launch->seed * 0x9E3779B97F4A7C15u + 0x2545F4914F6CDD1Du + launch->next_block;
  if (!random_state) random_state = 1;
  unsigned number = 0;
  for (unsigned z = 0; z < launch->block[2]; ++z)
    for (unsigned y = 0; y < launch->block[1]; ++y)
      for (unsigned x = 0; x < launch->block[0]; ++x) threads[number++].index = {x, y, z};
  const Stack own = {signal_stack, 0, sizeof signal_stack};
  Stack stack_before;
  Action action = {on_fault, {}, kOnStack | kInfo | kNoDefer, nullptr};
  sigaltstack(&own, &stack_before);
  for (int i = 0; i < 3; ++i) sigaction(kSignals[i], &action, &before[i]);
  in_thread = true;
  const uint64_t total = uint64_t(launch->grid[0]) * launch->grid[1] * launch->grid[2];
  bool fine = true;
  for (uint64_t left = launch->most_blocks; fine && left && launch->next_block < total; --left) {
    uint64_t block = launch->next_block++;
    if (launch->order == 1) block = total - 1 - block;
    tapml_block_index.x = block % launch->grid[0];
    tapml_block_index.y = block / launch->grid[0] % launch->grid[1];
    tapml_block_index.z = block / launch->grid[0] / launch->grid[1];
    fine = run_block();
  }
  in_thread = false;
  for (int i = 0; i < 3; ++i) sigaction(kSignals[i], &before[i], nullptr);
  sigaltstack(&stack_before, nullptr);
  return !fine ? -1 : launch->next_block < total;
}

}  // extern "C"
