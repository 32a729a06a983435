/** The command that runs operators and entries. */

import { inputError, protocolError, TapmlError } from "./errors";
import { KernelTimer } from "./kernel_timer";
import type { LaunchSequence, SlotPlace } from "./launches";
import type { BuiltLibrary } from "./library_store";
import type { TensorUse } from "./loaded_library";
import type { DeviceBuffer, Memory } from "./memory";
import { workDone } from "./noticed";
import { Readback, type StagePool } from "./readback";
import type { Fields, Index, RunningBatch, Waiting } from "./running_batch";
import { array, handleOf, integer, map, octets, shown, text } from "./wire";

const MAX_RANK = 32;
const GUARD_BYTES = 4096;
const GUARD_PATTERN = [0xc3, 0xa5, 0x5a, 0x3c, 0x96, 0x69, 0x0f, 0xf0];

/** Kernels launched so far and operators called, for the page. */
export interface Counters {
  kernels: number;
  calls: number;
  lastCall: string;
}

export class Calls {
  /** Null if kernels are timed by wall clock. */
  private readonly timer: KernelTimer | null;

  constructor(
    private readonly memory: Memory,
    private readonly pool: StagePool,
    private readonly counters: Counters,
  ) {
    this.timer = KernelTimer.on(memory, pool);
  }

  call(batch: RunningBatch, index: Index, [library, name, tensors, symbols, options]: Fields): Waiting {
    const { loaded } = builtOf(batch, library);
    const given = map(options, "options of a call");
    const poison = given["workspace_poison"];
    const called = text(name, "operator name");
    const uses = tensorsOf(batch, tensors);
    const values = symbolsOf(symbols);
    const timed = given["timed"] === true;
    this.counters.calls += 1;
    this.counters.lastCall = called;
    if (poison === undefined || poison === null) {
      const bind = (): LaunchSequence => loaded.bindCall(batch.steps, called, uses, values);
      return this.launch(batch, index, bind, timed);
    }
    const pattern = octets(poison, "workspace poison", 4096);
    if (pattern.length === 0) {
      throw inputError("workspace_poison must hold at least one byte");
    }
    return this.poisoned(batch, index, loaded, called, uses, values, pattern, timed);
  }

  private launch(batch: RunningBatch, index: Index, bind: () => LaunchSequence, timed: boolean): Waiting {
    if (timed) {
      return this.timer === null
        ? this.byWallClock(batch, index, bind)
        : this.byDeviceClock(batch, index, bind(), this.timer);
    }
    const launches = bind();
    batch.steps.encode(this.counted(launches), (encoder) => launches.encode(encoder));
    return undefined;
  }

  private async byDeviceClock(
    batch: RunningBatch,
    index: Index,
    launches: LaunchSequence,
    timer: KernelTimer,
  ): Promise<void> {
    const nanoseconds = timer.encode(batch.steps, this.counted(launches), launches);
    await batch.steps.settle();
    batch.give(index, [await nanoseconds(), []]);
  }

  /**
   * Measure from an idle GPU to an idle GPU. Launches are bound after the first wait: meanwhile another
   * session may move the workspaces that both use.
   */
  private async byWallClock(batch: RunningBatch, index: Index, bind: () => LaunchSequence): Promise<void> {
    const { queue } = this.memory.device;
    batch.steps.flush();
    await workDone(queue);
    if (batch.session.ended !== "") {
      throw new TapmlError("DeviceLostError", "the session ended before a call was timed");
    }
    const launches = bind();
    const started = performance.now();
    batch.steps.encode(this.counted(launches), (encoder) => launches.encode(encoder));
    await batch.steps.settle();
    await workDone(queue);
    batch.give(index, [Math.round((performance.now() - started) * 1e6), []]);
  }

  /** Count launches for the page; returns the stage's name. */
  private counted({ count }: LaunchSequence): string {
    this.counters.kernels += count;
    return `launching ${count} kernels of '${this.counters.lastCall}'`;
  }

  private async idle(): Promise<number> {
    await workDone(this.memory.device.queue);
    return performance.now();
  }

