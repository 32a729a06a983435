// Every access of a kernel comes here: bounds, races, and reads of what nothing was written to.
//
// The calls are those that clang makes for -fsanitize=thread; nothing else of that sanitizer is
// used. A cell for each byte knows who last wrote and read it, and in which epoch: an epoch ends
// where all threads of a block meet, so two accesses of one epoch are in no order.
#include "checked.h"

extern "C" {
extern char __ehdr_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));
extern char __start_tapml_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_tapml_shared[] __attribute__((weak, visibility("hidden")));
void* memcpy(void*, const void*, size_t);
void* memmove(void*, const void*, size_t);
void* memset(void*, int, size_t);
int memcmp(const void*, const void*, size_t);
}

namespace {

struct Access {
  uint32_t thread;  // block * 1024 + thread + 1; 0 for none
  uint32_t epoch, meeting, place;
};
constexpr uint32_t kAtomic = 0x80000000u;  // in `place`
struct Cell {
  Access writer, reader, other_reader;
};
enum : unsigned { kMostWindows = 64, kMostFindings = 512, kShared = 64 << 10, kDynamic = 256 << 10 };

tapml_window windows[kMostWindows];
unsigned window_count, last_window;
tapml_finding findings[kMostFindings];
unsigned finding_count, lost;
Cell static_cells[kShared], dynamic_cells[kDynamic];
uint32_t epoch, first_epoch, meetings[1024];
uint64_t block_number, stacks, stack_bytes, dynamic_bytes;
const tapml_launch* launched;

struct Pending {
  const unsigned char* address;
  unsigned nbytes;
  tapml_finding finding;
  unsigned char before[64];
} pending;

uint32_t self() { return uint32_t(block_number * 1024 + tapml_linear_thread + 1) & 0x7fffffffu; }
uint32_t place_of(const void* code) {
  return uint32_t(static_cast<const char*>(code) - __ehdr_start);
}

void set_thread(uint32_t (&thread)[3], uint32_t (&block)[3], uint32_t number) {
  const uint32_t in_block = (number - 1) % 1024, which = (number - 1) / 1024;
  const uint32_t* extent = launched->block;
  thread[0] = in_block % extent[0];
  thread[1] = in_block / extent[0] % extent[1];
  thread[2] = in_block / extent[0] / extent[1];
  block[0] = which % launched->grid[0];
  block[1] = which / launched->grid[0] % launched->grid[1];
  block[2] = which / launched->grid[0] / launched->grid[1];
}

void keep(const tapml_finding& found) {
  for (unsigned i = 0; i < finding_count; ++i) {
    tapml_finding& known = findings[i];
    if (known.kind == found.kind && known.space == found.space && known.place == found.place &&
        known.other_place == found.other_place) {
      ++known.count;
      return;
    }
  }
  if (finding_count == kMostFindings) ++lost;
  else findings[finding_count++] = found;
}

tapml_finding found_here(tapml_finding_kind kind, tapml_space space, const void* address,
                         unsigned nbytes, bool writes, const void* code) {
  tapml_finding found = {};
  found.kind = kind, found.space = space, found.nbytes = nbytes, found.count = 1;
  found.address = reinterpret_cast<uint64_t>(address);
  // In shared memory bytes are counted from its start, in what a launch asked for from there.
  if (space == TAPML_LOCAL) {
    const uint64_t dynamic = reinterpret_cast<uint64_t>(tapml_dynamic_shared);
    const bool asked = found.address - dynamic < kDynamic;
    found.address -= asked ? dynamic : reinterpret_cast<uint64_t>(__start_tapml_shared);
  }
  found.place = place_of(code), found.writes = writes;
  set_thread(found.thread, found.block, self());
  return found;
}

void flush() {
  if (!pending.address) return;
  // A write of what was there already is no race that anybody sees.
  if (memcmp(pending.before, pending.address, pending.nbytes)) keep(pending.finding);
  pending.address = nullptr;
}

bool in_order(const Access& earlier, uint32_t me, bool shared) {
  if (!earlier.thread || earlier.thread == me) return true;
  if (shared && earlier.epoch < first_epoch) return true;
  const uint32_t mine = (me - 1) / 1024, its = (earlier.thread - 1) / 1024;
  if (mine != its) return false;
  if (earlier.epoch != epoch) return true;
  const uint32_t wave = (me - 1) % 1024 / tapml_wave_width;
  return wave == (earlier.thread - 1) % 1024 / tapml_wave_width &&
         earlier.meeting != meetings[wave];
}

void race(const Access& other, bool other_writes, bool writes, tapml_space space,
          const void* address, unsigned nbytes, const void* code) {
  tapml_finding found = found_here(TAPML_RACE, space, address, nbytes, writes, code);
  found.other_place = other.place & ~kAtomic;
  found.other_writes = other_writes;
  set_thread(found.other_thread, found.other_block, other.thread);
  if (writes && other_writes && nbytes <= sizeof pending.before) {
    flush();
    pending.address = static_cast<const unsigned char*>(address);
    pending.nbytes = nbytes;
    pending.finding = found;
    memcpy(pending.before, address, nbytes);
  } else {
    keep(found);
  }
}

// One access to memory with cells, `cells` being those of its first byte.
void follow(Cell* cells, const void* address, unsigned nbytes, bool writes, bool atomic,
            tapml_space space, const void* code) {
  const uint32_t me = self();
  const uint32_t flag = atomic ? kAtomic : 0;
  const Access now = {me, epoch, meetings[(me - 1) % 1024 / tapml_wave_width],
                      place_of(code) | flag};
  bool told = false;
  for (unsigned i = 0; i < nbytes; ++i) {
    Cell& cell = cells[i];
    const bool shared = space == TAPML_LOCAL;
    const auto apart = [&](const Access& other) {
      return !told && !(atomic && other.place & kAtomic) && !in_order(other, me, shared);
    };
    if (apart(cell.writer)) {
      race(cell.writer, true, writes, space, address, nbytes, code);
      told = true;
    }
    if (writes) {
      const Access& reader = apart(cell.reader) ? cell.reader : cell.other_reader;
      if (apart(reader)) {
        race(reader, false, true, space, address, nbytes, code);
        told = true;
      }
      cell.writer = now;
    } else if (cell.reader.thread != me) {
      cell.other_reader = cell.reader;
      cell.reader = now;
    } else {
      cell.reader = now;
    }
  }
}

void shared_access(Cell* cells, const void* address, unsigned nbytes, bool writes, bool atomic,
                   const void* code) {
  if (!writes || atomic) {
    for (unsigned i = 0; i < nbytes; ++i) {
      const Access& writer = cells[i].writer;
      if (writer.thread && writer.epoch >= first_epoch) continue;
      keep(found_here(TAPML_UNINITIALISED, TAPML_LOCAL, address, nbytes, writes, code));
      break;
    }
  }
  follow(cells, address, nbytes, writes, atomic, TAPML_LOCAL, code);
}

void access(const void* address, size_t nbytes, bool writes, const void* code,
            bool atomic = false) {
  if (!nbytes) return;
  const uint64_t begin = reinterpret_cast<uint64_t>(address);
  const uint64_t own = stacks + tapml_linear_thread * stack_bytes;
  if (begin - own < stack_bytes && nbytes <= own + stack_bytes - begin) return;
  // Not before a thread's own memory: an atomic change looks there between this and its write.
  flush();
  const char* place = static_cast<const char*>(address);
  if (place >= __start_tapml_shared && place < __stop_tapml_shared) {
    const size_t at = place - __start_tapml_shared;
    if (at + nbytes <= kShared && place + nbytes <= __stop_tapml_shared)
      return shared_access(static_cells + at, address, nbytes, writes, atomic, code);
  }
  const unsigned char* dynamic = static_cast<const unsigned char*>(address);
  if (dynamic >= tapml_dynamic_shared && dynamic < tapml_dynamic_shared + kDynamic) {
    const size_t at = dynamic - tapml_dynamic_shared;
    if (at + nbytes <= dynamic_bytes)
      return shared_access(dynamic_cells + at, address, nbytes, writes, atomic, code);
    return keep(found_here(writes ? TAPML_OUT_OF_BOUNDS_WRITE : TAPML_OUT_OF_BOUNDS_READ,
                           TAPML_LOCAL, address, nbytes, writes, code));
  }
  if (place >= __ehdr_start && place + nbytes <= _end) return;
  for (unsigned i = 0; i < window_count; ++i) {
    const unsigned number = (last_window + i) % window_count;
    const tapml_window& window = windows[number];
    const uint64_t at = begin - window.begin;
    if (at >= window.nbytes || nbytes > window.nbytes - at) continue;
    if (writes && window.read_only) break;
    last_window = number;
    if (window.written) {
      bool known = true;
      for (size_t byte = 0; byte < nbytes; ++byte) known &= window.written[at + byte] != 0;
      if (!known && (!writes || atomic))
        keep(found_here(TAPML_UNINITIALISED, TAPML_GLOBAL, address, nbytes, writes, code));
      if (writes) memset(window.written + at, 1, nbytes);
    }
    if (window.cells)
      follow(reinterpret_cast<Cell*>(window.cells) + at, address, nbytes, writes, atomic,
             TAPML_GLOBAL, code);
    return;
  }
  const bool stack = begin - stacks < 1024 * stack_bytes;
  keep(found_here(writes ? TAPML_OUT_OF_BOUNDS_WRITE : TAPML_OUT_OF_BOUNDS_READ,
                  stack ? TAPML_PRIVATE : TAPML_GLOBAL, address, nbytes, writes, code));
}

}  // namespace

