// CUDA C: what device code uses of CUDA's headers.
#pragma once
#include "common.h"

#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 800
#endif
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define CUDART_VERSION 13000
#include "cuda_like.h"

#define warpSize tapml_wave_width
TAPML_INLINE unsigned __activemask(int line = __builtin_LINE()) { return tapml::lanes_here(line); }
TAPML_INLINE void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
  tapml::wave_barrier(mask, line);
}
TAPML_INLINE unsigned __ballot_sync(unsigned mask, int value, int line = __builtin_LINE()) {
  return tapml::ballot(value, mask, line);
}
