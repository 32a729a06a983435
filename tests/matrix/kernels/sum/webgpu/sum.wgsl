@group(0) @binding(0) var<storage, read> input_0 : array<f32>;
@group(0) @binding(1) var<storage, read_write> output_0 : array<f32>;
struct Numbers { terms : i32 }
@group(0) @binding(2) var<uniform> numbers : Numbers;

@compute @workgroup_size(4)
fn sum_of_a_row(@builtin(local_invocation_id) at : vec3<u32>) {
  let row = i32(at.x) * numbers.terms;
  // Kahan's sum: what is lost is not its rounding.
  var sum = 0.0;
  var lost = 0.0;
  for (var i = 0; i < numbers.terms; i++) {
    let next = input_0[row + i] - lost;
    let more = sum + next;
    lost = (more - sum) - next;
    sum = more;
  }
  output_0[at.x] = sum;
}
