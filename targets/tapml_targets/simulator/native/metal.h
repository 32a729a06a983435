// The Metal Shading Language. Addresses of `threadgroup` variables come by a change to the text.
#pragma once
#include "common.h"

#define device
#define thread
#define threadgroup
#define constant const
#define METAL_FUNC static inline
#define __METAL_VERSION__ 310
#define INFINITY __builtin_inff()
#define HUGE_VALF __builtin_inff()
#define NAN __builtin_nanf("")

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef tapml_bfloat16 bfloat;

// Literals such as 0.5h.
constexpr half operator""h(long double value) { return half(value); }
constexpr half operator""h(unsigned long long value) { return half(value); }
constexpr bfloat operator""bf(long double value) { return bfloat(float(value)); }

#define TAPML_VECTOR(T)                                          \
  typedef T T##2 __attribute__((ext_vector_type(2)));            \
  typedef T T##3 __attribute__((ext_vector_type(3)));            \
  typedef T T##4 __attribute__((ext_vector_type(4)));
TAPML_VECTOR(char) TAPML_VECTOR(uchar) TAPML_VECTOR(short) TAPML_VECTOR(ushort) TAPML_VECTOR(int)
TAPML_VECTOR(uint) TAPML_VECTOR(long) TAPML_VECTOR(ulong) TAPML_VECTOR(half) TAPML_VECTOR(float)
TAPML_VECTOR(bfloat) TAPML_VECTOR(bool)
#undef TAPML_VECTOR

namespace tapml {

template <class V> struct vector_of { static constexpr int width = 1; using element = V; };
template <class T, int N> using made_vector = T __attribute__((ext_vector_type(N)));
template <class T> struct vector_of<T __attribute__((ext_vector_type(2)))> {
  static constexpr int width = 2; using element = T;
};
template <class T> struct vector_of<T __attribute__((ext_vector_type(3)))> {
  static constexpr int width = 3; using element = T;
};
template <class T> struct vector_of<T __attribute__((ext_vector_type(4)))> {
  static constexpr int width = 4; using element = T;
};
template <class V> inline constexpr int width = vector_of<plain<V>>::width;
template <class V> using element = typename vector_of<plain<V>>::element;
template <class T, int N> struct same_width : type_is<made_vector<T, N>> {};
template <class T> struct same_width<T, 1> : type_is<T> {};

template <class V> TAPML_INLINE auto at(const V& value, int index) -> element<V> {
  if constexpr (width<V> == 1) return value;
  else return value[index];
}
template <class V> TAPML_INLINE void put(V& value, int index, element<V> item) {
  if constexpr (width<V> == 1) value = item;
  else value[index] = item;
}
template <class V, class A> TAPML_INLINE void append(V& result, int& place, const A& argument) {
  for (int i = 0; i < width<A>; ++i) put(result, place++, element<V>(at(argument, i)));
}
// What `float4(...)` means: members in a row, or one for all of them.
template <class V, class... A> TAPML_INLINE V make(const A&... arguments) {
  V result = {};
  int place = 0;
  (append(result, place, arguments), ...);
  if (place == 1)
    for (int i = 1; i < width<V>; ++i) put(result, i, at(result, 0));
  return result;
}

// A function of one element for every element.
template <class V, class F> TAPML_INLINE V each(const V& a, F function) {
  V result;
  for (int i = 0; i < width<V>; ++i) put(result, i, element<V>(function(at(a, i))));
  return result;
}
template <class V, class F> TAPML_INLINE V each(const V& a, const V& b, F function) {
  V result;
  for (int i = 0; i < width<V>; ++i) put(result, i, element<V>(function(at(a, i), at(b, i))));
  return result;
}

// What a kernel's parameter of this type gets of a built-in value.
template <class T> TAPML_INLINE T built_in(tapml_index index) {
  if constexpr (width<T> == 1) return T(index.x);
  else if constexpr (width<T> == 2) return make<T>(index.x, index.y);
  else return make<T>(index.x, index.y, index.z);
}
TAPML_INLINE tapml_index scaled(tapml_index a, tapml_index b, tapml_index c) {
  return {a.x * b.x + c.x, a.y * b.y + c.y, a.z * b.z + c.z};
}
TAPML_INLINE unsigned product(tapml_index a) { return a.x * a.y * a.z; }
TAPML_INLINE unsigned waves() {
  return (product(tapml_block_extent) + tapml_wave_width - 1) / tapml_wave_width;
}

}  // namespace tapml

