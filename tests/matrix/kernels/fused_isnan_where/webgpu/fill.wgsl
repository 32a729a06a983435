@group(0) @binding(0) var<storage, read> input_0 : array<f32>;
@group(0) @binding(1) var<storage, read> input_1 : array<f32>;
@group(0) @binding(2) var<storage, read_write> output_0 : array<f32>;

@compute @workgroup_size(4)
fn fill_gaps(@builtin(local_invocation_id) at : vec3<u32>) {
  let x = input_0[at.x];
  var filled = x;
  if (x != x) {
    filled = input_1[at.x];
  }
  output_0[at.x] = filled;
}
