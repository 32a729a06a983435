// Running $what of each row, a workgroup to a row. Each thread combines its part of the row; with what
// the threads before it found, it goes through its part again and writes.
@group(0) @binding(0) var<storage, read> given : array<$element>;
@group(0) @binding(1) var<storage, read_write> scanned : array<$element>;

struct Sizes {
  length : u32,
  inner : u32,
  packGridDimX : u32
}
@group(0) @binding(2) var<uniform> sizes : Sizes;

var<workgroup> totals : array<$sum, $threads>;

@compute @workgroup_size($threads, 1, 1)
fn scan_rows(
  @builtin(workgroup_id) block : vec3<u32>,
  @builtin(num_workgroups) blocks : vec3<u32>,
  @builtin(local_invocation_id) thread : vec3<u32>
) {
  let row = block.z * blocks.x + block.x;
  if (row > sizes.packGridDimX) { return; }
  let base = (row / sizes.inner) * sizes.length * sizes.inner + row % sizes.inner;
  let part = (sizes.length + $threads - 1u) / $threads;
  let start = min(thread.x * part, sizes.length);
  let end = min(start + part, sizes.length);
  var total = $identity;
  for (var place = start; place < end; place++) {
    total = total $combine $sum(given[base + place * sizes.inner]);
  }
  totals[thread.x] = total;
  workgroupBarrier();
  for (var step = 1u; step < $threads; step = step * 2u) {
    var before = $identity;
    if (thread.x >= step) { before = totals[thread.x - step]; }
    // Nobody writes what a neighbour still reads.
    workgroupBarrier();
    totals[thread.x] = before $combine totals[thread.x];
    workgroupBarrier();
  }
  var running = $identity;
  if (thread.x > 0u) { running = totals[thread.x - 1u]; }
  for (var place = start; place < end; place++) {
    let here = base + place * sizes.inner;
    let next = running $combine $sum(given[here]);
    scanned[here] = $element($written);
    running = next;
  }
}
