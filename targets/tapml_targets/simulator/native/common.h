// What the dialects share: traits, entries, mathematics, exchanges of lanes, atomics.
#pragma once
#include "core.h"

typedef _Float16 half;
typedef __bf16 tapml_bfloat16;

namespace tapml {

template <class T> struct type_is { using type = T; };
template <class T> struct remove_reference : type_is<T> {};
template <class T> struct remove_reference<T&> : type_is<T> {};
template <class T> struct remove_const : type_is<T> {};
template <class T> struct remove_const<const T> : type_is<T> {};
template <class T> using plain = typename remove_const<typename remove_reference<T>::type>::type;
template <bool, class T, class> struct conditional : type_is<T> {};
template <class T, class F> struct conditional<false, T, F> : type_is<F> {};
template <class A, class B> inline constexpr bool same = false;
template <class A> inline constexpr bool same<A, A> = true;
template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> : type_is<T> {};
template <class T> inline constexpr bool is_floating =
    same<T, float> || same<T, double> || same<T, half> || same<T, tapml_bfloat16>;

// An entry gets its parameters from `arguments`, which point to values, or are pointers themselves.
template <unsigned N, class F> struct parameter_type;
template <unsigned N, class First, class... Rest> struct parameter_type<N, void(First, Rest...)>
    : parameter_type<N - 1, void(Rest...)> {};
template <class First, class... Rest> struct parameter_type<0, void(First, Rest...)>
    : type_is<First> {};
template <class T> struct argument_of {
  static T get(void* argument) { return *static_cast<plain<T>*>(argument); }
};
template <class T> struct argument_of<T*> {
  static T* get(void* argument) { return static_cast<T*>(argument); }
};
template <class T> struct argument_of<T&> {
  static T& get(void* argument) { return *static_cast<T*>(argument); }
};
template <class T> struct argument_of<T* const> : argument_of<T*> {};
template <unsigned N, class F> auto argument(void** arguments) ->
    typename parameter_type<N, F>::type {
  return argument_of<typename parameter_type<N, F>::type>::get(arguments[N]);
}

// What the host has to give for a parameter: bytes of a value, 0 for a pointer.
template <class T> inline constexpr uint32_t value_bytes = sizeof(T);
template <class T> inline constexpr uint32_t value_bytes<T*> = 0;
template <class T> inline constexpr uint32_t value_bytes<T* const> = 0;
template <class T> inline constexpr uint32_t value_bytes<T&> = sizeof(T);

template <class F> struct signature;
template <class... P> struct signature<void(P...)> {
  static constexpr uint32_t bytes[sizeof...(P) + 2] = {sizeof...(P), value_bytes<P>..., 0};
  template <unsigned... I> struct places {};
  template <unsigned N, unsigned... I> struct up_to : up_to<N - 1, N - 1, I...> {};
  template <unsigned... I> struct up_to<0, I...> : type_is<places<I...>> {};
  template <unsigned... I>
  static void call_all(void (*function)(P...), void** arguments, places<I...>) {
    function(argument<I, void(P...)>(arguments)...);
  }
  static void call(void (*function)(P...), void** arguments) {
    call_all(function, arguments, typename up_to<sizeof...(P)>::type());
  }
};

template <class T> TAPML_INLINE T received(unsigned lane) {
  return *static_cast<const T*>(tapml_received(lane));
}

// What lane `source` gave; where there is no such lane, what this lane gave itself.
template <class T>
TAPML_INLINE T exchange(T value, unsigned source, bool inside, uint64_t mask, int line) {
  static_assert(sizeof(T) <= 64, "lanes exchange up to 64 bytes");
  tapml_exchange(&value, sizeof(T), mask, line);
  return inside ? received<T>(source) : value;
}

// The values of all lanes that came, joined in ascending order of lanes.
template <class T, class Join>
TAPML_INLINE T reduce(T value, uint64_t mask, int line, Join join) {
  uint64_t lanes = tapml_exchange(&value, sizeof(T), mask, line);
  if (mask) lanes &= mask;
  T result = received<T>(__builtin_ctzll(lanes));
  for (lanes &= lanes - 1; lanes; lanes &= lanes - 1)
    result = join(result, received<T>(__builtin_ctzll(lanes)));
  return result;
}

// Lanes whose value is true.
TAPML_INLINE uint64_t ballot(bool value, uint64_t mask, int line) {
  const unsigned char truth = value;
  uint64_t lanes = tapml_exchange(&truth, 1, mask, line), found = 0;
  if (mask) lanes &= mask;
  const uint64_t asked = lanes;
  for (; lanes; lanes &= lanes - 1) {
    const unsigned lane = __builtin_ctzll(lanes);
    if (received<unsigned char>(lane)) found |= uint64_t(1) << lane;
  }
  return found & asked;
}
TAPML_INLINE uint64_t lanes_here(int line) {
  const unsigned char nothing = 0;
  return tapml_exchange(&nothing, 1, 0, line);
}
TAPML_INLINE void wave_barrier(uint64_t mask, int line) {
  const unsigned char nothing = 0;
  tapml_exchange(&nothing, 0, mask, line);
}

}  // namespace tapml

extern "C" {
// Atomic accesses, which do not race with each other.
void tapml_atomic(const volatile void* address, unsigned nbytes);
}

namespace tapml {
// Only one thread runs at a time, so nothing comes between.
template <class T, class U, class Change>
__attribute__((noinline, no_sanitize("thread"))) T atomically(volatile T* place, U, Change change) {
  const T before = *place;
  *place = change(before);
  return before;
}
template <class T, class Change> TAPML_INLINE T atomic_change(volatile T* place, Change change) {
  tapml_atomic(place, sizeof(T));
  return atomically(place, 0, change);
}
}  // namespace tapml

// The C library's mathematics, which this process has.
#define TAPML_UNARY(X) X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) X(sin) X(cos) \
  X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(tanh) X(asinh) X(acosh) X(atanh) X(erf) \
  X(erfc) X(sqrt) X(cbrt) X(floor) X(ceil) X(trunc) X(round) X(rint) X(nearbyint) X(fabs) X(tgamma) \
  X(lgamma)
#define TAPML_BINARY(X) X(pow) X(fmod) X(atan2) X(fmax) X(fmin) X(copysign) X(hypot) X(nextafter) \
  X(remainder) X(fdim)
#define TAPML_DECLARE(name) extern "C" double name(double); extern "C" float name##f(float);
TAPML_UNARY(TAPML_DECLARE)
#undef TAPML_DECLARE
#define TAPML_DECLARE(name) \
  extern "C" double name(double, double); extern "C" float name##f(float, float);
TAPML_BINARY(TAPML_DECLARE)
#undef TAPML_DECLARE
extern "C" float fmaf(float, float, float);
extern "C" double fma(double, double, double);
extern "C" float ldexpf(float, int);
extern "C" double ldexp(double, int);
extern "C" int abs(int);
