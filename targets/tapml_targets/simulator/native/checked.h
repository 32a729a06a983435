// What the checked mode and its host know of each other.
#pragma once
#include "core.h"

// Memory that a kernel was given. `cells` and `written` are null where it is only bounded.
struct tapml_window {
  uint64_t begin, nbytes;
  char* cells;  // tapml_cell_bytes for each byte, zeros at first
  unsigned char* written;  // one for each byte: whether it holds something
  uint32_t read_only, unused;
};

enum tapml_finding_kind : uint32_t {
  TAPML_OUT_OF_BOUNDS_READ = 1,
  TAPML_OUT_OF_BOUNDS_WRITE = 2,
  TAPML_RACE = 3,
  TAPML_UNINITIALISED = 4,
};
enum tapml_space : uint32_t { TAPML_GLOBAL, TAPML_LOCAL, TAPML_PRIVATE };

struct tapml_finding {
  uint32_t kind, space, nbytes, count;
  uint32_t thread[3], block[3], other_thread[3], other_block[3];
  uint32_t writes, other_writes;
  uint64_t address, place, other_place;  // `place`: offset in the image, behind the access
};
