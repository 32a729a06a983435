/** Kernel scalars as uniform structs. */

import { inputError } from "./errors";
import type { Memory } from "./memory";

const UNIFORM = 0x40;

/** All uniform structs of a sequence, in one buffer. */
export class Scalars {
  private readonly slots: { offset: number; words: DataView }[] = [];
  private nbytes = 0;
  private buffer: GPUBuffer | undefined;

  constructor(
    private readonly memory: Memory,
    private readonly owned: GPUBuffer[],
  ) {}

  add(
    values: readonly { readonly value: bigint | number; readonly dtype: string }[],
    packed: number | undefined,
  ): () => GPUBufferBinding {
    const count = values.length + (packed === undefined ? 0 : 1);
    // Uniform structs are bound in multiples of 16 bytes.
    const size = Math.max(16, Math.ceil(count / 4) * 16);
    const words = new DataView(new ArrayBuffer(size));
    values.forEach(({ value, dtype }, index) => {
      if (dtype === "int32") {
        words.setInt32(4 * index, Number(value), true);
      } else if (dtype === "uint32") {
        words.setUint32(4 * index, Number(value), true);
      } else {
        words.setFloat32(4 * index, Number(value), true);
      }
    });
    if (packed !== undefined) {
      words.setUint32(4 * values.length, packed, true);
    }
    const alignment = this.memory.device.limits.minUniformBufferOffsetAlignment;
    const offset = Math.ceil(this.nbytes / alignment) * alignment;
    this.nbytes = offset + size;
    this.slots.push({ offset, words });
    return () => {
      if (this.buffer === undefined) {
        throw inputError("scalars were not written");
      }
      return { buffer: this.buffer, offset, size };
    };
  }

  write(): void {
    if (this.nbytes === 0) {
      return;
    }
    this.buffer = this.memory.device.createBuffer({
      size: Math.ceil(this.nbytes / 4) * 4,
      usage: UNIFORM,
      mappedAtCreation: true,
    });
    const mapped = new Uint8Array(this.buffer.getMappedRange());
    for (const { offset, words } of this.slots) {
      mapped.set(new Uint8Array(words.buffer), offset);
    }
    this.buffer.unmap();
    this.memory.allocated += this.buffer.size;
    this.owned.push(this.buffer);
  }
}
