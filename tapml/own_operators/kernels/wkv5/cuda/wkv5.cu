// wkv5 (../../../wkv5.py): a thread for each head and channel of the value, which takes the tokens in
// order and alone owns its column of the state. A channel's decay is that of all tokens.

extern "C" __global__ void __launch_bounds__(64) wkv5(
    const float* __restrict__ receptance, const float* __restrict__ key,
    const float* __restrict__ value, const float* __restrict__ decay,
    const float* __restrict__ bonus, const float* __restrict__ state,
    float* __restrict__ outputs, float* __restrict__ updated,
    int tokens, int heads, int size) {
  const int column = (int)blockIdx.x * 64 + (int)threadIdx.x;
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
