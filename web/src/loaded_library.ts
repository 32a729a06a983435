/**
 * A Library whose kernels are built: calls of its operators and entries on the GPU.
 *
 * The first call with new shapes plans and checks; a later one only binds memory, and one with the
 * same memory only launches. Workspaces are kept and shared by all calls: launches run in order.
 */

import { planCall, tensorBytes, type CallPlan, type TensorShape } from "./call_plan";
import { itemsizeOf } from "./dtype";
import { inputError } from "./errors";
import type { Gpu } from "./gpu";
import { buildKernels, type BuiltKernel } from "./kernels";
import { LaunchSequence, type SlotPlace } from "./launches";
import type { Library } from "./library";
import type { DeviceBuffer, Memory } from "./memory";
import type { Steps } from "./steps";

const MAX_PLANS = 256;
const MAX_BOUND = 4;
const MAX_KEPT_WORKSPACE_BYTES = 256 << 20;
const NOTHING: TensorShape = { shape: [0n], dtype: "uint8" };

export interface TensorUse extends TensorShape {
  readonly buffer: DeviceBuffer;
  readonly byteOffset: number;
}

interface PreparedCall {
  readonly plan: CallPlan;
  readonly bound: Map<string, BoundCall>;
}

interface BoundCall {
  readonly launches: LaunchSequence;
  readonly generation: number;
}

export interface RecordedCall {
  readonly name: string;
  readonly plan: CallPlan;
  readonly tensors: readonly TensorUse[];
  bound: BoundCall;
}

/** A tensor's bytes, and those behind it up to the next tensor of the call. */
function bandOf(
  { buffer, byteOffset }: SlotPlace,
  nbytes: number,
  tensors: readonly TensorUse[],
  most: number,
): NonNullable<SlotPlace["band"]> {
  const end = byteOffset + nbytes;
  const starts = tensors
    .filter((other) => other.buffer === buffer && other.byteOffset >= end)
    .map((other) => other.byteOffset);
  return { nbytes, behind: Math.min(buffer.nbytes, end + most, ...starts) - end };
}

export class LoadedLibrary {
  private readonly prepared = new Map<string, PreparedCall>();
  private readonly workspaces = new Map<number, DeviceBuffer>();
  private generation = 0;

  private constructor(
    private readonly memory: Memory,
    readonly library: Library,
    private readonly kernels: ReadonlyMap<string, BuiltKernel>,
  ) {}

  static async load(gpu: Gpu, memory: Memory, library: Library): Promise<LoadedLibrary> {
    return new LoadedLibrary(memory, library, await buildKernels(gpu, library));
  }

  /** The launches of a call on this memory. */
  bindCall(
    steps: Steps,
    name: string,
    tensors: readonly TensorUse[],
    symbols: ReadonlyMap<string, bigint>,
  ): LaunchSequence {
    const prepared = this.prepare(name, tensors, symbols);
    const key = tensors.map((each) => `${each.buffer.id}@${each.byteOffset}`).join(" ");
    let bound = prepared.bound.get(key);
    if (bound === undefined || this.isStale(bound)) {
      bound?.launches.close();
      prepared.bound.delete(key);
      bound = this.bind(steps, name, prepared.plan, tensors);
      prepared.bound.set(key, bound);
      this.forgetOldest(prepared.bound, MAX_BOUND, (each) => each.launches.close());
    }
    return bound.launches;
  }

  record(
    steps: Steps,
    name: string,
    tensors: readonly TensorUse[],
    symbols: ReadonlyMap<string, bigint>,
  ): RecordedCall {
    const { plan } = this.prepare(name, tensors, symbols);
    return { name, plan, tensors, bound: this.bind(steps, name, plan, tensors) };
  }

  /** The launches of a recorded call, bound again if another call has moved the workspaces. */
  bindRecorded(steps: Steps, recorded: RecordedCall): LaunchSequence {
    if (this.isStale(recorded.bound)) {
      recorded.bound.launches.close();
      recorded.bound = this.bind(steps, recorded.name, recorded.plan, recorded.tensors);
    }
    return recorded.bound.launches;
  }

  /** The launches of a call on the caller's workspaces, e.g. between guard bands. */
  bindOn(
    steps: Steps,
    name: string,
    tensors: readonly TensorUse[],
    symbols: ReadonlyMap<string, bigint>,
    place: (plan: CallPlan) => readonly SlotPlace[],
    guardBytes: number,
  ): { readonly plan: CallPlan; readonly launches: LaunchSequence } {
    const { plan } = this.prepare(name, tensors, symbols);
    const given = this.checkWindows(name, plan, tensors).map((each, index): SlotPlace => ({
      ...each,
      band: bandOf(each, Number(tensorBytes(plan.tensors[index] ?? NOTHING)), tensors, guardBytes),
    }));
    const places = [...given, ...place(plan)];
    const launches = new LaunchSequence(this.memory, steps, this.kernels, plan.launches, places);
    return { plan, launches };
  }

