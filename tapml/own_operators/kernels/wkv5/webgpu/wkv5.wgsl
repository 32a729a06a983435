// wkv5 (../../../wkv5.py): a thread for each head and channel of the value, which takes the tokens in
// order and alone owns its column of the state. A channel's decay is that of all tokens.

@group(0) @binding(0) var<storage, read> receptance : array<f32>;
@group(0) @binding(1) var<storage, read> key : array<f32>;
@group(0) @binding(2) var<storage, read> value : array<f32>;
@group(0) @binding(3) var<storage, read> decay : array<f32>;
@group(0) @binding(4) var<storage, read> bonus : array<f32>;
@group(0) @binding(5) var<storage, read> state : array<f32>;
@group(0) @binding(6) var<storage, read_write> outputs : array<f32>;
@group(0) @binding(7) var<storage, read_write> updated : array<f32>;
struct Numbers {
  tokens : i32,
  heads : i32,
  size : i32,
}
@group(0) @binding(8) var<uniform> numbers : Numbers;

@compute @workgroup_size(64)
fn wkv5(@builtin(global_invocation_id) at : vec3<u32>) {
  let column = i32(at.x);
  let size = numbers.size;
  if (column >= numbers.heads * size) {
    return;
  }
  let head = column / size;
  let j = column % size;
  let first = head * size * size + j;
  for (var i = 0; i < size; i++) {
    updated[first + i * size] = state[first + i * size];
  }
  for (var token = 0; token < numbers.tokens; token++) {
    let row = (token * numbers.heads + head) * size;
    var sum = 0.0;
    for (var i = 0; i < size; i++) {
      let product = key[row + i] * value[row + j];
      let before = updated[first + i * size];
      sum += receptance[row + i] * (bonus[head * size + i] * product + before);
      updated[first + i * size] = decay[head * size + i] * before + product;
    }
    outputs[row + j] = sum;
  }
}
