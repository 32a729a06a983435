/**
 * Launches bound to memory: bind groups, scalars, and copies where WebGPU would refuse a binding.
 *
 * A binding begins at a multiple of 256 bytes, and one buffer cannot be bound both to be read and to
 * be written in one dispatch. What lies otherwise is copied to scratch memory before the launch, and
 * back after it where it is written.
 */

import type { PlannedLaunch } from "./call_plan";
import { inputError, TapmlError } from "./errors";
import type { BuiltKernel } from "./kernels";
import type { DeviceBuffer, Memory } from "./memory";
import type { Access } from "./shader";
import type { Steps } from "./steps";

const UNIFORM = 0x40;
const SCRATCH = 0x80 | 0x04 | 0x08;

/** Memory behind a slot of a plan. */
export interface SlotPlace {
  readonly buffer: DeviceBuffer;
  readonly byteOffset: number;
}

interface Copy {
  readonly window: GPUBuffer;
  readonly offset: number;
  readonly scratch: GPUBuffer;
  readonly nbytes: number;
  readonly back: boolean;
}

interface BoundLaunch {
  readonly pipeline: GPUComputePipeline;
  readonly group: GPUBindGroup;
  readonly grid: readonly [number, number, number];
  readonly copies: readonly Copy[];
}

interface Binding {
  readonly place: SlotPlace;
  readonly offset: number;
  readonly nbytes: number;
  readonly access: Access;
}

/** Launches ready to be encoded as often as wanted. */
export class LaunchSequence {
  private readonly owned: GPUBuffer[] = [];
  private readonly launches: BoundLaunch[];
  /** Bindings that go through scratch memory, each time. */
  copies = 0;

  constructor(
    private readonly memory: Memory,
    steps: Steps,
    kernels: ReadonlyMap<string, BuiltKernel>,
    planned: readonly PlannedLaunch[],
    places: readonly SlotPlace[],
  ) {
    try {
      this.launches = steps.run("binding memory to kernels", () => {
        const scalars = new Scalars(memory.device, this.owned);
        const bound = planned.map((launch) => this.bind(kernels, launch, places, scalars));
        scalars.write();
        return bound.map((make) => make());
      });
    } catch (error) {
      this.close();
      throw error;
    }
  }

  get count(): number {
    return this.launches.length;
  }

  encode(encoder: GPUCommandEncoder, timestamps?: GPUComputePassTimestampWrites): void {
    let pass: GPUComputePassEncoder | undefined;
    const begin = (): GPUComputePassEncoder =>
      encoder.beginComputePass(timestamps === undefined ? {} : { timestampWrites: timestamps });
    for (const { pipeline, group, grid, copies } of this.launches) {
      if (copies.length > 0) {
        pass?.end();
        pass = undefined;
      }
      for (const { window, offset, scratch, nbytes } of copies) {
        const source = { buffer: window, byteOffset: offset };
        this.memory.encodeCopy(encoder, source, { buffer: scratch, byteOffset: 0 }, nbytes);
      }
      pass ??= begin();
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...grid);
      for (const { window, offset, scratch, nbytes, back } of copies) {
        if (back) {
          pass?.end();
          pass = undefined;
          const target = { buffer: window, byteOffset: offset };
          this.memory.encodeCopy(encoder, { buffer: scratch, byteOffset: 0 }, target, nbytes);
        }
      }
    }
    pass?.end();
  }

  close(): void {
    for (const buffer of this.owned.splice(0)) {
      this.memory.allocated -= buffer.size;
      buffer.destroy();
    }
  }

  private bind(
    kernels: ReadonlyMap<string, BuiltKernel>,
    launch: PlannedLaunch,
    places: readonly SlotPlace[],
    scalars: Scalars,
  ): () => BoundLaunch {
    const built = kernels.get(launch.kernel);
    if (built === undefined) {
      throw inputError(`the Library has no kernel '${launch.kernel}'`);
    }
    checkBlock(built, launch);
    const bindings = bindingsOf(built, launch, places);
    const values = launch.arguments.flatMap((each) => (each.kind === "scalar" ? [each] : []));
    if (values.length > 0 && !built.shape.hasUniform) {
      throw mismatch(built, `${values.length} scalars, and its text declares no uniform`);
    }
    const [grid, packed] = foldGrid(built, launch, this.memory.device.limits);
    const slot = built.shape.hasUniform
      ? scalars.add(built, values, built.shape.packsGrid ? packed : undefined)
      : undefined;
    return () => {
      const copies: Copy[] = [];
      const entries: GPUBindGroupEntry[] = bindings.map((binding, index) => ({
        binding: index,
        resource: this.resource(bindings, index, binding, copies),
      }));
      if (slot !== undefined) {
        entries.push({ binding: bindings.length, resource: slot() });
      }
      const { device } = this.memory;
      const group = device.createBindGroup({ layout: built.layout, entries });
      return { pipeline: built.pipeline, group, grid, copies };
    };
  }

  private resource(
    bindings: readonly Binding[],
    index: number,
    binding: Binding,
    copies: Copy[],
  ): GPUBufferBinding {
    const { buffer } = binding.place;
    const size = Math.max(4, Math.ceil(binding.nbytes / 4) * 4);
    const { limits } = this.memory.device;
    if (size > limits.maxStorageBufferBindingSize) {
      throw new TapmlError(
        "LimitExceededError",
        `a kernel's binding ${index} needs ${size} bytes, this browser's adapter allows ` +
          `${limits.maxStorageBufferBindingSize} (maxStorageBufferBindingSize)`,
      );
    }
    const fits =
      binding.offset % limits.minStorageBufferOffsetAlignment === 0 &&
      binding.offset + size <= buffer.gpu.size;
    if (fits && !collides(bindings, index, binding)) {
      return { buffer: buffer.gpu, offset: binding.offset, size };
    }
    const scratch = this.memory.device.createBuffer({ size, usage: SCRATCH });
    this.memory.allocated += size;
    this.owned.push(scratch);
    if (binding.nbytes > 0) {
      this.copies += 1;
      copies.push({
        window: buffer.gpu,
        offset: binding.offset,
        scratch,
        nbytes: binding.nbytes,
        back: binding.access === "read_write",
      });
    }
    return { buffer: scratch, offset: 0, size };
  }
}

