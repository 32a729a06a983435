// Writes the first `kept` elements of each sorted row: $what.
@group(0) @binding(0) var<storage, read> given : array<u32>;
@group(0) @binding(1) var<storage, read> order : array<u32>;
$outputs

struct Sizes {
  length : u32,
  inner : u32,
  rows : u32,
  kept : u32,
  packGridDimX : u32
}
@group(0) @binding($sizes_binding) var<uniform> sizes : Sizes;

$functions

@compute @workgroup_size($threads, 1, 1)
fn write_sorted(
  @builtin(workgroup_id) block : vec3<u32>,
  @builtin(num_workgroups) blocks : vec3<u32>,
  @builtin(local_invocation_id) thread : vec3<u32>
) {
  let number = block.z * blocks.x + block.x;
  if (number > sizes.packGridDimX) { return; }
  let element = number * $threads + thread.x;
  if (element >= sizes.rows * sizes.kept) { return; }
  let row = element / sizes.kept;
  let rank = element % sizes.kept;
  if (rank >= sizes.length) { return; }
  let place = order[row * sizes.length + rank];
  let source = (row / sizes.inner) * sizes.length * sizes.inner + place * sizes.inner + row % sizes.inner;
  let result = (row / sizes.inner) * sizes.kept * sizes.inner + rank * sizes.inner + row % sizes.inner;
$writes
}
