// HIP C: what device code uses of HIP's headers. A wave has 32 or 64 lanes.
#pragma once
#include "common.h"

#define __HIP_DEVICE_COMPILE__ 1
#define __HIP_PLATFORM_AMD__ 1
#define __HIPCC__ 1
#include "cuda_like.h"

#define warpSize tapml_wave_width
#define __AMDGCN_WAVEFRONT_SIZE tapml_wave_width
TAPML_INLINE unsigned long long __activemask(int line = __builtin_LINE()) {
  return tapml::lanes_here(line);
}
TAPML_INLINE void __syncwarp(unsigned long long mask = 0, int line = __builtin_LINE()) {
  tapml::wave_barrier(mask, line);
}
TAPML_INLINE unsigned long long __ballot_sync(unsigned long long mask, int value,
                                              int line = __builtin_LINE()) {
  return tapml::ballot(value, mask, line);
}
TAPML_INLINE unsigned long long __ballot(int value, int line = __builtin_LINE()) {
  return tapml::ballot(value, 0, line);
}
TAPML_INLINE int __any(int value, int line = __builtin_LINE()) {
  return tapml::ballot(value, 0, line) != 0;
}
TAPML_INLINE int __all(int value, int line = __builtin_LINE()) {
  return tapml::ballot(!value, 0, line) == 0;
}
TAPML_INLINE unsigned __lane_id() { return tapml_lane; }
#define TAPML_PLAIN(name)                                                                  \
  template <class T>                                                                       \
  TAPML_INLINE T name(T value, int which, int width = tapml_wave_width,                    \
                      int line = __builtin_LINE()) {                                       \
    return name##_sync(0, value, which, width, line);                                      \
  }
TAPML_PLAIN(__shfl)
TAPML_PLAIN(__shfl_down)
TAPML_PLAIN(__shfl_up)
TAPML_PLAIN(__shfl_xor)
#undef TAPML_PLAIN
