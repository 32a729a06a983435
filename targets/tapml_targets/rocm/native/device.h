// What AMD's compiler has built in and clang alone has not: for the compile check of kernels.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define TAPML_DEVICE static inline __attribute__((device, always_inline))

struct tapml_index {
  unsigned x, y, z;
};
#define threadIdx                                                                   \
  (tapml_index{__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), \
               __builtin_amdgcn_workitem_id_z()})
#define blockIdx                                                                      \
  (tapml_index{__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), \
               __builtin_amdgcn_workgroup_id_z()})
#define blockDim                                                                          \
  (tapml_index{__builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(), \
               __builtin_amdgcn_workgroup_size_z()})
#define gridDim                                                         \
  (tapml_index{__builtin_amdgcn_grid_size_x() / blockDim.x,             \
               __builtin_amdgcn_grid_size_y() / blockDim.y,             \
               __builtin_amdgcn_grid_size_z() / blockDim.z})
TAPML_DEVICE void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
TAPML_DEVICE void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }

// A lane's value of 4 bytes, and of others in pieces of 4.
TAPML_DEVICE int tapml_lane() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
}
template <class T> TAPML_DEVICE T tapml_from(T value, int lane) {
  union {
    T value;
    int words[(sizeof(T) + 3) / 4];
  } all;
  all.value = value;
  for (int& word : all.words) word = __builtin_amdgcn_ds_bpermute(lane << 2, word);
  return all.value;
}
template <class T> TAPML_DEVICE T __shfl(T value, int lane, int width) {
  return tapml_from(value, (tapml_lane() & ~(width - 1)) + (lane & (width - 1)));
}
template <class T> TAPML_DEVICE T __shfl_down(T value, unsigned by, int width) {
  const int lane = tapml_lane();
  return tapml_from(value, (lane & (width - 1)) + (int)by >= width ? lane : lane + (int)by);
}
template <class T> TAPML_DEVICE T __shfl_up(T value, unsigned by, int width) {
  const int lane = tapml_lane();
  return tapml_from(value, (lane & (width - 1)) < (int)by ? lane : lane - (int)by);
}
template <class T> TAPML_DEVICE T __shfl_xor(T value, int with, int width) {
  return tapml_from(value, tapml_lane() ^ (with & (width - 1)));
}

#define TAPML_VECTORS(name, T)                                                              \
  struct __attribute__((aligned(sizeof(T) * 2))) name##2 { T x, y; };                       \
  struct name##3 { T x, y, z; };                                                            \
  struct __attribute__((aligned(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4))) name##4 {        \
    T x, y, z, w;                                                                           \
  };                                                                                        \
  TAPML_DEVICE name##2 make_##name##2(T x, T y) { return {x, y}; }                          \
  TAPML_DEVICE name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                  \
  TAPML_DEVICE name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
TAPML_VECTORS(char, signed char)
TAPML_VECTORS(uchar, unsigned char)
TAPML_VECTORS(short, short)
TAPML_VECTORS(ushort, unsigned short)
TAPML_VECTORS(int, int)
TAPML_VECTORS(uint, unsigned)
TAPML_VECTORS(longlong, long long)
TAPML_VECTORS(ulonglong, unsigned long long)
TAPML_VECTORS(float, float)
TAPML_VECTORS(double, double)
TAPML_VECTORS(half, _Float16)

// Functions that the processor has, and those that AMD's device library has.
#define TAPML_BUILT_IN(name) \
  TAPML_DEVICE float name##f(float x) { return __builtin_##name##f(x); }
TAPML_BUILT_IN(exp) TAPML_BUILT_IN(exp2) TAPML_BUILT_IN(log) TAPML_BUILT_IN(log2)
TAPML_BUILT_IN(sqrt) TAPML_BUILT_IN(sin) TAPML_BUILT_IN(cos) TAPML_BUILT_IN(floor)
TAPML_BUILT_IN(ceil) TAPML_BUILT_IN(trunc) TAPML_BUILT_IN(rint) TAPML_BUILT_IN(nearbyint)
TAPML_BUILT_IN(fabs) TAPML_BUILT_IN(round)
TAPML_DEVICE float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
TAPML_DEVICE float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
extern "C" __device__ float tanhf(float);
extern "C" __device__ float tanf(float);
extern "C" __device__ float atanf(float);
extern "C" __device__ float erff(float);
extern "C" __device__ float powf(float, float);
#define TAPML_EXTREMES(T)                                        \
  TAPML_DEVICE T max(T a, T b) { return a > b ? a : b; }         \
  TAPML_DEVICE T min(T a, T b) { return a < b ? a : b; }
TAPML_EXTREMES(int) TAPML_EXTREMES(unsigned) TAPML_EXTREMES(long) TAPML_EXTREMES(unsigned long)
TAPML_EXTREMES(long long) TAPML_EXTREMES(unsigned long long) TAPML_EXTREMES(float)
TAPML_EXTREMES(double)
TAPML_DEVICE float __int_as_float(int bits) { return __builtin_bit_cast(float, bits); }
