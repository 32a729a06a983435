/**
 * Whose work the GPU does, and for how long: what was submitted runs in order, one after the other.
 *
 * A deadline is held against a session's own work. How long it waited behind another's is told here.
 */

/** Something that was submitted and is not done. */
interface Work {
  readonly owner: object;
  /** Told for how many milliseconds it had the GPU. */
  readonly told: (milliseconds: number) => void;
}

export class GpuClock {
  private readonly queue: Work[] = [];
  private headSince = 0;
  private total = 0;
  private readonly spent = new WeakMap<object, number>();

  constructor(private readonly device: GPUDevice) {}

  /** Note that something of `owner` was submitted; the milliseconds it will have taken. */
  submitted(owner: object): Promise<number> {
    if (this.queue.length === 0) {
      this.headSince = performance.now();
    }
    return new Promise((told) => {
      const work = { owner, told };
      this.queue.push(work);
      const done = (): void => {
        this.done(work);
      };
      this.device.queue.onSubmittedWorkDone().then(done, done);
    });
  }

  /** Whose work runs now; null where the GPU is idle. */
  get owner(): object | null {
    return this.queue[0]?.owner ?? null;
  }

  /** Milliseconds for which what runs now has run. */
  get headMilliseconds(): number {
    return this.queue.length === 0 ? 0 : performance.now() - this.headSince;
  }

  /** Milliseconds for which the GPU has done an owner's work so far. */
  own(owner: object): number {
    return (this.spent.get(owner) ?? 0) + (this.owner === owner ? this.headMilliseconds : 0);
  }

  /** Milliseconds for which the GPU has done others' work so far. */
  others(owner: object): number {
    const now = this.owner === null || this.owner === owner ? 0 : this.headMilliseconds;
    return this.total - (this.spent.get(owner) ?? 0) + now;
  }

  private done(work: Work): void {
    const end = this.queue.indexOf(work);
    for (const { owner, told } of this.queue.splice(0, end + 1)) {
      const elapsed = performance.now() - this.headSince;
      this.headSince += elapsed;
      this.total += elapsed;
      this.spent.set(owner, (this.spent.get(owner) ?? 0) + elapsed);
      told(elapsed);
    }
  }
}
