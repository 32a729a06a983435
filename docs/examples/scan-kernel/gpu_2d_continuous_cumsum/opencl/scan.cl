// sums[r][i] = values[r][0] + ... + values[r][i], one work-group of 64 threads per row.
//
// Within a piece of 64 elements every step adds what lies 1, 2, 4, ... 32 to the left. Reading and
// writing alternate between two halves of the local memory: a step that updated one half in place
// would need a second barrier, between a neighbour's read and the write. That barrier is what
// TVM's kernel lacks.

#define THREADS 64

__kernel void running_sum(__global const float* restrict values, __global float* restrict sums,
                          int length) {
  __local float partial[2][THREADS];
  const int lane = get_local_id(0);
  const size_t row = get_group_id(0) * (size_t)length;
  float carried = 0.0f;
  for (int first = 0; first < length; first += THREADS) {
    const int element = first + lane;
    int from = 0;
    partial[from][lane] = element < length ? values[row + element] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = 1; step < THREADS; step <<= 1) {
      const float left = lane < step ? 0.0f : partial[from][lane - step];
      partial[1 - from][lane] = partial[from][lane] + left;
      from = 1 - from;
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (element < length) sums[row + element] = carried + partial[from][lane];
    carried += partial[from][THREADS - 1];
    // The next piece may overwrite what a slower thread has still to read.
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
