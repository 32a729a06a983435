/** Kernel times by the GPU's clock, if the adapter exposes it. */

import type { LaunchSequence } from "./launches";
import type { Memory } from "./memory";
import { noticed } from "./noticed";
import type { StagePool } from "./readback";
import type { Steps } from "./steps";

const QUERY_RESOLVE = 0x200;
const COPY_SRC = 0x04;
const MAP_READ = 1;
const NBYTES = 16;

/** Whether kernels are timed by the GPU's clock, not by wall clock. */
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

  /** A timer, if the device has a clock. */
  static on(memory: Memory, pool: StagePool): KernelTimer | null {
    return hasDeviceClock(memory.device) ? new KernelTimer(memory, pool) : null;
  }

  /** Encode launches; the result waits for the nanoseconds they took. */
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
      // The clock is coarse, 0.1 ms in some browsers, and may go back: report at least 1 ns.
      return launches.count === 0 ? 0 : Math.max(1, Number(end - begin));
    };
  }
}
