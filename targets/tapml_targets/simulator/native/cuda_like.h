// What CUDA C and HIP C have alike.
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define __restrict __restrict__

#define threadIdx tapml_thread
#define blockIdx tapml_block_index
#define blockDim tapml_block_extent
#define gridDim tapml_grid_extent

TAPML_INLINE void __syncthreads(int line = __builtin_LINE()) { tapml_barrier(line); }
TAPML_INLINE void __threadfence() {}
TAPML_INLINE void __threadfence_block() {}
TAPML_INLINE void __threadfence_system() {}

// Traits, under the names of the C++ library.
namespace cuda { namespace std {
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t; using ::size_t;
template <class T, T V> struct integral_constant { static constexpr T value = V; };
template <class A, class B> inline constexpr bool is_same_v = tapml::same<A, B>;
template <class A, class B> struct is_same : integral_constant<bool, tapml::same<A, B>> {};
template <class T> struct is_integral : integral_constant<bool, __is_integral(T)> {};
template <class T> struct is_signed : integral_constant<bool, __is_signed(T)> {};
template <class T> struct is_unsigned : integral_constant<bool, __is_unsigned(T)> {};
template <class T> struct is_floating_point : integral_constant<bool, __is_floating_point(T)> {};
template <bool B, class T = void> using enable_if = tapml::enable_if<B, T>;
template <bool B, class T = void> using enable_if_t = typename tapml::enable_if<B, T>::type;
template <bool B, class T, class F> using conditional = tapml::conditional<B, T, F>;
template <bool B, class T, class F>
using conditional_t = typename tapml::conditional<B, T, F>::type;
} }
namespace std { using namespace cuda::std; }

// Vectors: structures of members, whose addresses kernels take.
#define TAPML_VECTORS(name, T, width)                                                         \
  struct __attribute__((aligned(width > 1 && sizeof(T) * 2 <= 16 ? sizeof(T) * 2 : sizeof(T)))) \
      name##2 { T x, y; };                                                                    \
  struct name##1 { T x; };                                                                    \
  struct name##3 { T x, y, z; };                                                              \
  struct __attribute__((aligned(sizeof(T) * 4 <= 16 ? sizeof(T) * 4 : 16))) name##4 {         \
    T x, y, z, w;                                                                             \
  };                                                                                          \
  TAPML_INLINE name##1 make_##name##1(T x) { return {x}; }                                    \
  TAPML_INLINE name##2 make_##name##2(T x, T y) { return {x, y}; }                            \
  TAPML_INLINE name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                    \
  TAPML_INLINE name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
TAPML_VECTORS(char, signed char, 2)
TAPML_VECTORS(uchar, unsigned char, 2)
TAPML_VECTORS(short, short, 2)
TAPML_VECTORS(ushort, unsigned short, 2)
TAPML_VECTORS(int, int, 2)
TAPML_VECTORS(uint, unsigned, 2)
TAPML_VECTORS(long, long, 2)
TAPML_VECTORS(ulong, unsigned long, 2)
TAPML_VECTORS(longlong, long long, 2)
TAPML_VECTORS(ulonglong, unsigned long long, 2)
TAPML_VECTORS(float, float, 2)
TAPML_VECTORS(double, double, 2)
#undef TAPML_VECTORS
struct dim3 { unsigned x = 1, y = 1, z = 1; };

// Half and bfloat.
typedef half __half;
typedef tapml_bfloat16 __nv_bfloat16;
typedef tapml_bfloat16 nv_bfloat16;
typedef tapml_bfloat16 __hip_bfloat16;
#define TAPML_SMALL(pair, T)                                       \
  struct __attribute__((aligned(4))) pair {                        \
    T x, y;                                                        \
    pair() = default;                                              \
    pair(T x, T y) : x(x), y(y) {}                                 \
    explicit pair(T both) : x(both), y(both) {}                    \
  };                                                               \
  TAPML_INLINE pair operator+(pair a, pair b) { return {T(a.x + b.x), T(a.y + b.y)}; } \
  TAPML_INLINE pair operator-(pair a, pair b) { return {T(a.x - b.x), T(a.y - b.y)}; } \
  TAPML_INLINE pair operator*(pair a, pair b) { return {T(a.x * b.x), T(a.y * b.y)}; } \
  TAPML_INLINE pair operator/(pair a, pair b) { return {T(a.x / b.x), T(a.y / b.y)}; }
