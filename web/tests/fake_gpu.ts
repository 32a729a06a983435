/** A GPU that computes nothing and notes what it is asked for; its work ends when a test says so. */

import type { Gpu } from "../src/gpu";

export class FakeGpu {
  /** How often each method was called since the last `forget`. */
  counts = new Map<string, number>();
  /** Whether work that is submitted ends at once. */
  busy = false;
  /** Filters of error scopes whose next pop finds an error. */
  readonly failing: string[] = [];
  destroyed = 0;
  private readonly scopes: string[] = [];
  private waiting: (() => void)[] = [];

  readonly gpu = {
    device: this.device(),
    description: {},
    features: new Set(),
    compiler: "unknown",
    name: "fake",
  } as unknown as Gpu;

  forget(): void {
    this.counts = new Map();
  }

  count(name: string): number {
    return this.counts.get(name) ?? 0;
  }

  /** End what was submitted. */
  finish(): void {
    this.busy = false;
    const { waiting } = this;
    this.waiting = [];
    waiting.forEach((resolve) => resolve());
  }

  private note(name: string): void {
    this.counts.set(name, this.count(name) + 1);
  }

  private done(): Promise<void> {
    return this.busy
      ? new Promise((resolve) => this.waiting.push(resolve))
      : Promise.resolve();
  }

  private buffer(size: number): object {
    return {
      size,
      destroy: () => (this.destroyed += 1),
      mapAsync: () => this.done(),
      getMappedRange: (at = 0, nbytes = size - at) => new ArrayBuffer(nbytes),
      unmap: () => undefined,
    };
  }

  private encoder(): object {
    const pass = {
      setPipeline: () => undefined,
      setBindGroup: () => undefined,
      dispatchWorkgroups: () => this.note("dispatchWorkgroups"),
      end: () => undefined,
    };
    return {
      copyBufferToBuffer: () => undefined,
      clearBuffer: () => undefined,
      beginComputePass: () => pass,
      finish: () => null,
    };
  }

  private device(): object {
    const limits = {
      maxBufferSize: 1 << 30,
      maxStorageBufferBindingSize: 1 << 30,
      maxStorageBuffersPerShaderStage: 8,
      maxComputeInvocationsPerWorkgroup: 256,
      maxComputeWorkgroupSizeX: 256,
      maxComputeWorkgroupSizeY: 256,
      maxComputeWorkgroupSizeZ: 64,
      maxComputeWorkgroupStorageSize: 1 << 14,
      maxComputeWorkgroupsPerDimension: 65535,
      minStorageBufferOffsetAlignment: 256,
      minUniformBufferOffsetAlignment: 256,
    };
    const noted = <T>(name: string, make: (...all: never[]) => T): ((...all: never[]) => T) =>
      (...all) => {
        this.note(name);
        return make(...all);
      };
    return {
      limits,
      features: new Set(),
      queue: {
        submit: noted("submit", () => undefined),
        writeBuffer: noted("writeBuffer", () => undefined),
        onSubmittedWorkDone: () => this.done(),
      },
      pushErrorScope: (filter: string) => this.scopes.push(filter),
      popErrorScope: () => {
        const at = this.failing.indexOf(this.scopes.pop() ?? "");
        const failed = at >= 0;
        this.failing.splice(at, failed ? 1 : 0);
        return Promise.resolve(failed ? { message: "made up" } : null);
      },
      createBuffer: noted("createBuffer", ({ size }: { size: number }) => this.buffer(size)),
      createBindGroup: noted("createBindGroup", () => ({})),
      createBindGroupLayout: () => ({}),
      createPipelineLayout: () => ({}),
      createShaderModule: () => ({ getCompilationInfo: () => Promise.resolve({ messages: [] }) }),
      createComputePipelineAsync: () => Promise.resolve({}),
      createComputePipeline: () => ({}),
      createCommandEncoder: noted("createCommandEncoder", () => this.encoder()),
    };
  }
}
