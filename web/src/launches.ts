/**
 * Launches bound to memory: bind groups, scalars, and copies where WebGPU would refuse a binding.
 *
 * A binding starts at a multiple of 256 bytes, and a dispatch either reads a buffer or writes it. If a
 * dispatch also writes the buffer of a read window, a pipeline variant binds the window as written. If
 * windows overlap or are not aligned, scratch memory replaces them, with copies before the dispatch
 * and, for outputs, after it.
 */

import type { PlannedLaunch } from "./call_plan";
import { inputError, TapmlError } from "./errors";
import { mostBound } from "./gpu";
import { hasUniform, type BuiltKernel } from "./kernels";
import type { DeviceBuffer, Memory } from "./memory";
import { Scalars } from "./scalars";
import type { Access } from "./shader";
import type { Steps } from "./steps";
import { Submission } from "./submission";

const SCRATCH = 0x80 | 0x04 | 0x08;

/** Memory behind a slot of a plan. */
export interface SlotPlace {
  readonly buffer: DeviceBuffer;
  readonly byteOffset: number;
  /** Bytes of the slot and of the guard band behind it: WebGPU confines a kernel to its binding. */
  readonly band?: { readonly nbytes: number; readonly behind: number };
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

interface Pass {
  readonly before: readonly Copy[];
  readonly launches: BoundLaunch[];
  readonly after: readonly Copy[];
}

/** Where the GPU writes a sequence's start and end times. */
export interface Timestamps {
  readonly querySet: GPUQuerySet;
  readonly begin: number;
  readonly end: number;
}

interface Binding {
  readonly buffer: DeviceBuffer;
  readonly offset: number;
  readonly nbytes: number;
  readonly access: Access;
  /** Bound as declared, as if written, or through scratch memory. */
  way: "plain" | "written" | "scratch";
}

/** Bound launches that can be encoded repeatedly. */
export class LaunchSequence {
  readonly count: number;
  /** Its memory turned out to be missing: bind again. */
  broken = false;
  private readonly owned: GPUBuffer[] = [];
  private readonly passes: readonly Pass[];
  /** Bindings through scratch memory per run. */
  copies = 0;

  constructor(
    private readonly memory: Memory,
    steps: Steps,
    kernels: ReadonlyMap<string, BuiltKernel>,
    planned: readonly PlannedLaunch[],
    places: readonly SlotPlace[],
  ) {
    try {
      const launches = steps.run(
        "binding memory to kernels",
        () => {
          const scalars = new Scalars(memory, this.owned);
          const bound = planned.map((launch) => this.bind(kernels, launch, places, scalars));
          scalars.write();
          return bound.map((make) => make());
        },
        () => {
          this.broken = true;
        },
      );
      this.count = launches.length;
      this.passes = passesOf(launches);
    } catch (error) {
      this.close();
      throw error;
    }
  }

  encode(encoder: GPUCommandEncoder, timestamps?: Timestamps): void {
    const last = this.passes.length - 1;
    this.passes.forEach(({ before, launches, after }, place) => {
      for (const { window, offset, scratch, nbytes } of before) {
        const source = { buffer: window, byteOffset: offset };
        this.memory.encodeCopy(encoder, source, { buffer: scratch, byteOffset: 0 }, nbytes);
      }
      const pass = encoder.beginComputePass(stamped(timestamps, place === 0, place === last));
      let set: GPUComputePipeline | undefined;
      for (const { pipeline, group, grid } of launches) {
        if (pipeline !== set) {
          pass.setPipeline(pipeline);
          set = pipeline;
        }
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(...grid);
      }
      pass.end();
      for (const { window, offset, scratch, nbytes } of after) {
        const target = { buffer: window, byteOffset: offset };
        this.memory.encodeCopy(encoder, { buffer: scratch, byteOffset: 0 }, target, nbytes);
      }
    });
  }