  /** Run with separate memory for every workspace, poisoned, between two guard bands. */
  private async poisoned(
    batch: RunningBatch,
    index: Index,
    loaded: BuiltLibrary["loaded"],
    name: string,
    tensors: readonly TensorUse[],
    symbols: ReadonlyMap<string, bigint>,
    poison: Uint8Array,
    timed: boolean,
  ): Promise<void> {
    const { memory } = this;
    const { steps } = batch;
    // The guard bands depend on the poison: a kernel that reads them gives different results.
    const pattern = Uint8Array.from(GUARD_PATTERN, (byte) => byte ^ (poison[0] ?? 0));
    const buffers: DeviceBuffer[] = [];
    let owned: LaunchSequence | undefined;
    try {
      const { plan, launches } = loaded.bindOn(
        steps,
        name,
        tensors,
        symbols,
        (planned) =>
          planned.workspaces.map(({ nbytes }): SlotPlace => {
            const buffer = memory.allocate(steps, nbytes + 2 * GUARD_BYTES);
            buffers.push(buffer);
            memory.fill(steps, buffer, 0, buffer.nbytes, pattern);
            memory.fill(steps, buffer, GUARD_BYTES, nbytes, poison);
            return { buffer, byteOffset: GUARD_BYTES, band: { nbytes, behind: GUARD_BYTES } };
          }),
        GUARD_BYTES,
      );
      owned = launches;
      const timer = timed ? this.timer : null;
      let started = 0;
      let nanoseconds: (() => Promise<number>) | undefined;
      if (timer !== null) {
        nanoseconds = timer.encode(steps, this.counted(launches), launches);
      } else {
        steps.flush();
        started = timed ? await this.idle() : 0;
        steps.encode(this.counted(launches), (encoder) => launches.encode(encoder));
      }
      const guards = new Readback(memory, this.pool, Math.max(1, 2 * GUARD_BYTES * buffers.length));
      batch.readbacks.push(guards);
      buffers.forEach((buffer, place) => {
        const at = 2 * GUARD_BYTES * place;
        guards.add(steps, buffer, 0, GUARD_BYTES, at);
        guards.add(steps, buffer, buffer.nbytes - GUARD_BYTES, GUARD_BYTES, at + GUARD_BYTES);
      });
      await steps.settle();
      const passed = async (): Promise<number> => ((await this.idle()) - started) * 1e6;
      const elapsed = timed ? Math.round(await (nanoseconds ?? passed)()) : null;
      const bytes = await guards.take();
      const damaged = plan.workspaces.filter(({ nbytes }, place) => {
        const at = 2 * GUARD_BYTES * place;
        const phase = (GUARD_BYTES + nbytes) % pattern.length;
        return !intact(bytes, at, pattern, 0) || !intact(bytes, at + GUARD_BYTES, pattern, phase);
      });
      batch.give(index, [elapsed, damaged.map((workspace) => workspace.name)]);
    } finally {
      owned?.close();
      for (const buffer of buffers) {
        memory.free(buffer);
      }
    }
  }
}

function intact(bytes: Uint8Array, at: number, pattern: Uint8Array, phase: number): boolean {
  for (let place = 0; place < GUARD_BYTES; place += 1) {
    if (bytes[at + place] !== pattern[(place + phase) % pattern.length]) {
      return false;
    }
  }
  return true;
}

function builtOf(batch: RunningBatch, library: unknown): BuiltLibrary {
  const built = batch.session.libraries.get(handleOf(library));
  if (built === undefined) {
    throw inputError(`no Library has the handle ${String(library)}: it was never loaded or unloaded`);
  }
  return built;
}

function symbolsOf(symbols: unknown): Map<string, bigint> {
  return new Map(
    Object.entries(map(symbols, "symbols of a call")).map(([symbol, value]) => {
      if (typeof value === "bigint" || (typeof value === "number" && Number.isSafeInteger(value))) {
        return [symbol, BigInt(value)] as const;
      }
      throw protocolError(`symbol '${symbol.slice(0, 60)}' must have an integer value`);
    }),
  );
}

function tensorsOf(batch: RunningBatch, tensors: unknown): TensorUse[] {
  return array(tensors, "tensors").map((tensor): TensorUse => {
    const fields = array(tensor, "tensor", 4);
    if (fields.length !== 4) {
      throw protocolError(`a tensor is [handle, byte offset, shape, dtype], got ${shown(tensor)}`);
    }
    const [handle, byteOffset, shape, dtype] = fields;
    return {
      buffer: batch.session.buffer(handle),
      byteOffset: integer(byteOffset, "byte offset"),
      shape: array(shape, "shape", MAX_RANK).map((extent) => BigInt(integer(extent, "extent"))),
      dtype: text(dtype, "dtype", 40),
    };
  });
}
