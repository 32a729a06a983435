// Metal's simdgroup_matrix.
#pragma once
#include "matrices.h"

namespace metal {

template <class T, int Columns, int Rows> struct simdgroup_matrix : tapml::matrix<T, Rows, Columns> {
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) {
    for (int i = 0; i < this->held; ++i)
      this->x[i] = tapml::row_of<simdgroup_matrix>(i) == tapml::column_of<simdgroup_matrix>(i)
                       ? diagonal : T(0);
  }
  T* thread_elements() { return this->x; }
};
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Columns, int Rows>
TAPML_INLINE simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Columns, Rows> result;
  for (int i = 0; i < result.held; ++i) result.x[i] = value;
  return result;
}
// The origin is a place in memory (column, row), whether the matrix is transposed or not.
template <class M, class T>
TAPML_INLINE void simdgroup_load(M& target, const T* from, ulong stride = M::columns,
                                 ulong2 origin = 0, bool transposed = false,
                                 int line = __builtin_LINE()) {
  const T* begin = from + origin.y * stride + origin.x;
  tapml::load(target, begin, transposed ? 1 : stride, transposed ? stride : 1, line);
}
template <class M, class T>
TAPML_INLINE void simdgroup_store(const M& source, T* to, ulong stride = M::columns,
                                  ulong2 origin = 0, bool transposed = false,
                                  int line = __builtin_LINE()) {
  T* begin = to + origin.y * stride + origin.x;
  tapml::store(source, begin, transposed ? 1 : stride, transposed ? stride : 1, line);
}
template <class D, class A, class B, class C>
TAPML_INLINE void simdgroup_multiply_accumulate(D& d, const A& a, const B& b, const C& c,
                                                int line = __builtin_LINE()) {
  tapml::multiply(d, a, b, c, line);
}
template <class D, class A, class B>
TAPML_INLINE void simdgroup_multiply(D& d, const A& a, const B& b, int line = __builtin_LINE()) {
  const D none = {};
  D zero = none;
  for (int i = 0; i < D::held; ++i) zero.x[i] = 0;
  tapml::multiply(d, a, b, zero, line);
}

}  // namespace metal