TAPML_SMALL(half2, half)
TAPML_SMALL(__nv_bfloat162, tapml_bfloat16)
#undef TAPML_SMALL
typedef half2 __half2;
typedef __nv_bfloat162 nv_bfloat162;
TAPML_INLINE half2 make_half2(half x, half y) { return {x, y}; }
TAPML_INLINE __nv_bfloat162 make_bfloat162(tapml_bfloat16 x, tapml_bfloat16 y) { return {x, y}; }
TAPML_INLINE half2 __halves2half2(half x, half y) { return {x, y}; }
TAPML_INLINE half2 __floats2half2_rn(float x, float y) { return {half(x), half(y)}; }
TAPML_INLINE half2 __float2half2_rn(float x) { return {half(x), half(x)}; }
TAPML_INLINE half2 __half2half2(half x) { return {x, x}; }
TAPML_INLINE half __low2half(half2 v) { return v.x; }
TAPML_INLINE half __high2half(half2 v) { return v.y; }
TAPML_INLINE float __low2float(half2 v) { return v.x; }
TAPML_INLINE float __high2float(half2 v) { return v.y; }
TAPML_INLINE float2 __half22float2(half2 v) { return {float(v.x), float(v.y)}; }
TAPML_INLINE half2 __hadd2(half2 a, half2 b) { return a + b; }
TAPML_INLINE half2 __hmul2(half2 a, half2 b) { return a * b; }
TAPML_INLINE half2 __hfma2(half2 a, half2 b, half2 c) {
  return {half(fmaf(a.x, b.x, c.x)), half(fmaf(a.y, b.y, c.y))};
}
TAPML_INLINE half __float2half(float v) { return v; }
TAPML_INLINE half __float2half_rn(float v) { return v; }
TAPML_INLINE half __double2half(double v) { return v; }
TAPML_INLINE float __half2float(half v) { return v; }
TAPML_INLINE half __int2half_rn(int v) { return v; }
TAPML_INLINE half __uint2half_rn(unsigned v) { return v; }
TAPML_INLINE int __half2int_rz(half v) { return v; }
TAPML_INLINE half __short_as_half(short v) { return __builtin_bit_cast(half, v); }
TAPML_INLINE half __ushort_as_half(unsigned short v) { return __builtin_bit_cast(half, v); }
TAPML_INLINE short __half_as_short(half v) { return __builtin_bit_cast(short, v); }
TAPML_INLINE unsigned short __half_as_ushort(half v) {
  return __builtin_bit_cast(unsigned short, v);
}
TAPML_INLINE tapml_bfloat16 __float2bfloat16(float v) { return (tapml_bfloat16)v; }
TAPML_INLINE tapml_bfloat16 __float2bfloat16_rn(float v) { return (tapml_bfloat16)v; }
TAPML_INLINE float __bfloat162float(tapml_bfloat16 v) { return (float)v; }
TAPML_INLINE half __hadd(half a, half b) { return a + b; }
TAPML_INLINE half __hsub(half a, half b) { return a - b; }
TAPML_INLINE half __hmul(half a, half b) { return a * b; }
TAPML_INLINE half __hdiv(half a, half b) { return a / b; }
TAPML_INLINE half __hneg(half a) { return -a; }
TAPML_INLINE half __habs(half a) { return fabsf(a); }
TAPML_INLINE half __hfma(half a, half b, half c) { return fma(double(a), double(b), double(c)); }
TAPML_INLINE half __hmax(half a, half b) { return fmaxf(a, b); }
TAPML_INLINE half __hmin(half a, half b) { return fminf(a, b); }
TAPML_INLINE bool __hgt(half a, half b) { return a > b; }
TAPML_INLINE bool __hge(half a, half b) { return a >= b; }
TAPML_INLINE bool __hlt(half a, half b) { return a < b; }
TAPML_INLINE bool __hle(half a, half b) { return a <= b; }
TAPML_INLINE bool __heq(half a, half b) { return a == b; }
TAPML_INLINE bool __hne(half a, half b) { return a != b; }
TAPML_INLINE bool __hisnan(half a) { return a != a; }
#define TAPML_HALF(name, function) TAPML_INLINE half name(half v) { return function(float(v)); }
TAPML_HALF(hexp, expf) TAPML_HALF(hexp2, exp2f) TAPML_HALF(hlog, logf) TAPML_HALF(hlog2, log2f)
TAPML_HALF(hlog10, log10f) TAPML_HALF(hsin, sinf) TAPML_HALF(hcos, cosf) TAPML_HALF(hsqrt, sqrtf)
TAPML_HALF(hfloor, floorf) TAPML_HALF(hceil, ceilf) TAPML_HALF(htrunc, truncf)
TAPML_HALF(hrint, rintf) TAPML_HALF(htanh, tanhf)
#undef TAPML_HALF
TAPML_INLINE half hrsqrt(half v) { return 1.0f / sqrtf(v); }
TAPML_INLINE half hrcp(half v) { return 1.0f / float(v); }

