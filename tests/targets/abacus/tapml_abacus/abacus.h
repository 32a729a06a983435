/* What this platform's C stands on: kernels loop over the threads of a launch themselves. */
#include <math.h>
#include <stdbool.h>
typedef unsigned char uchar; typedef unsigned short ushort;
typedef unsigned int uint; typedef unsigned long ulong;
#define seen __attribute__((visibility("default"), no_sanitize("coverage")))
#define work __attribute__((visibility("default"))) void
#define cells
#define max(a, b) ((a) > (b) ? (a) : (b))
#define min(a, b) ((a) < (b) ? (a) : (b))
#define EACH(i) for (long i = 0; i < tapml_threads; ++i)
seen long tapml_threads, tapml_windows[129], tapml_found[4];
extern char __ehdr_start, _end;
seen long tapml_base(void) { return (long)&__ehdr_start; }
/* Called before each access where a module is built to be checked. */
seen void tapml_look(char *at, long bytes, long written, long place) {
  char *frame = __builtin_frame_address(0);
  if ((at > frame && at < frame + (1 << 20)) || (at >= &__ehdr_start && at < &_end)) return;
  for (long *w = tapml_windows + 1; w <= tapml_windows + 2 * tapml_windows[0]; w += 2)
    if ((long)at >= w[0] && (long)at + bytes <= w[0] + w[1]) return;
  if (tapml_found[1]) return;
  tapml_found[0] = written, tapml_found[1] = bytes, tapml_found[2] = place;
  tapml_found[3] = (long)at;
}
#define LOOKED(n) \
  seen void __sanitizer_cov_load##n(void *at) { tapml_look(at, n, 0, (long)__builtin_return_address(0)); } \
  seen void __sanitizer_cov_store##n(void *at) { tapml_look(at, n, 1, (long)__builtin_return_address(0)); }
LOOKED(1) LOOKED(2) LOOKED(4) LOOKED(8) LOOKED(16)