#define CODE __builtin_return_address(0)

extern "C" {

#define TAPML_EXPORT __attribute__((visibility("default")))
TAPML_EXPORT unsigned tapml_cell_bytes() { return sizeof(Cell); }
TAPML_EXPORT void tapml_check(const tapml_window* given, unsigned count) {
  window_count = count < kMostWindows ? count : kMostWindows;
  memcpy(windows, given, window_count * sizeof *given);
  last_window = finding_count = lost = 0;
  pending.address = nullptr;
  memset(static_cells, 0, sizeof static_cells);
  memset(dynamic_cells, 0, sizeof dynamic_cells);
  epoch = 0;
}
TAPML_EXPORT const tapml_finding* tapml_found(unsigned* count, unsigned* more) {
  flush();
  *count = finding_count, *more = lost;
  return findings;
}

void tapml_block_begins(const tapml_launch* launch) {
  flush();
  launched = launch;
  first_epoch = ++epoch;
  stacks = reinterpret_cast<uint64_t>(launch->stacks);
  stack_bytes = launch->stack_bytes;
  dynamic_bytes = launch->dynamic_shared_bytes;
  block_number = tapml_block_index.x + uint64_t(launch->grid[0]) *
                                     (tapml_block_index.y + uint64_t(launch->grid[1]) * tapml_block_index.z);
}
void tapml_all_meet() {
  flush();
  ++epoch;
}
void tapml_wave_meets(unsigned first, unsigned, uint64_t) {
  flush();
  ++meetings[first / tapml_wave_width];
}
void tapml_atomic(const volatile void* address, unsigned nbytes) {
  access(const_cast<const void*>(address), nbytes, true, CODE, true);
}

#define TAPML_SIZE(n)                                                                        \
  void __tsan_read##n(void* address) { access(address, n, false, CODE); }                    \
  void __tsan_write##n(void* address) { access(address, n, true, CODE); }                    \
  void __tsan_read_write##n(void* address) {                                                 \
    access(address, n, false, CODE);                                                         \
    access(address, n, true, CODE);                                                          \
  }                                                                                          \
  void __tsan_unaligned_read##n(void* address) { access(address, n, false, CODE); }          \
  void __tsan_unaligned_write##n(void* address) { access(address, n, true, CODE); }          \
  void __tsan_unaligned_read_write##n(void* address) {                                       \
    access(address, n, false, CODE);                                                         \
    access(address, n, true, CODE);                                                          \
  }                                                                                          \
  void __tsan_volatile_read##n(void* address) { access(address, n, false, CODE); }           \
  void __tsan_volatile_write##n(void* address) { access(address, n, true, CODE); }
TAPML_SIZE(1) TAPML_SIZE(2) TAPML_SIZE(4) TAPML_SIZE(8) TAPML_SIZE(16)
#undef TAPML_SIZE
void __tsan_read_range(void* address, size_t nbytes) { access(address, nbytes, false, CODE); }
void __tsan_write_range(void* address, size_t nbytes) { access(address, nbytes, true, CODE); }
void* __tsan_memcpy(void* to, const void* from, size_t nbytes) {
  access(from, nbytes, false, CODE);
  access(to, nbytes, true, CODE);
  return memcpy(to, from, nbytes);
}
void* __tsan_memmove(void* to, const void* from, size_t nbytes) {
  access(from, nbytes, false, CODE);
  access(to, nbytes, true, CODE);
  return memmove(to, from, nbytes);
}
void* __tsan_memset(void* to, int value, size_t nbytes) {
  access(to, nbytes, true, CODE);
  return memset(to, value, nbytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}

}  // extern "C"
