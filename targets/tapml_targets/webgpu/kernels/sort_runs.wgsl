// Sorts each run of $threads elements of each row, by counting for every element those before it.
// `order` holds, per row, the elements' places in the row.
@group(0) @binding(0) var<storage, read> given : array<u32>;
@group(0) @binding(1) var<storage, read_write> order : array<u32>;

struct Sizes {
  length : u32,
  inner : u32,
  runs : u32,
  packGridDimX : u32
}
@group(0) @binding(2) var<uniform> sizes : Sizes;

$keys

var<workgroup> run_keys : array<u32, $threads>;

@compute @workgroup_size($threads, 1, 1)
fn sort_runs(
  @builtin(workgroup_id) block : vec3<u32>,
  @builtin(num_workgroups) blocks : vec3<u32>,
  @builtin(local_invocation_id) thread : vec3<u32>
) {
  let number = block.z * blocks.x + block.x;
  if (number > sizes.packGridDimX) { return; }
  let row = number / sizes.runs;
  let start = (number % sizes.runs) * $threads;
  let place = start + thread.x;
  let inside = place < sizes.length;
  var key = 0u;
  if (inside) { key = key_of(row, place, sizes.length, sizes.inner); }
  run_keys[thread.x] = key;
  workgroupBarrier();
  if (inside) {
    let count = min($threads, sizes.length - start);
    var rank = 0u;
    for (var other = 0u; other < count; other++) {
      let found = run_keys[other];
      // Equal keys stay in the order they came in.
      if (found < key || (found == key && other < thread.x)) { rank++; }
    }
    order[row * sizes.length + start + rank] = place;
  }
}