  /** Free the memory kept between calls; the next call allocates again. */
  releaseWorkspaces(): void {
    for (const buffer of this.workspaces.values()) {
      this.memory.free(buffer);
    }
    this.workspaces.clear();
    this.generation += 1;
    for (const prepared of this.prepared.values()) {
      this.forgetOldest(prepared.bound, 0, (each) => each.launches.close());
    }
  }

  private isStale({ generation, launches }: BoundCall): boolean {
    return generation !== this.generation || launches.broken;
  }

  private prepare(
    name: string,
    tensors: readonly TensorUse[],
    symbols: ReadonlyMap<string, bigint>,
  ): PreparedCall {
    const shapes = tensors.map(({ shape, dtype }) => ({ shape, dtype }));
    const key = JSON.stringify([
      name,
      shapes.map(({ shape, dtype }) => [shape.map(String), dtype]),
      [...symbols].map(([symbol, value]) => [symbol, String(value)]).sort(),
    ]);
    let prepared = this.prepared.get(key);
    if (prepared === undefined) {
      prepared = { plan: planCall(this.library, name, shapes, symbols), bound: new Map() };
      this.prepared.set(key, prepared);
      this.forgetOldest(this.prepared, MAX_PLANS, (each) => {
        this.forgetOldest(each.bound, 0, (bound) => bound.launches.close());
      });
    }
    return prepared;
  }

  private forgetOldest<K, V>(map: Map<K, V>, most: number, end: (value: V) => void): void {
    for (const [key, value] of map) {
      if (map.size <= most) {
        return;
      }
      map.delete(key);
      end(value);
    }
  }

  private bind(steps: Steps, name: string, plan: CallPlan, tensors: readonly TensorUse[]): BoundCall {
    const places = [...this.checkWindows(name, plan, tensors), ...this.placeWorkspaces(steps, plan)];
    const launches = new LaunchSequence(this.memory, steps, this.kernels, plan.launches, places);
    return { launches, generation: this.generation };
  }

  private checkWindows(name: string, plan: CallPlan, tensors: readonly TensorUse[]): readonly SlotPlace[] {
    return tensors.map((tensor, index) => {
      const need = tensorBytes(plan.tensors[index] ?? tensor);
      const end = BigInt(tensor.byteOffset) + need;
      const itemsize = itemsizeOf(tensor.dtype);
      if (end > BigInt(tensor.buffer.nbytes) || tensor.byteOffset % itemsize !== 0) {
        const program = this.library.operators.get(name) ?? this.library.entries.get(name);
        throw inputError(
          `${name}: parameter '${program?.parameters[index]?.name}': a tensor of ${need} bytes at ` +
            `byte ${tensor.byteOffset} must lie within its buffer of ${tensor.buffer.nbytes} ` +
            `bytes and start at a multiple of ${itemsize}`,
        );
      }
      return { buffer: tensor.buffer, byteOffset: tensor.byteOffset };
    });
  }

  private placeWorkspaces(steps: Steps, plan: CallPlan): SlotPlace[] {
    const needed = new Map<number, number>();
    for (const { shared, nbytes } of plan.workspaces) {
      needed.set(shared, Math.max(needed.get(shared) ?? 0, nbytes));
    }
    const grown = [...needed].filter(
      ([shared, nbytes]) => (this.workspaces.get(shared)?.nbytes ?? -1) < nbytes,
    );
    if (grown.length > 0) {
      this.generation += 1;
      const kept = [...this.workspaces].filter(([shared]) => needed.has(shared));
      const total =
        kept.reduce((sum, [, buffer]) => sum + buffer.nbytes, 0) +
        grown.reduce((sum, [, nbytes]) => sum + nbytes, 0);
      for (const [shared, buffer] of [...this.workspaces]) {
        const grows = grown.some(([each]) => each === shared);
        if (grows || (total > MAX_KEPT_WORKSPACE_BYTES && !needed.has(shared))) {
          this.workspaces.delete(shared);
          this.memory.free(buffer);
        }
      }
      for (const [shared, nbytes] of grown) {
        this.place(steps, shared, nbytes);
      }
    }
    return plan.workspaces.map(({ shared }) => {
      const buffer = this.workspaces.get(shared);
      if (buffer === undefined) {
        throw inputError(`no memory for workspace ${shared}`);
      }
      return { buffer, byteOffset: 0 };
    });
  }

  /** Allocate a workspace; if memory runs out, the next call tries again. */
  private place(steps: Steps, shared: number, nbytes: number): void {
    const buffer = this.memory.allocate(steps, nbytes, () => {
      if (this.workspaces.get(shared) === buffer) {
        this.workspaces.delete(shared);
        this.memory.free(buffer);
        this.generation += 1;
      }
    });
    this.workspaces.set(shared, buffer);
  }
}