// Mathematics: C++'s overloads, and CUDA's own.
#define TAPML_OVERLOAD(name) TAPML_INLINE float name(float v) { return name##f(v); }
TAPML_UNARY(TAPML_OVERLOAD)
#undef TAPML_OVERLOAD
#define TAPML_OVERLOAD(name) \
  TAPML_INLINE float name(float a, float b) { return name##f(a, b); }
TAPML_BINARY(TAPML_OVERLOAD)
#undef TAPML_OVERLOAD
TAPML_INLINE float rsqrtf(float v) { return 1.0f / sqrtf(v); }
TAPML_INLINE float rsqrt(float v) { return 1.0f / sqrtf(v); }
TAPML_INLINE double rsqrt(double v) { return 1.0 / sqrt(v); }
TAPML_INLINE float exp10f(float v) { return powf(10.0f, v); }
TAPML_INLINE float __expf(float v) { return expf(v); }
TAPML_INLINE float __exp10f(float v) { return powf(10.0f, v); }
TAPML_INLINE float __logf(float v) { return logf(v); }
TAPML_INLINE float __log2f(float v) { return log2f(v); }
TAPML_INLINE float __log10f(float v) { return log10f(v); }
TAPML_INLINE float __sinf(float v) { return sinf(v); }
TAPML_INLINE float __cosf(float v) { return cosf(v); }
TAPML_INLINE float __tanf(float v) { return tanf(v); }
TAPML_INLINE float __powf(float a, float b) { return powf(a, b); }
TAPML_INLINE float __fdividef(float a, float b) { return a / b; }
TAPML_INLINE float __fdiv_rn(float a, float b) { return a / b; }
TAPML_INLINE float __fsqrt_rn(float a) { return sqrtf(a); }
TAPML_INLINE float __frcp_rn(float a) { return 1.0f / a; }
TAPML_INLINE float __frsqrt_rn(float a) { return 1.0f / sqrtf(a); }
TAPML_INLINE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
TAPML_INLINE float __fadd_rn(float a, float b) { return a + b; }
TAPML_INLINE float __fmul_rn(float a, float b) { return a * b; }
TAPML_INLINE float __saturatef(float a) { return a > 0.0f ? a < 1.0f ? a : 1.0f : 0.0f; }
TAPML_INLINE float fma(float a, float b, float c) { return fmaf(a, b, c); }
TAPML_INLINE float ldexp(float a, int b) { return ldexpf(a, b); }
TAPML_INLINE float abs(float v) { return fabsf(v); }
TAPML_INLINE double abs(double v) { return fabs(v); }
TAPML_INLINE long abs(long v) { return v < 0 ? -v : v; }
TAPML_INLINE long long abs(long long v) { return v < 0 ? -v : v; }
template <class T> TAPML_INLINE bool isnan(T v) { return v != v; }
template <class T> TAPML_INLINE bool isinf(T v) { return v == v && v - v != v - v; }
template <class T> TAPML_INLINE bool isfinite(T v) { return v - v == v - v; }
TAPML_INLINE float max(float a, float b) { return fmaxf(a, b); }
TAPML_INLINE float min(float a, float b) { return fminf(a, b); }
TAPML_INLINE double max(double a, double b) { return fmax(a, b); }
TAPML_INLINE double min(double a, double b) { return fmin(a, b); }
#define TAPML_INTEGER(T)                                     \
  TAPML_INLINE T max(T a, T b) { return a > b ? a : b; }     \
  TAPML_INLINE T min(T a, T b) { return a < b ? a : b; }
TAPML_INTEGER(int) TAPML_INTEGER(unsigned) TAPML_INTEGER(long) TAPML_INTEGER(unsigned long)
TAPML_INTEGER(long long) TAPML_INTEGER(unsigned long long)
#undef TAPML_INTEGER
TAPML_INLINE int __popc(unsigned v) { return __builtin_popcount(v); }
TAPML_INLINE int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
TAPML_INLINE int __clz(int v) { return v ? __builtin_clz(v) : 32; }
TAPML_INLINE int __clzll(long long v) { return v ? __builtin_clzll(v) : 64; }
TAPML_INLINE int __ffs(int v) { return __builtin_ffs(v); }
TAPML_INLINE int __ffsll(long long v) { return __builtin_ffsll(v); }
TAPML_INLINE unsigned __brev(unsigned v) { return __builtin_bitreverse32(v); }
TAPML_INLINE int __mulhi(int a, int b) { return (long long)a * b >> 32; }
TAPML_INLINE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
TAPML_INLINE int __float_as_int(float v) { return __builtin_bit_cast(int, v); }
TAPML_INLINE unsigned __float_as_uint(float v) { return __builtin_bit_cast(unsigned, v); }
TAPML_INLINE float __int_as_float(int v) { return __builtin_bit_cast(float, v); }
TAPML_INLINE float __uint_as_float(unsigned v) { return __builtin_bit_cast(float, v); }
TAPML_INLINE int __float2int_rn(float v) { return (int)rintf(v); }
TAPML_INLINE int __float2int_rz(float v) { return (int)v; }
TAPML_INLINE float __int2float_rn(int v) { return v; }
TAPML_INLINE int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c += (signed char)(a >> i) * (signed char)(b >> i);
  return c;
}
template <class T> TAPML_INLINE T __ldg(const T* place) { return *place; }

