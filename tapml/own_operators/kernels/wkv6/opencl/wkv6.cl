// wkv6 (../../../wkv6.py): a thread for each head and channel of the value, which takes the tokens in
// order and alone owns its column of the state. A channel's decay is that of each token.

__kernel void wkv6(
    __global const float* restrict receptance, __global const float* restrict key,
    __global const float* restrict value, __global const float* restrict decay,
    __global const float* restrict bonus, __global const float* restrict state,
    __global float* restrict outputs, __global float* restrict updated,
    const int tokens, const int heads, const int size) {
  const int column = get_global_id(0);
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
      updated[first + i * size] = decay[row + i] * before + product;
    }
    outputs[row + j] = sum;
  }
}
