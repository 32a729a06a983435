// A matrix whose elements lie in the lanes of a wave: in rows, as many in a lane as in the next.
#pragma once
#include "common.h"

namespace tapml {

enum { kMatrixLanes = 32 };

template <class T, int Rows, int Columns> struct matrix {
  static constexpr int rows = Rows, columns = Columns, held = Rows * Columns / kMatrixLanes;
  static_assert(Rows * Columns % kMatrixLanes == 0 && held * sizeof(T) <= 64,
                "a matrix that the simulator spreads over 32 lanes");
  T x[held];
};

template <class M> TAPML_INLINE int row_of(int i) {
  return int(tapml_lane % kMatrixLanes * M::held + i) / M::columns;
}
template <class M> TAPML_INLINE int column_of(int i) {
  return int(tapml_lane % kMatrixLanes * M::held + i) % M::columns;
}

// All lanes have to come: what is not there is an error, as it is undefined on a GPU.
TAPML_INLINE uint64_t all_lanes() { return 0xffffffffu; }

template <class M, class T>
TAPML_INLINE void load(M& target, const T* from, size_t by_row, size_t by_column, int line) {
  wave_barrier(all_lanes(), line);
  for (int i = 0; i < M::held; ++i)
    target.x[i] = from[row_of<M>(i) * by_row + column_of<M>(i) * by_column];
}
template <class M, class T>
TAPML_INLINE void store(const M& source, T* to, size_t by_row, size_t by_column, int line) {
  for (int i = 0; i < M::held; ++i)
    to[row_of<M>(i) * by_row + column_of<M>(i) * by_column] = source.x[i];
  // What a lane has stored, the others of its wave may load.
  wave_barrier(all_lanes(), line);
}

// Products are summed in float, or in the accumulator's type where that is wider or an integer.
template <class T, class R> struct sum_type : conditional<same<R, half>, float, R> {};
template <class D, class A, class B, class C>
__attribute__((noinline)) void multiply(D& d, const A& a, const B& b, const C& c, int line) {
  using Element = plain<decltype(c.x[0])>;
  using Sum = typename sum_type<plain<decltype(a.x[0])>, Element>::type;
  using Left = plain<decltype(a.x[0])>;
  using Right = plain<decltype(b.x[0])>;
  Sum left[A::rows * A::columns], right[B::rows * B::columns];
  tapml_exchange(a.x, sizeof a.x, all_lanes(), line);
  for (int i = 0; i < A::rows * A::columns; ++i)
    left[i] = static_cast<const Left*>(tapml_received(i / A::held))[i % A::held];
  tapml_exchange(b.x, sizeof b.x, all_lanes(), line);
  for (int i = 0; i < B::rows * B::columns; ++i)
    right[i] = static_cast<const Right*>(tapml_received(i / B::held))[i % B::held];
  for (int i = 0; i < D::held; ++i) {
    const int row = row_of<D>(i), column = column_of<D>(i);
    Sum sum = Sum(c.x[i]);
    for (int k = 0; k < A::columns; ++k)
      sum += left[row * A::columns + k] * right[k * B::columns + column];
    d.x[i] = sum;
  }
}

}  // namespace tapml
