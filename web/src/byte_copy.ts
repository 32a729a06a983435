/**
 * Copies between storage buffers at any byte.
 *
 * WebGPU copies aligned 4-byte words only. For tensors of bytes or halves at other offsets this
 * kernel assembles every word of the target window byte by byte.
 */

import { Submission } from "./submission";

const SOURCE = `
struct Span { source: u32, first: u32, end: u32, word: u32 }
@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> into: array<u32>;
@group(0) @binding(2) var<uniform> span: Span;

@compute @workgroup_size(64)
fn copy_bytes(@builtin(global_invocation_id) id: vec3<u32>,
              @builtin(num_workgroups) groups: vec3<u32>) {
  let word = span.word + id.y * groups.x * 64u + id.x;
  if (word * 4u >= span.end) { return; }
  var value = into[word];
  for (var lane = 0u; lane < 4u; lane++) {
    let at = word * 4u + lane;
    if (at >= span.first && at < span.end) {
      let start = span.source + (at - span.first);
      value = insertBits(value, source[start / 4u] >> (8u * (start % 4u)), 8u * lane, 8u);
    }
  }
  into[word] = value;
}`;

const PIECE_BYTES = 32 << 20;
const GROUP = 64;
const MAX_GROUPS = 65535;

export interface Place {
  readonly buffer: GPUBuffer;
  readonly byteOffset: number;
}

export class ByteCopy {
  private pipeline: GPUComputePipeline | undefined;

  constructor(private readonly device: GPUDevice) {}

  /** Encode a copy of `nbytes` between two different buffers. */
  encode(encoder: GPUCommandEncoder, source: Place, target: Place, nbytes: number): void {
    for (let done = 0; done < nbytes; done += PIECE_BYTES) {
      this.piece(
        encoder,
        { buffer: source.buffer, byteOffset: source.byteOffset + done },
        { buffer: target.buffer, byteOffset: target.byteOffset + done },
        Math.min(PIECE_BYTES, nbytes - done),
      );
    }
  }

  private piece(encoder: GPUCommandEncoder, source: Place, target: Place, nbytes: number): void {
    const { device } = this;
    this.pipeline ??= device.createComputePipeline({
      layout: "auto",
      compute: { module: device.createShaderModule({ code: SOURCE }), entryPoint: "copy_bytes" },
    });
    const from = this.window(source, nbytes);
    const into = this.window(target, nbytes);
    const uniform = device.createBuffer({
      size: 16,
      usage: GPUBufferUsage.UNIFORM,
      mappedAtCreation: true,
    });
    new Uint32Array(uniform.getMappedRange()).set([
      from.inner,
      into.inner,
      into.inner + nbytes,
      Math.floor(into.inner / 4),
    ]);
    uniform.unmap();
    const words = Math.ceil((into.inner + nbytes) / 4) - Math.floor(into.inner / 4);
    const groups = Math.ceil(words / GROUP);
    const pass = encoder.beginComputePass();
    pass.setPipeline(this.pipeline);
    pass.setBindGroup(
      0,
      device.createBindGroup({
        layout: this.pipeline.getBindGroupLayout(0),
        entries: [
          { binding: 0, resource: from.binding },
          { binding: 1, resource: into.binding },
          { binding: 2, resource: { buffer: uniform } },
        ],
      }),
    );
    pass.dispatchWorkgroups(Math.min(groups, MAX_GROUPS), Math.ceil(groups / MAX_GROUPS));
    pass.end();
    Submission.for(device).discard(uniform);
  }

  /** An aligned binding around the bytes, and their offset in it. */
  private window(place: Place, nbytes: number): { binding: GPUBufferBinding; inner: number } {
    const alignment = this.device.limits.minStorageBufferOffsetAlignment;
    const offset = Math.floor(place.byteOffset / alignment) * alignment;
    const inner = place.byteOffset - offset;
    const size = Math.ceil((inner + nbytes) / 4) * 4;
    return { binding: { buffer: place.buffer, offset, size }, inner };
  }
}
