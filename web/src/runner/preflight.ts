/** Compares the model's needs with this GPU's limits, before anything is loaded. */

import { planCall, tensorBytes, type CallPlan, type TensorShape } from "../call_plan";
import { inputError, TapmlError } from "../errors";
import { evaluate } from "../expression";
import { mostBound, type Gpu } from "../gpu";
import type { EntryProgram, Library } from "../library";
import type { Manifest } from "./manifest";

const SHOWN = 2;
const BUFFER = "Largest buffer";

/** The largest need of one limit. */
export interface Need {
  readonly what: string;
  readonly need: number;
  readonly has: number;
  /** Whether both count bytes. */
  readonly bytes: boolean;
  readonly where: string;
}

export interface Preflight {
  readonly needs: readonly Need[];
  /** Bytes of weights, state, and temporaries of the longest input. */
  readonly memoryBytes: number;
}

/** Needs of all entries at their longest input; raises a LimitExceededError that names the worst. */
export function preflight(library: Library, manifest: Manifest, gpu: Gpu): Preflight {
  const needs = new Needs(gpu);
  const resident = new Map<string, number>();
  let passing = 0;
  for (const [name, entry] of manifest.entries) {
    const program = library.entries.get(name);
    if (program === undefined) {
      throw inputError(`the kernels have no entry '${name}': make the folder again`);
    }
    const symbols = new Map([...entry.longest].map(([symbol, value]) => [symbol, BigInt(value)] as const));
    const at = [...symbols].map(([symbol, value]) => ` at ${symbol} = ${value}`).join("");
    const shapes = program.parameters.map(({ shape, dtype }): TensorShape => {
      return { shape: shape.map((extent) => evaluate(extent, symbols)), dtype };
    });
    const given = new Map(program.symbols.map((symbol) => [symbol, symbols.get(symbol) ?? 1n] as const));
    const plan = planCall(library, name, shapes, given);
    needs.addPlan(library, program, plan, at);
    let own = 0;
    program.parameters.forEach((parameter, index) => {
      const nbytes = Number(tensorBytes(shapes[index] ?? { shape: [0n], dtype: "uint8" }));
      needs.add(BUFFER, nbytes, gpu.device.limits.maxBufferSize, true, `${parameter.name}${at}`);
      if (/^(weight|state|next):/.test(parameter.name)) {
        resident.set(parameter.name, nbytes);
      } else {
        own += nbytes;
      }
    });
    passing = Math.max(passing, own + workspaceBytes(plan));
  }
  needs.check(manifest.model.name);
  const held = [...resident.values()].reduce((sum, nbytes) => sum + nbytes, 0);
  return { needs: needs.list(), memoryBytes: held + passing };
}

function workspaceBytes(plan: CallPlan): number {
  const shared = new Map<number, number>();
  for (const { shared: place, nbytes } of plan.workspaces) {
    shared.set(place, Math.max(shared.get(place) ?? 0, nbytes));
  }
  return [...shared.values()].reduce((sum, nbytes) => sum + nbytes, 0);
}

class Needs {
  private readonly found = new Map<string, Need>();
  private readonly features = new Map<string, string>();

  constructor(private readonly gpu: Gpu) {}

  add(what: string, need: number, has: number, bytes: boolean, where: string): void {
    if (need > (this.found.get(what)?.need ?? -1)) {
      this.found.set(what, { what, need, has, bytes, where });
    }
  }

  addPlan(library: Library, program: EntryProgram, plan: CallPlan, at: string): void {
    const { limits } = this.gpu.device;
    for (const { name, nbytes } of plan.workspaces) {
      this.add(BUFFER, nbytes, limits.maxBufferSize, true, `intermediate ${name}${at}`);
    }
    for (const launch of plan.launches) {
      const operator = program.calls[launch.step]?.operator ?? program.name;
      const where = `kernel '${launch.kernel}' of operator '${operator}'${at}`;
      const windows = launch.arguments.filter((each) => each.kind === "buffer");
      const [x, y, z] = launch.block;
      for (const { nbytes } of windows) {
        this.add("Largest binding", nbytes, mostBound(limits), true, where);
      }
      const buffers = limits.maxStorageBuffersPerShaderStage;
      this.add("Buffers of a kernel", windows.length, buffers, false, where);
      const threads = limits.maxComputeInvocationsPerWorkgroup;
      this.add("Threads in a workgroup", Number(x * y * z), threads, false, where);
      const along = limits.maxComputeWorkgroupsPerDimension;
      const [, columns, layers] = launch.grid;
      const most = columns > layers ? columns : layers;
      this.add("Workgroups along an axis", Number(most), along, false, where);
      const kernel = library.kernels.get(launch.kernel);
      const shared = kernel?.sharedMemoryBytes ?? 0;
      this.add("Workgroup memory", shared, limits.maxComputeWorkgroupStorageSize, true, where);
      for (const feature of kernel?.features ?? []) {
        if (!this.gpu.features.has(feature)) {
          this.features.set(feature, where);
        }
      }
    }
  }

  list(): readonly Need[] {
    return [...this.found.values()];
  }

  check(model: string): void {
    const lacking = [...this.features].map(
      ([feature, where]) => `${where} needs the feature ${feature}, which is missing`,
    );
    const tooMuch = this.list().filter(({ need, has }) => need > has);
    const above = tooMuch.map(({ what, need, has, bytes, where }) => {
      const unit = bytes ? " bytes" : "";
      return `${where} needs ${need}${unit} (${what.toLowerCase()}), the adapter has ${has}`;
    });
    const problems = [...lacking, ...above];
    const remedy = tooMuch.some(({ what }) => what === BUFFER)
      ? "take a smaller model or float16: a tensor is one buffer, whatever the kernels"
      : "move the model with the limits of this one (`tapml offload --target webgpu --limits`)";
    if (problems.length > 0) {
      const more = problems.length > SHOWN ? `; and ${problems.length - SHOWN} more` : "";
      const dtype = this.features.has("float16") ? ", or in float32 (`--dtype float32`)" : "";
      throw new TapmlError(
        "LimitExceededError",
        `${this.gpu.name} cannot run ${model}: ${problems.slice(0, SHOWN).join("; ")}${more}. Open ` +
          `this page in another browser or on another machine, or ${remedy}${dtype}`,
      );
    }
  }
}
