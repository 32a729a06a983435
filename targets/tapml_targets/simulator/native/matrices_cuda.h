// nvcuda::wmma.
#pragma once
#include "matrices.h"

namespace nvcuda { namespace wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32 {}; }

template <class Use, int M, int N, int K> struct extent_of;
template <int M, int N, int K> struct extent_of<matrix_a, M, N, K> { enum { rows = M, columns = K }; };
template <int M, int N, int K> struct extent_of<matrix_b, M, N, K> { enum { rows = K, columns = N }; };
template <int M, int N, int K> struct extent_of<accumulator, M, N, K> {
  enum { rows = M, columns = N };
};
template <class T> struct stored : tapml::type_is<T> {};
template <> struct stored<precision::tf32> : tapml::type_is<float> {};

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment : tapml::matrix<typename stored<T>::type, extent_of<Use, M, N, K>::rows,
                                extent_of<Use, M, N, K>::columns> {
  using element_type = typename stored<T>::type;
  using layout = Layout;
  static constexpr int num_elements = fragment::held;
};

template <class F, class T>
TAPML_INLINE void fill_fragment(F& target, const T& value) {
  for (int i = 0; i < F::held; ++i) target.x[i] = value;
}
template <class F, class T>
TAPML_INLINE void load_matrix_sync(F& target, const T* from, unsigned stride,
                                   int line = __builtin_LINE()) {
  const bool rows = tapml::same<typename F::layout, row_major>;
  tapml::load(target, from, rows ? stride : 1, rows ? 1 : stride, line);
}
template <class F, class T>
TAPML_INLINE void load_matrix_sync(F& target, const T* from, unsigned stride, layout_t layout,
                                   int line = __builtin_LINE()) {
  const bool rows = layout == mem_row_major;
  tapml::load(target, from, rows ? stride : 1, rows ? 1 : stride, line);
}
template <class T, class F>
TAPML_INLINE void store_matrix_sync(T* to, const F& source, unsigned stride, layout_t layout,
                                    int line = __builtin_LINE()) {
  const bool rows = layout == mem_row_major;
  tapml::store(source, to, rows ? stride : 1, rows ? 1 : stride, line);
}
template <class D, class A, class B, class C>
TAPML_INLINE void mma_sync(D& d, const A& a, const B& b, const C& c, bool = false,
                           int line = __builtin_LINE()) {
  tapml::multiply(d, a, b, c, line);
}

} }
