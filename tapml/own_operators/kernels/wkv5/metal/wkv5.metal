// wkv5 (../../../wkv5.py): a thread for each head and channel of the value, which takes the tokens in
// order and alone owns its column of the state. A channel's decay is that of all tokens.

#include <metal_stdlib>
using namespace metal;

struct wkv5_args_t {
  int tokens;
  int heads;
  int size;
};

kernel void wkv5(
    const device float* receptance [[buffer(0)]],
    const device float* key [[buffer(1)]],
    const device float* value [[buffer(2)]],
    const device float* decay [[buffer(3)]],
    const device float* bonus [[buffer(4)]],
    const device float* state [[buffer(5)]],
    device float* outputs [[buffer(6)]],
    device float* updated [[buffer(7)]],
    constant wkv5_args_t& numbers [[buffer(8)]],
    uint index [[thread_position_in_grid]]) {
  const int column = index;
  const int tokens = numbers.tokens, heads = numbers.heads, size = numbers.size;
  if (column >= heads * size) {
    return;
  }
  const int head = column / size;
  const int j = column % size;
  const int first = head * size * size + j;
  for (int i = 0; i < size; ++i) {
    updated[first + i * size] = state[first + i * size];
  }
  for (int token = 0; token < tokens; ++token) {
    const int row = (token * heads + head) * size;
    float sum = 0.0f;
    for (int i = 0; i < size; ++i) {
      const float product = key[row + i] * value[row + j];
      const float before = updated[first + i * size];
      sum += receptance[row + i] * (bonus[head * size + i] * product + before);
      updated[first + i * size] = decay[head * size + i] * before + product;
    }
    outputs[row + j] = sum;
  }
}
