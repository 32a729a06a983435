// Merges neighbouring sorted runs of `width` elements: every element finds out by bisection how many
// of the other run come before it. Of equal keys those of the left run come first.
@group(0) @binding(0) var<storage, read> given : array<u32>;
@group(0) @binding(1) var<storage, read> order : array<u32>;
@group(0) @binding(2) var<storage, read_write> merged : array<u32>;

struct Sizes {
  length : u32,
  inner : u32,
  rows : u32,
  width : u32,
  packGridDimX : u32
}
@group(0) @binding(3) var<uniform> sizes : Sizes;

$keys

@compute @workgroup_size($threads, 1, 1)
fn merge_runs(
  @builtin(workgroup_id) block : vec3<u32>,
  @builtin(num_workgroups) blocks : vec3<u32>,
  @builtin(local_invocation_id) thread : vec3<u32>
) {
  let number = block.z * blocks.x + block.x;
  if (number > sizes.packGridDimX) { return; }
  let element = number * $threads + thread.x;
  if (element >= sizes.rows * sizes.length) { return; }
  let row = element / sizes.length;
  let first = row * sizes.length;
  let place = element % sizes.length;
  let start = place - place % (2u * sizes.width);
  let middle = min(start + sizes.width, sizes.length);
  let end = min(start + 2u * sizes.width, sizes.length);
  let left = place < middle;
  let mine = order[element];
  let key = key_of(row, mine, sizes.length, sizes.inner);
  let other = select(start, middle, left);
  var low = other;
  var high = select(middle, end, left);
  while (low < high) {
    let half = low + (high - low) / 2u;
    let found = key_of(row, order[first + half], sizes.length, sizes.inner);
    if (found < key || (found == key && !left)) { low = half + 1u; } else { high = half; }
  }
  let own = select(place - middle, place - start, left);
  merged[first + start + own + (low - other)] = mine;
}
