/** The time that launches take by the GPU's own clock, where the adapter lets it be read. */

import type { LaunchSequence } from "./launches";
import type { Memory } from "./memory";
import { noticed } from "./noticed";
import type { StagePool } from "./readback";
import type { Steps } from "./steps";

const QUERY_RESOLVE = 0x200;
const COPY_SRC = 0x04;
const MAP_READ = 1;
const NBYTES = 16;

/** Whether kernels are timed by the GPU's clock: else it is wall clock, from idle to idle. */
export const hasDeviceClock = (device: GPUDevice): boolean =>
  (device.features as ReadonlySet<string> | undefined)?.has("timestamp-query") === true;

export class KernelTimer {
  private readonly querySet: GPUQuerySet;
  private readonly resolved: GPUBuffer;

  private constructor(
    private readonly memory: Memory,
    private readonly pool: StagePool,
  ) {
    const { device } = memory;
    this.querySet = device.createQuerySet({ type: "timestamp", count: 2 });
    this.resolved = device.createBuffer({ size: NBYTES, usage: QUERY_RESOLVE | COPY_SRC });
  }

  /** A timer, where the device has a clock. */
  static on(memory: Memory, pool: StagePool): KernelTimer | null {
    return hasDeviceClock(memory.device) ? new KernelTimer(memory, pool) : null;
  }

  /** Encode launches, and give what waits for the nanoseconds they took. */
  encode(steps: Steps, stage: string, launches: LaunchSequence): () => Promise<number> {
    const stamps = this.pool.take(NBYTES);
    steps.encode(stage, (encoder) => {
      launches.encode(encoder, { querySet: this.querySet, begin: 0, end: 1 });
      encoder.resolveQuerySet(this.querySet, 0, 2, this.resolved, 0);
      encoder.copyBufferToBuffer(this.resolved, 0, stamps, 0, NBYTES);
    });
    return async () => {
      steps.flush();
      await noticed(this.memory.device.queue, stamps.mapAsync(MAP_READ, 0, NBYTES));
      const [begin = 0n, end = 0n] = new BigUint64Array(stamps.getMappedRange(0, NBYTES));
      stamps.unmap();
      this.pool.giveBack(stamps);
      // The clock has steps, 0.1 ms in some browsers, and may be set back: no time is none at all.
      return launches.count === 0 ? 0 : Math.max(1, Number(end - begin));
    };
  }
}