// By name of the attribute.
#define TAPML_thread_position_in_threadgroup tapml_thread
#define TAPML_threadgroup_position_in_grid tapml_block_index
#define TAPML_threads_per_threadgroup tapml_block_extent
#define TAPML_dispatch_threads_per_threadgroup tapml_block_extent
#define TAPML_threadgroups_per_grid tapml_grid_extent
#define TAPML_thread_position_in_grid \
  tapml::scaled(tapml_block_index, tapml_block_extent, tapml_thread)
#define TAPML_threads_per_grid \
  tapml::scaled(tapml_grid_extent, tapml_block_extent, tapml_index{0, 0, 0})
#define TAPML_thread_index_in_threadgroup (tapml_index{tapml_linear_thread, 0, 0})
#define TAPML_thread_index_in_simdgroup (tapml_index{tapml_lane, 0, 0})
#define TAPML_simdgroup_index_in_threadgroup \
  (tapml_index{tapml_linear_thread / tapml_wave_width, 0, 0})
#define TAPML_threads_per_simdgroup (tapml_index{tapml_wave_width, 0, 0})
#define TAPML_thread_execution_width TAPML_threads_per_simdgroup
#define TAPML_simdgroups_per_threadgroup (tapml_index{tapml::waves(), 0, 0})

namespace metal {

enum class mem_flags { mem_none, mem_device, mem_threadgroup, mem_texture, mem_device_and_threadgroup };
TAPML_INLINE mem_flags operator|(mem_flags a, mem_flags) { return a; }
TAPML_INLINE void threadgroup_barrier(mem_flags, int line = __builtin_LINE()) {
  tapml_barrier(line);
}
TAPML_INLINE void simdgroup_barrier(mem_flags, int line = __builtin_LINE()) {
  tapml::wave_barrier(0, line);
}

template <class To, class From> TAPML_INLINE To as_type(From value) {
  return __builtin_bit_cast(To, value);
}

// Mathematics in the argument's precision: half is computed in float and rounded once.
#define TAPML_MAP(name, function)                                                        \
  template <class V> TAPML_INLINE V name(V a) {                                          \
    return tapml::each(a, [](auto x) { return ::function(float(x)); });                  \
  }
// Apple's fast mathematics is not published; its tanh is known to be NaN where exp(2 x) overflows.
#ifdef TAPML_FAST_MATH
}  // namespace metal
TAPML_INLINE float tapml_metal_tanh(float x) {
  const float power = expf(x + x);
  return (power - 1.0f) / (power + 1.0f);
}
namespace metal {
#else
#define tapml_metal_tanh tanhf
#endif
TAPML_MAP(exp, expf) TAPML_MAP(exp2, exp2f) TAPML_MAP(log, logf) TAPML_MAP(log2, log2f)
TAPML_MAP(log10, log10f) TAPML_MAP(sin, sinf) TAPML_MAP(cos, cosf) TAPML_MAP(tan, tanf)
TAPML_MAP(asin, asinf) TAPML_MAP(acos, acosf) TAPML_MAP(atan, atanf) TAPML_MAP(sinh, sinhf)
TAPML_MAP(cosh, coshf) TAPML_MAP(tanh, tapml_metal_tanh) TAPML_MAP(asinh, asinhf) TAPML_MAP(acosh, acoshf)
TAPML_MAP(atanh, atanhf) TAPML_MAP(sqrt, sqrtf) TAPML_MAP(floor, floorf) TAPML_MAP(ceil, ceilf)
TAPML_MAP(trunc, truncf) TAPML_MAP(round, roundf) TAPML_MAP(rint, rintf) TAPML_MAP(fabs, fabsf)
#undef TAPML_MAP
template <class V> TAPML_INLINE V exp10(V a) {
  return tapml::each(a, [](auto x) { return powf(10.0f, float(x)); });
}
template <class V> TAPML_INLINE V rsqrt(V a) {
  return tapml::each(a, [](auto x) { return 1.0f / sqrtf(float(x)); });
}
template <class V> TAPML_INLINE V fract(V a) {
  return tapml::each(a, [](auto x) { return float(x) - floorf(float(x)); });
}
template <class V> TAPML_INLINE V sign(V a) {
  return tapml::each(a, [](auto x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; });
}
template <class V> TAPML_INLINE V saturate(V a) {
  return tapml::each(a, [](auto x) { return x > 0 ? x < 1 ? float(x) : 1.0f : 0.0f; });
}
template <class V> TAPML_INLINE V abs(V a) {
  return tapml::each(a, [](auto x) -> decltype(x) {
    if constexpr (tapml::is_floating<decltype(x)>) return fabsf(float(x));
    else return x < 0 ? -x : x;
  });
}
// The two operands may be of two types, as with literals.
template <class A, class B> struct tapml_joined
    : tapml::conditional<(tapml::width<A> > tapml::width<B>), A,
          typename tapml::conditional<(tapml::width<B> > tapml::width<A>), B,
              tapml::plain<decltype(A() + B())>>::type> {};
template <class A> struct tapml_joined<A, A> : tapml::type_is<A> {};
#define TAPML_PAIR(name, expression)                                                      \
  template <class A, class B>                                                             \
  TAPML_INLINE typename tapml_joined<A, B>::type name(A a, B b) {                         \
    using V = typename tapml_joined<A, B>::type;                                          \
    return tapml::each(tapml::make<V>(a), tapml::make<V>(b),                              \
                       [](auto x, auto y) { return expression; });                        \
  }
TAPML_PAIR(pow, powf(float(x), float(y)))
TAPML_PAIR(powr, powf(float(x), float(y)))
TAPML_PAIR(fmod, fmodf(float(x), float(y)))
TAPML_PAIR(atan2, atan2f(float(x), float(y)))
TAPML_PAIR(fmax, fmaxf(float(x), float(y)))
TAPML_PAIR(fmin, fminf(float(x), float(y)))
TAPML_PAIR(copysign, copysignf(float(x), float(y)))
TAPML_PAIR(fdim, fdimf(float(x), float(y)))
TAPML_PAIR(step, float(y) < float(x) ? 0.0f : 1.0f)
TAPML_PAIR(max, (y != y || x > y) ? x : (x != x) ? y : y)
TAPML_PAIR(min, (y != y || x < y) ? x : (x != x) ? y : y)
#undef TAPML_PAIR
template <class A, class B, class C> TAPML_INLINE A clamp(A a, B low, C high) {
  return min(max(a, low), high);
}
template <class V> TAPML_INLINE V fma(V a, V b, V c) {
  V result;
  for (int i = 0; i < tapml::width<V>; ++i) {
    using T = tapml::element<V>;
    if constexpr (tapml::same<T, float>)
      tapml::put(result, i, fmaf(tapml::at(a, i), tapml::at(b, i), tapml::at(c, i)));
    else
      tapml::put(result, i, T(::fma(double(tapml::at(a, i)), double(tapml::at(b, i)),
                                    double(tapml::at(c, i)))));
  }
  return result;
}
template <class V, class B, class C> TAPML_INLINE V mix(V a, B b, C t) { return a + (b - a) * t; }
template <class V> TAPML_INLINE tapml::element<V> dot(V a, V b) {
  tapml::element<V> sum = 0;
  for (int i = 0; i < tapml::width<V>; ++i) sum += tapml::at(a, i) * tapml::at(b, i);
  return sum;
}
template <class A, class B, class C>
TAPML_INLINE typename tapml_joined<A, B>::type select(A otherwise, B then, C condition) {
  using V = typename tapml_joined<A, B>::type;
  const V a = tapml::make<V>(otherwise), b = tapml::make<V>(then);
  V result;
  for (int i = 0; i < tapml::width<V>; ++i)
    tapml::put(result, i, tapml::at(condition, i) ? tapml::at(b, i) : tapml::at(a, i));
  return result;
}
#define TAPML_TEST(name, expression)                                                  \
  template <class V>                                                                  \
  TAPML_INLINE typename tapml::same_width<bool, tapml::width<V>>::type name(V a) {    \
    typename tapml::same_width<bool, tapml::width<V>>::type result;                   \
    for (int i = 0; i < tapml::width<V>; ++i) {                                       \
      const auto x = tapml::at(a, i);                                                 \
      tapml::put(result, i, expression);                                              \
    }                                                                                 \
    return result;                                                                    \
  }
TAPML_TEST(isnan, x != x) TAPML_TEST(isinf, x == x && x - x != x - x)
TAPML_TEST(isfinite, x - x == x - x)
#undef TAPML_TEST
template <class V> TAPML_INLINE bool any(V a) {
  bool found = false;
  for (int i = 0; i < tapml::width<V>; ++i) found |= bool(tapml::at(a, i));
  return found;
}
template <class V> TAPML_INLINE bool all(V a) {
  bool found = true;
  for (int i = 0; i < tapml::width<V>; ++i) found &= bool(tapml::at(a, i));
  return found;
}
TAPML_INLINE uint popcount(uint v) { return __builtin_popcount(v); }
TAPML_INLINE int popcount(int v) { return __builtin_popcount(v); }
TAPML_INLINE ulong popcount(ulong v) { return __builtin_popcountl(v); }
TAPML_INLINE uint clz(uint v) { return v ? __builtin_clz(v) : 32; }
TAPML_INLINE uint ctz(uint v) { return v ? __builtin_ctz(v) : 32; }
TAPML_INLINE uint reverse_bits(uint v) { return __builtin_bitreverse32(v); }
TAPML_INLINE uint mulhi(uint a, uint b) { return (ulong)a * b >> 32; }
TAPML_INLINE int mulhi(int a, int b) { return (long)a * b >> 32; }
namespace precise {
using namespace metal;
template <class V> TAPML_INLINE V tanh(V a) {
  return tapml::each(a, [](auto x) { return ::tanhf(float(x)); });
}
}  // namespace precise
namespace fast { using namespace metal; }

// SIMD groups. A lane that is asked for by its number must be one of the group: what another gives
// is undefined, and here something else.
template <class V> TAPML_INLINE V tapml_lane_value(V value, ushort lane, int line) {
  const bool inside = lane < tapml_wave_width;
  V found = tapml::exchange(value, lane, inside, 0, line);
  if (!inside)
    for (unsigned i = 0; i < sizeof(V); i++) reinterpret_cast<unsigned char*>(&found)[i] ^= 0xa5;
  return found;
}
template <class V>
TAPML_INLINE V simd_shuffle(V value, ushort lane, int line = __builtin_LINE()) {
  return tapml_lane_value(value, lane, line);
}
template <class V>
TAPML_INLINE V simd_broadcast(V value, ushort lane, int line = __builtin_LINE()) {
  return tapml_lane_value(value, lane, line);
}
template <class V>
TAPML_INLINE V simd_shuffle_xor(V value, ushort mask, int line = __builtin_LINE()) {
  return tapml::exchange(value, (tapml_lane ^ mask) % tapml_wave_width, true, 0, line);
}
template <class V>
TAPML_INLINE V simd_shuffle_down(V value, ushort by, int line = __builtin_LINE()) {
  return tapml::exchange(value, tapml_lane + by, tapml_lane + by < tapml_wave_width, 0, line);
}
template <class V>
TAPML_INLINE V simd_shuffle_up(V value, ushort by, int line = __builtin_LINE()) {
  return tapml::exchange(value, tapml_lane - by, tapml_lane >= by, 0, line);
}
template <class V>
TAPML_INLINE V simd_shuffle_rotate_down(V value, ushort by, int line = __builtin_LINE()) {
  return tapml::exchange(value, (tapml_lane + by) % tapml_wave_width, true, 0, line);
}
template <class V>
TAPML_INLINE V simd_shuffle_rotate_up(V value, ushort by, int line = __builtin_LINE()) {
  return tapml::exchange(value, (tapml_lane - by) % tapml_wave_width, true, 0, line);
}
template <class V>
TAPML_INLINE V simd_shuffle_and_fill_down(V value, V fill, ushort by,
                                          int line = __builtin_LINE()) {
  const bool inside = tapml_lane + by < tapml_wave_width;
  const V found = tapml::exchange(value, tapml_lane + by, inside, 0, line);
  const V other = tapml::exchange(fill, (tapml_lane + by) % tapml_wave_width, true, 0, line);
  return inside ? found : other;
}
template <class V>
TAPML_INLINE V simd_broadcast_first(V value, int line = __builtin_LINE()) {
  const uint64_t lanes = tapml_exchange(&value, sizeof(V), 0, line);
  return tapml::received<V>(__builtin_ctzll(lanes));
}
template <class V>
TAPML_INLINE V quad_shuffle(V value, ushort lane, int line = __builtin_LINE()) {
  return tapml::exchange(value, (tapml_lane & ~3u) + lane % 4, true, 0, line);
}
template <class V>
TAPML_INLINE V quad_shuffle_xor(V value, ushort mask, int line = __builtin_LINE()) {
  return tapml::exchange(value, tapml_lane ^ (mask & 3), true, 0, line);
}
template <class V>
TAPML_INLINE V quad_broadcast(V value, ushort lane, int line = __builtin_LINE()) {
  return tapml::exchange(value, (tapml_lane & ~3u) + lane % 4, true, 0, line);
}
#define TAPML_REDUCE(name, expression)                                               \
  template <class V> TAPML_INLINE V name(V value, int line = __builtin_LINE()) {     \
    return tapml::reduce(value, 0, line, [](V a, V b) { return V(expression); });    \
  }
TAPML_REDUCE(simd_sum, a + b) TAPML_REDUCE(simd_product, a * b) TAPML_REDUCE(simd_max, max(a, b))
TAPML_REDUCE(simd_min, min(a, b)) TAPML_REDUCE(simd_and, a & b) TAPML_REDUCE(simd_or, a | b)
TAPML_REDUCE(simd_xor, a ^ b)
#undef TAPML_REDUCE
template <class V, class Join>
TAPML_INLINE V tapml_prefix(V value, V start, bool own, int line, Join join) {
  const uint64_t lanes = tapml_exchange(&value, sizeof(V), 0, line);
  V result = start;
  for (unsigned lane = 0; lane < tapml_lane + own; ++lane)
    if (lanes >> lane & 1) result = join(result, tapml::received<V>(lane));
  return result;
}
template <class V>
TAPML_INLINE V simd_prefix_exclusive_sum(V value, int line = __builtin_LINE()) {
  return tapml_prefix(value, V(0), false, line, [](V a, V b) { return V(a + b); });
}
template <class V>
TAPML_INLINE V simd_prefix_inclusive_sum(V value, int line = __builtin_LINE()) {
  return tapml_prefix(value, V(0), true, line, [](V a, V b) { return V(a + b); });
}
template <class V>
TAPML_INLINE V simd_prefix_exclusive_product(V value, int line = __builtin_LINE()) {
  return tapml_prefix(value, V(1), false, line, [](V a, V b) { return V(a * b); });
}
template <class V>
TAPML_INLINE V simd_prefix_inclusive_product(V value, int line = __builtin_LINE()) {
  return tapml_prefix(value, V(1), true, line, [](V a, V b) { return V(a * b); });
}
TAPML_INLINE bool simd_any(bool value, int line = __builtin_LINE()) {
  return tapml::ballot(value, 0, line) != 0;
}
TAPML_INLINE bool simd_all(bool value, int line = __builtin_LINE()) {
  return tapml::ballot(!value, 0, line) == 0;
}
struct simd_vote {
  typedef ulong vote_t;
  vote_t lanes;
  explicit operator vote_t() const { return lanes; }
};
TAPML_INLINE simd_vote simd_ballot(bool value, int line = __builtin_LINE()) {
  return {tapml::ballot(value, 0, line)};
}
TAPML_INLINE simd_vote simd_active_threads_mask(int line = __builtin_LINE()) {
  return {tapml::lanes_here(line)};
}
TAPML_INLINE bool simd_is_first(int line = __builtin_LINE()) {
  return (tapml::lanes_here(line) & ((uint64_t(1) << tapml_lane) - 1)) == 0;
}

// Atomics; all are relaxed.
enum memory_order { memory_order_relaxed };
template <class T> struct atomic { T value; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;
#define TAPML_ATOMIC(name, expression)                                                     \
  template <class T>                                                                       \
  TAPML_INLINE T name(volatile atomic<T>* place, typename tapml::type_is<T>::type b,       \
                      memory_order) {                                                      \
    return tapml::atomic_change(&place->value, [b](T a) { return T(expression); });        \
  }
TAPML_ATOMIC(atomic_fetch_add_explicit, a + b) TAPML_ATOMIC(atomic_fetch_sub_explicit, a - b)
TAPML_ATOMIC(atomic_fetch_max_explicit, a > b ? a : b)
TAPML_ATOMIC(atomic_fetch_min_explicit, a < b ? a : b)
TAPML_ATOMIC(atomic_fetch_and_explicit, a & b) TAPML_ATOMIC(atomic_fetch_or_explicit, a | b)
TAPML_ATOMIC(atomic_fetch_xor_explicit, a ^ b) TAPML_ATOMIC(atomic_exchange_explicit, b)
TAPML_ATOMIC(atomic_store_explicit, b)
#undef TAPML_ATOMIC
template <class T> TAPML_INLINE T atomic_load_explicit(const volatile atomic<T>* place, memory_order) {
  return tapml::atomic_change(const_cast<volatile T*>(&place->value), [](T a) { return a; });
}
template <class T>
TAPML_INLINE bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* place, T* expected,
                                                        typename tapml::type_is<T>::type b,
                                                        memory_order, memory_order) {
  const T wanted = *expected;
  const T found =
      tapml::atomic_change(&place->value, [=](T a) { return a == wanted ? T(b) : a; });
  *expected = found;
  return found == wanted;
}

}  // namespace metal