/** Whether WebGPU would refuse a binding beside the others of its dispatch. */
function collides(bindings: readonly Binding[], index: number, binding: Binding): boolean {
  return bindings.some((other, place) => {
    if (place === index || other.place.buffer !== binding.place.buffer) {
      return false;
    }
    if (binding.access === "read") {
      return other.access === "read_write";
    }
    const apart =
      other.offset + other.nbytes <= binding.offset ||
      binding.offset + binding.nbytes <= other.offset;
    // Of two that are written the first keeps its place.
    return other.access === "read_write" && !apart && place < index;
  });
}

function mismatch(built: BuiltKernel, what: string): TapmlError {
  return new TapmlError(
    "CompileError",
    `kernel '${built.kernel.name}' is launched with ${what}: its Library does not fit its text`,
  );
}

function checkBlock(built: BuiltKernel, launch: PlannedLaunch): void {
  const { workgroup } = built.shape;
  if (launch.block.some((extent, axis) => extent !== BigInt(workgroup[axis] ?? 1))) {
    throw mismatch(
      built,
      `blocks of (${launch.block.join(", ")}), and its @workgroup_size is (${workgroup.join(", ")})`,
    );
  }
}

function bindingsOf(
  built: BuiltKernel,
  launch: PlannedLaunch,
  places: readonly SlotPlace[],
): Binding[] {
  const windows = launch.arguments.filter((each) => each.kind === "buffer");
  const { buffers } = built.shape;
  if (windows.length !== buffers.length) {
    throw mismatch(built, `${windows.length} buffers, and its text declares ${buffers.length}`);
  }
  launch.arguments.forEach((argument, index) => {
    if (argument.kind === "tensor" || (argument.kind === "scalar") !== index >= windows.length) {
      throw mismatch(built, "arguments that are not buffers first and scalars after them");
    }
  });
  return windows.map((window, index) => {
    const place = places[window.slot];
    if (place === undefined) {
      throw inputError(`no memory for argument ${index} of '${built.kernel.name}'`);
    }
    return {
      place,
      offset: place.byteOffset + window.byteOffset,
      nbytes: window.nbytes,
      access: buffers[index] ?? "read",
    };
  });
}

/** The grid as it is dispatched, and what the kernel is told as `packGridDimX`. */
function foldGrid(
  built: BuiltKernel,
  launch: PlannedLaunch,
  limits: GPUSupportedLimits,
): [readonly [number, number, number], number] {
  const [x, y, z] = launch.grid.map(Number) as [number, number, number];
  const most = limits.maxComputeWorkgroupsPerDimension;
  const packed = x - 1;
  if (y > most || z > most || (x > most && !(built.shape.packsGrid && z === 1 && x < 2 ** 32))) {
    throw new TapmlError(
      "LimitExceededError",
      `kernel '${built.kernel.name}' needs a grid of (${x}, ${y}, ${z}), this browser's adapter ` +
        `allows ${most} along each axis`,
    );
  }
  if (x <= most) {
    return [[x, y, z], packed];
  }
  const layers = Math.ceil(x / most);
  return [[Math.ceil(x / layers), y, layers], packed];
}

/** The uniform structs of a sequence, in one buffer. */
class Scalars {
  private readonly slots: { offset: number; words: DataView }[] = [];
  private nbytes = 0;
  private buffer: GPUBuffer | undefined;

  constructor(
    private readonly device: GPUDevice,
    private readonly owned: GPUBuffer[],
  ) {}

  add(
    built: BuiltKernel,
    values: readonly { readonly value: bigint; readonly dtype: string }[],
    packed: number | undefined,
  ): () => GPUBufferBinding {
    const count = values.length + (packed === undefined ? 0 : 1);
    // A struct in the uniform address space is bound in whole vectors.
    const size = Math.max(16, Math.ceil(count / 4) * 16);
    const words = new DataView(new ArrayBuffer(size));
    values.forEach(({ value, dtype }, index) => {
      if (dtype === "int32") {
        words.setInt32(4 * index, Number(value), true);
      } else if (dtype === "uint32" || dtype === "bool") {
        words.setUint32(4 * index, Number(value), true);
      } else if (dtype === "float32") {
        words.setFloat32(4 * index, Number(value), true);
      } else {
        throw mismatch(built, `a scalar of dtype ${dtype}; WGSL takes int32, uint32 and float32`);
      }
    });
    if (packed !== undefined) {
      words.setUint32(4 * values.length, packed, true);
    }
    const alignment = this.device.limits.minUniformBufferOffsetAlignment;
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
    this.buffer = this.device.createBuffer({
      size: Math.ceil(this.nbytes / 4) * 4,
      usage: UNIFORM,
      mappedAtCreation: true,
    });
    const mapped = new Uint8Array(this.buffer.getMappedRange());
    for (const { offset, words } of this.slots) {
      mapped.set(new Uint8Array(words.buffer), offset);
    }
    this.buffer.unmap();
    this.owned.push(this.buffer);
  }
}