  close(): void {
    for (const buffer of this.owned.splice(0)) {
      this.memory.allocated -= buffer.size;
      Submission.for(this.memory.device).discard(buffer);
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
    const { limits } = this.memory.device;
    const bindings = bindingsOf(built, launch, places, limits);
    settle(built, bindings);
    const values = launch.arguments.flatMap((each) => (each.kind === "scalar" ? [each] : []));
    const dtypes = values.map((value) => value.dtype);
    if (dtypes.join() !== built.shape.scalars.join()) {
      throw mismatch(built, `scalars (${dtypes.join()}), its text has (${built.shape.scalars.join()})`);
    }
    const [grid, packed] = foldGrid(built, launch, limits);
    const slot = hasUniform(built.shape)
      ? scalars.add(values, built.shape.packsGrid ? packed : undefined)
      : undefined;
    const written = new Set(bindings.flatMap((binding, index) => (binding.way === "written" ? [index] : [])));
    return () => {
      const copies: Copy[] = [];
      const entries: GPUBindGroupEntry[] = bindings.map((binding, index) => ({
        binding: index,
        resource: this.resource(binding, copies),
      }));
      if (slot !== undefined) {
        entries.push({ binding: bindings.length, resource: slot() });
      }
      const { layout, pipeline } = built.pipeline(written);
      const group = this.memory.device.createBindGroup({ layout, entries });
      return { pipeline, group, grid, copies };
    };
  }

  private resource(binding: Binding, copies: Copy[]): GPUBufferBinding {
    const { buffer, offset, nbytes, access } = binding;
    const size = boundSize(nbytes);
    if (binding.way !== "scratch") {
      return { buffer: buffer.gpu, offset, size };
    }
    const scratch = this.memory.device.createBuffer({ size, usage: SCRATCH });
    this.memory.allocated += size;
    this.owned.push(scratch);
    // A binding is never empty; a kernel over an empty tensor does not read it.
    if (nbytes > 0) {
      this.copies += 1;
      copies.push({ window: buffer.gpu, offset, scratch, nbytes, back: access === "read_write" });
    }
    return { buffer: scratch, offset: 0, size };
  }
}

/** Group launches into as few passes as their copies allow. */
function passesOf(launches: readonly BoundLaunch[]): Pass[] {
  const passes: Pass[] = [];
  let open: Pass | undefined;
  for (const launch of launches) {
    const after = launch.copies.filter((copy) => copy.back);
    if (open === undefined || launch.copies.length > 0) {
      open = { before: launch.copies, launches: [], after };
      passes.push(open);
    }
    open.launches.push(launch);
    if (after.length > 0) {
      open = undefined;
    }
  }
  return passes;
}

function stamped(
  timestamps: Timestamps | undefined,
  first: boolean,
  last: boolean,
): GPUComputePassDescriptor {
  if (timestamps === undefined || !(first || last)) {
    return {};
  }
  const { querySet, begin, end } = timestamps;
  return {
    timestampWrites: {
      querySet,
      ...(first ? { beginningOfPassWriteIndex: begin } : {}),
      ...(last ? { endOfPassWriteIndex: end } : {}),
    },
  };
}

const boundSize = (nbytes: number): number => Math.max(4, Math.ceil(nbytes / 4) * 4);

function overlap(a: Binding, b: Binding): boolean {
  return (
    a.buffer === b.buffer &&
    a.nbytes > 0 &&
    b.nbytes > 0 &&
    a.offset < b.offset + boundSize(b.nbytes) &&
    b.offset < a.offset + boundSize(a.nbytes)
  );
}

/** Decide how to bind each window so that WebGPU accepts the combination. */
function settle(built: BuiltKernel, bindings: readonly Binding[]): void {
  const written = bindings.filter((each) => each.access === "read_write");
  written.forEach((binding, index) => {
    const other = written.slice(0, index).find((each) => overlap(each, binding));
    if (other !== undefined) {
      throw inputError(
        `kernel '${built.kernel.name}' is to write two windows that overlap, at bytes ` +
          `${other.offset} and ${binding.offset} of one buffer; give them separate memory`,
      );
    }
  });
  const shown = written.filter((each) => each.way !== "scratch");
  for (const binding of bindings) {
    const busy = shown.some((each) => each.buffer === binding.buffer);
    if (binding.access === "read" && binding.way === "plain" && busy) {
      if (shown.some((each) => overlap(each, binding))) {
        binding.way = "scratch";
      } else {
        binding.way = "written";
        shown.push(binding);
      }
    }
  }
}

function mismatch(built: BuiltKernel, what: string): TapmlError {
  return inputError(`kernel '${built.kernel.name}' is launched with ${what}`);
}

function checkBlock(built: BuiltKernel, launch: PlannedLaunch): void {
  const { workgroup } = built.shape;
  if (launch.block.some((extent, axis) => extent !== BigInt(workgroup[axis] ?? 1))) {
    throw mismatch(
      built,
      `blocks of (${launch.block.join(", ")}); its text has workgroups of (${workgroup.join(", ")})`,
    );
  }
}

function bindingsOf(
  built: BuiltKernel,
  launch: PlannedLaunch,
  places: readonly SlotPlace[],
  limits: GPUSupportedLimits,
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
    const { buffer } = place;
    const offset = place.byteOffset + window.byteOffset;
    const most = mostBound(limits);
    if (boundSize(window.nbytes) > most) {
      throw new TapmlError(
        "LimitExceededError",
        `kernel '${built.kernel.name}': buffer ${index} is bound with ${window.nbytes} bytes; this ` +
          `browser's adapter binds at most ${most}`,
      );
    }
    // WebGPU clamps a stray write to the end of the binding: that must lie in a guard band.
    const { band = { nbytes: -1, behind: 0 } } = place;
    const ends = band.nbytes === window.byteOffset + window.nbytes;
    const watched = ends && window.nbytes > 0 && !built.shape.asksLength;
    const nbytes = watched ? Math.min(window.nbytes + band.behind, most) : window.nbytes;
    const size = boundSize(nbytes);
    const fits = offset % limits.minStorageBufferOffsetAlignment === 0 && offset + size <= buffer.gpu.size;
    const access = buffers[index] ?? "read";
    return { buffer, offset, nbytes, access, way: fits ? "plain" : "scratch" };
  });
}

/** The dispatched grid, and the value of `packGridDimX`. */
function foldGrid(
  built: BuiltKernel,
  launch: PlannedLaunch,
  limits: GPUSupportedLimits,
): [readonly [number, number, number], number] {
  const [x, y, z] = launch.grid.map(Number) as [number, number, number];
  const most = limits.maxComputeWorkgroupsPerDimension;
  const packed = x - 1;
  const folds = built.shape.packsGrid;
  if (folds && z !== 1) {
    throw inputError(
      `kernel '${built.kernel.name}' folds its grid into z and was launched over (${x}, ${y}, ${z})`,
    );
  }
  if (y > most || z > most || (x > most && !(folds && Math.ceil(x / most) <= most))) {
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
