@group(0) @binding(0) var<storage, read> input_0 : array<f32>;
@group(0) @binding(1) var<storage, read_write> output_0 : array<f32>;

@compute @workgroup_size(4)
fn tanh_of_each(@builtin(local_invocation_id) at : vec3<u32>) {
  let x = input_0[at.x];
  output_0[at.x] = tanh(x);
}