#include "matrices_metal.h"

// Constructors look like functions; elsewhere the names are types.
#define TAPML_MAKE(T) tapml::make<T>
#define char2(...) TAPML_MAKE(char2)(__VA_ARGS__)
#define char3(...) TAPML_MAKE(char3)(__VA_ARGS__)
#define char4(...) TAPML_MAKE(char4)(__VA_ARGS__)
#define uchar2(...) TAPML_MAKE(uchar2)(__VA_ARGS__)
#define uchar3(...) TAPML_MAKE(uchar3)(__VA_ARGS__)
#define uchar4(...) TAPML_MAKE(uchar4)(__VA_ARGS__)
#define short2(...) TAPML_MAKE(short2)(__VA_ARGS__)
#define short3(...) TAPML_MAKE(short3)(__VA_ARGS__)
#define short4(...) TAPML_MAKE(short4)(__VA_ARGS__)
#define ushort2(...) TAPML_MAKE(ushort2)(__VA_ARGS__)
#define ushort3(...) TAPML_MAKE(ushort3)(__VA_ARGS__)
#define ushort4(...) TAPML_MAKE(ushort4)(__VA_ARGS__)
#define int2(...) TAPML_MAKE(int2)(__VA_ARGS__)
#define int3(...) TAPML_MAKE(int3)(__VA_ARGS__)
#define int4(...) TAPML_MAKE(int4)(__VA_ARGS__)
#define uint2(...) TAPML_MAKE(uint2)(__VA_ARGS__)
#define uint3(...) TAPML_MAKE(uint3)(__VA_ARGS__)
#define uint4(...) TAPML_MAKE(uint4)(__VA_ARGS__)
#define long2(...) TAPML_MAKE(long2)(__VA_ARGS__)
#define long3(...) TAPML_MAKE(long3)(__VA_ARGS__)
#define long4(...) TAPML_MAKE(long4)(__VA_ARGS__)
#define ulong2(...) TAPML_MAKE(ulong2)(__VA_ARGS__)
#define ulong3(...) TAPML_MAKE(ulong3)(__VA_ARGS__)
#define ulong4(...) TAPML_MAKE(ulong4)(__VA_ARGS__)
#define half2(...) TAPML_MAKE(half2)(__VA_ARGS__)
#define half3(...) TAPML_MAKE(half3)(__VA_ARGS__)
#define half4(...) TAPML_MAKE(half4)(__VA_ARGS__)
#define float2(...) TAPML_MAKE(float2)(__VA_ARGS__)
#define float3(...) TAPML_MAKE(float3)(__VA_ARGS__)
#define float4(...) TAPML_MAKE(float4)(__VA_ARGS__)
#define bool2(...) TAPML_MAKE(bool2)(__VA_ARGS__)
#define bool3(...) TAPML_MAKE(bool3)(__VA_ARGS__)
#define bool4(...) TAPML_MAKE(bool4)(__VA_ARGS__)

#define kernel extern "C"