// Shuffles within `width` lanes, and votes. Only what `mask` names may be read.
#define TAPML_MASK unsigned long long
template <class T>
TAPML_INLINE T __shfl_sync(TAPML_MASK mask, T value, int source, int width = tapml_wave_width,
                           int line = __builtin_LINE()) {
  const int first = tapml_lane & ~(width - 1);
  return tapml::exchange(value, first + (source & (width - 1)), true, mask, line);
}
template <class T>
TAPML_INLINE T __shfl_down_sync(TAPML_MASK mask, T value, unsigned by,
                                int width = tapml_wave_width, int line = __builtin_LINE()) {
  const unsigned end = (tapml_lane & ~(width - 1)) + width;
  return tapml::exchange(value, tapml_lane + by, tapml_lane + by < end, mask, line);
}
template <class T>
TAPML_INLINE T __shfl_up_sync(TAPML_MASK mask, T value, unsigned by, int width = tapml_wave_width,
                              int line = __builtin_LINE()) {
  const int first = tapml_lane & ~(width - 1), source = (int)tapml_lane - (int)by;
  return tapml::exchange(value, source, source >= first, mask, line);
}
template <class T>
TAPML_INLINE T __shfl_xor_sync(TAPML_MASK mask, T value, int with, int width = tapml_wave_width,
                               int line = __builtin_LINE()) {
  const unsigned source = tapml_lane ^ with, end = (tapml_lane & ~(width - 1)) + width;
  return tapml::exchange(value, source, source < end, mask, line);
}
TAPML_INLINE int __any_sync(TAPML_MASK mask, int value, int line = __builtin_LINE()) {
  return tapml::ballot(value, mask, line) != 0;
}
TAPML_INLINE int __all_sync(TAPML_MASK mask, int value, int line = __builtin_LINE()) {
  return tapml::ballot(!value, mask, line) == 0;
}
#define TAPML_REDUCE(name, T, expression)                                              \
  TAPML_INLINE T name(unsigned mask, T value, int line = __builtin_LINE()) {           \
    return tapml::reduce(value, mask, line, [](T a, T b) { return T(expression); });   \
  }
TAPML_REDUCE(__reduce_add_sync, int, a + b) TAPML_REDUCE(__reduce_add_sync, unsigned, a + b)
TAPML_REDUCE(__reduce_max_sync, int, a > b ? a : b) TAPML_REDUCE(__reduce_min_sync, int, a < b ? a : b)
TAPML_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
TAPML_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
#undef TAPML_REDUCE
// Block-wide votes: a barrier, the sum, and a barrier.
extern "C" int tapml_block_sum(int value, int line);
TAPML_INLINE int __syncthreads_count(int value, int line = __builtin_LINE()) {
  return tapml_block_sum(value != 0, line);
}
TAPML_INLINE int __syncthreads_or(int value, int line = __builtin_LINE()) {
  return tapml_block_sum(value != 0, line) != 0;
}
TAPML_INLINE int __syncthreads_and(int value, int line = __builtin_LINE()) {
  return tapml_block_sum(value == 0, line) == 0;
}

// Atomics; a type of their own for the second argument lets a literal be given.
#define TAPML_ATOMIC(name, expression)                                                   \
  template <class T> TAPML_INLINE T name(T* place, typename tapml::type_is<T>::type b) { \
    return tapml::atomic_change(place, [b](T a) { return T(expression); });              \
  }
TAPML_ATOMIC(atomicAdd, a + b) TAPML_ATOMIC(atomicSub, a - b) TAPML_ATOMIC(atomicExch, b)
TAPML_ATOMIC(atomicMax, a > b ? a : b) TAPML_ATOMIC(atomicMin, a < b ? a : b)
TAPML_ATOMIC(atomicAnd, a & b) TAPML_ATOMIC(atomicOr, a | b) TAPML_ATOMIC(atomicXor, a ^ b)
TAPML_ATOMIC(atomicInc, a >= b ? 0 : a + 1)
TAPML_ATOMIC(atomicDec, a == 0 || a > b ? b : a - 1)
#undef TAPML_ATOMIC
template <class T>
TAPML_INLINE T atomicCAS(T* place, typename tapml::type_is<T>::type expected,
                         typename tapml::type_is<T>::type b) {
  return tapml::atomic_change(place, [=](T a) { return a == expected ? b : a; });
}
