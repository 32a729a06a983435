// What compiled kernels need of a compiler's library: conversions of small floats.
#include <stdint.h>

namespace {
uint16_t narrowed(double value, int exponent_bits) {
  // To nearest, ties to even, in one step from float64, which holds float32 exactly.
  const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const uint64_t bits = __builtin_bit_cast(uint64_t, value);
  const uint16_t sign = bits >> 63 << 15, infinite = ((1 << exponent_bits) - 1) << fraction_bits;
  const int exponent = int(bits >> 52 & 0x7FF) - 1023;
  uint64_t fraction = bits & 0xFFFFFFFFFFFFFu;
  if (exponent == 1024) return sign | infinite | (fraction ? 1 << (fraction_bits - 1) : 0);
  if (exponent > bias) return sign | infinite;
  int drop = 52 - fraction_bits;
  uint64_t result = 0;
  if (exponent < 1 - bias) {
    drop += 1 - bias - exponent;
    if (drop > 54) return sign;
    fraction |= uint64_t(1) << 52;
  } else {
    result = uint64_t(exponent + bias) << fraction_bits;
  }
  result += fraction >> drop;
  const uint64_t rest = fraction & ((uint64_t(1) << drop) - 1), half = uint64_t(1) << (drop - 1);
  if (rest > half || (rest == half && result & 1)) ++result;
  return sign | uint16_t(result);
}
}  // namespace

extern "C" {
__attribute__((visibility("hidden"))) _Float16 __truncdfhf2(double value) {
  return __builtin_bit_cast(_Float16, narrowed(value, 5));
}
__attribute__((visibility("hidden"))) _Float16 __truncsfhf2(float value) {
  return __builtin_bit_cast(_Float16, narrowed(value, 5));
}
__attribute__((visibility("hidden"))) float __extendhfsf2(_Float16 value) {
  const uint32_t bits = __builtin_bit_cast(uint16_t, value), sign = bits >> 15 << 31;
  const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size;
  if (exponent == 31) size = __builtin_bit_cast(float, 0x7F800000u | fraction << 13);
  else if (exponent) size = __builtin_bit_cast(float, (exponent + 112) << 23 | fraction << 13);
  else size = float(fraction) * 0x1p-24f;
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, size));
}
__attribute__((visibility("hidden"))) __bf16 __truncdfbf2(double value) {
  return __builtin_bit_cast(__bf16, narrowed(value, 8));
}
__attribute__((visibility("hidden"))) __bf16 __truncsfbf2(float value) {
  return __builtin_bit_cast(__bf16, narrowed(value, 8));
}
}
