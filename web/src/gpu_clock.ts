/**
 * Whose work the GPU does, and for how long; submits run in order.
 *
 * Deadlines count a session's own work only: this clock separates it from the time of others.
 */

interface Work {
  readonly owner: object;
  /** Called with the milliseconds for which it had the GPU. */
  readonly told: (milliseconds: number) => void;
}

export class GpuClock {
  private readonly queue: Work[] = [];
  private headSince = 0;
  private total = 0;
  private readonly spent = new WeakMap<object, number>();

  constructor(private readonly device: GPUDevice) {}

  /** Note a submit of `owner`; resolves to the milliseconds it took. */
  submitted(owner: object): Promise<number> {
    if (this.queue.length === 0) {
      this.headSince = performance.now();
    }
    return new Promise((told) => {
      const work = { owner, told };
      this.queue.push(work);
      const done = (): void => this.done(work);
      this.device.queue.onSubmittedWorkDone().then(done, done);
    });
  }

  /** The owner of the running work; null if the GPU is idle. */
  get owner(): object | null {
    return this.queue[0]?.owner ?? null;
  }

  /** Milliseconds since the running work began. */
  get headMilliseconds(): number {
    return this.queue.length === 0 ? 0 : performance.now() - this.headSince;
  }

  /** Milliseconds of the owner's work so far. */
  own(owner: object): number {
    return (this.spent.get(owner) ?? 0) + (this.owner === owner ? this.headMilliseconds : 0);
  }

  /** Milliseconds of others' work so far. */
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
