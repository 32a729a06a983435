/**
 * The finished plan on the GPU: weights and state are resident, a run is one submit and one read.
 *
 * As in `plan_runner.py`, a state tensor that a run replaces is read from one buffer, its successor
 * is written to another, and the two swap; one that is written in place has one buffer. An entry of fixed shapes is bound once per arrangement of the buffers.
 */

import { itemsizeOf, nbytesOf } from "../dtype";
import { inputError } from "../errors";
import { bindShape, evaluate, type Symbols } from "../expression";
import type { Gpu } from "../gpu";
import type { EntryProgram, Library, Parameter } from "../library";
import type { LoadedLibrary, RecordedCall, TensorUse } from "../loaded_library";
import type { DeviceBuffer, Memory } from "../memory";
import { noticed } from "../noticed";
import type { Steps } from "../steps";
import type { Input } from "./inputs";
import type { Manifest, TensorSpecification } from "./manifest";
import type { Weight } from "./weights";

/** The largest offset alignment that WebGPU may require. */
const WINDOW_ALIGNMENT = 256;
const MAP_READ = 1;
const COPY_DST = 8;

/** Buffers of an entry's inputs and outputs for one set of shapes, and its calls per arrangement. */
interface Place {
  readonly inputs: DeviceBuffer;
  readonly staging: Uint8Array<ArrayBuffer>;
  readonly offsets: ReadonlyMap<string, number>;
  readonly outputs: ReadonlyMap<string, DeviceBuffer>;
  readonly symbols: Symbols;
  readonly calls: Map<bigint, RecordedCall>;
}

/** The last row of an entry's first output. */
export interface Logits {
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly dtype: string;
}

/** The kind and the name in a parameter's name, such as `weight:model.norm.weight`. */
function kindOf({ name }: Parameter): readonly [string, string] {
  const at = name.indexOf(":");
  return [name.slice(0, at), name.slice(at + 1)];
}

const tensorOf = ({ shape, dtype }: Parameter): TensorSpecification => ({
  dtype,
  shape: shape.map((extent) => Number(evaluate(extent, new Map()))),
});

const bytesOf = ({ dtype, shape }: TensorSpecification): number =>
  Number(
    nbytesOf(
      dtype,
      shape.reduce((product, extent) => product * BigInt(extent), 1n),
    ),
  );

export class PlanRunner {
  /** Every weight of the Library's entries, with its memory. */
  readonly weights: readonly Weight[];
  private readonly resident = new Map<string, DeviceBuffer>();
  private readonly fixed = new Map<string, Place>();
  private readonly flips = new Map<string, bigint>();
  private readonly states: readonly string[];
  /** Which state tensors are swapped: bit i for the i-th. */
  private arrangement = 0n;
  private stage: GPUBuffer | null = null;

  /** Allocates weights and state; raises an InputError if the Library needs other tensors. */
  constructor(
    private readonly gpu: Gpu,
    private readonly memory: Memory,
    private readonly steps: Steps,
    library: Library,
    manifest: Manifest,
  ) {
    const weights = new Map<string, Weight>();
    this.states = [...manifest.state.keys()];
    const replaced = new Set<string>();
    for (const name of manifest.entries.keys()) {
      const program = library.entries.get(name);
      if (program === undefined) {
        throw inputError(`the kernels have no entry '${name}': make the folder again`);
      }
      let flips = 0n;
      for (const parameter of program.parameters) {
        const [kind, which] = kindOf(parameter);
        if (kind === "weight" && !weights.has(which)) {
          const tensor = tensorOf(parameter);
          const buffer = memory.allocate(steps, bytesOf(tensor));
          weights.set(which, { ...tensor, name: which, buffer });
          this.resident.set(parameter.name, buffer);
        } else if (kind === "next") {
          flips |= 1n << BigInt(Math.max(0, this.states.indexOf(which)));
          replaced.add(which);
        }
        if (kind === "state" || kind === "next") {
          checkState(parameter, manifest.state.get(which));
        } else if (!["weight", "input", "output"].includes(kind)) {
          throw inputError(`entry '${name}' has a parameter '${parameter.name}' of no known kind`);
        }
      }
      this.flips.set(name, flips);
    }
    this.weights = [...weights.values()];
    for (const [name, tensor] of manifest.state) {
      for (const kind of replaced.has(name) ? ["state", "next"] : ["state"]) {
        this.resident.set(`${kind}:${name}`, memory.allocate(steps, bytesOf(tensor)));
      }
    }
  }

  /** Set the state to zero. */
  reset(): void {
    this.steps.encode("clearing the state", (encoder) => {
      for (const name of this.states) {
        encoder.clearBuffer(this.of(`state:${name}`).gpu);
      }
    });
  }

  /** Run an entry on the present state and keep its new state. */
  async run(loaded: LoadedLibrary, entry: string, inputs: ReadonlyMap<string, Input>): Promise<Logits> {
    const program = loaded.library.entries.get(entry);
    if (program === undefined) {
      throw inputError(`the kernels have no entry '${entry}'`);
    }
    const symbols = symbolsOf(program, inputs);
    const kept = this.fixed.get(entry);
    const place = kept ?? this.place(program, symbols);
    if (symbols.size === 0) {
      this.fixed.set(entry, place);
    }
    try {
      return await this.launch(loaded, program, place, inputs);
    } finally {
      if (symbols.size > 0) {
        this.release(place);
      }
    }
  }

  private async launch(
    loaded: LoadedLibrary,
    program: EntryProgram,
    place: Place,
    inputs: ReadonlyMap<string, Input>,
  ): Promise<Logits> {
    for (const [name, offset] of place.offsets) {
      place.staging.set(inputs.get(name)?.bytes ?? new Uint8Array(), offset);
    }
    const call = this.call(loaded, program, place);
    const launches = loaded.bindRecorded(this.steps, call);
    const [output, row] = this.lastRow(program, place);
    const nbytes = Math.ceil(((row.start % 4) + row.nbytes) / 4) * 4;
    const stage = this.stageOf(nbytes);
    this.memory.write(this.steps, place.inputs, 0, place.staging);
    this.steps.encode(`running ${program.name}`, (encoder) => {
      launches.encode(encoder);
      const from = Math.floor(row.start / 4) * 4;
      encoder.copyBufferToBuffer(output.gpu, from, stage, 0, nbytes);
    });
    this.steps.flush();
    this.advance(program.name);
    const mapped = noticed(this.gpu.device.queue, stage.mapAsync(MAP_READ, 0, nbytes));
    try {
      // An error of the run also breaks the mapping, and says more.
      mapped.catch(() => null);
      await this.steps.settle();
      await mapped;
    } catch (error) {
      stage.destroy();
      this.stage = null;
      throw error;
    }
    const start = row.start % 4;
    const bytes = new Uint8Array(stage.getMappedRange(0, nbytes)).slice(start, start + row.nbytes);
    stage.unmap();
    return { bytes, dtype: row.dtype };
  }

  /** The last row of the first output. */
  private lastRow(
    program: EntryProgram,
    place: Place,
  ): [DeviceBuffer, { start: number; nbytes: number; dtype: string }] {
    const parameter = program.parameters.find((each) => kindOf(each)[0] === "output");
    const buffer = parameter && place.outputs.get(parameter.name);
    if (parameter === undefined || buffer === undefined) {
      throw inputError(`entry '${program.name}' gives nothing`);
    }
    const width = parameter.shape.at(-1) ?? 1n;
    const nbytes = Number(nbytesOf(parameter.dtype, evaluate(width, place.symbols)));
    return [buffer, { start: buffer.nbytes - nbytes, nbytes, dtype: parameter.dtype }];
  }

  private call(loaded: LoadedLibrary, program: EntryProgram, place: Place): RecordedCall {
    let call = place.calls.get(this.arrangement);
    if (call === undefined) {
      const tensors = program.parameters.map((parameter): TensorUse => {
        const { name, dtype } = parameter;
        const shape = parameter.shape.map((extent) => evaluate(extent, place.symbols));
        const offset = place.offsets.get(kindOf(parameter)[1]);
        return kindOf(parameter)[0] === "input" && offset !== undefined
          ? { buffer: place.inputs, byteOffset: offset, shape, dtype }
          : { buffer: place.outputs.get(name) ?? this.of(name), byteOffset: 0, shape, dtype };
      });
      const given = new Map(
        program.symbols.map((symbol) => [symbol, evaluate(symbol, place.symbols)] as const),
      );
      call = loaded.record(this.steps, program.name, tensors, given);
      place.calls.set(this.arrangement, call);
    }
    return call;
  }

  private place(program: EntryProgram, symbols: Symbols): Place {
    const offsets = new Map<string, number>();
    const outputs = new Map<string, DeviceBuffer>();
    let end = 0;
    for (const parameter of program.parameters) {
      const [kind, name] = kindOf(parameter);
      const elements = parameter.shape.reduce((p: bigint, each) => p * evaluate(each, symbols), 1n);
      const nbytes = Number(nbytesOf(parameter.dtype, elements));
      if (kind === "input") {
        offsets.set(name, end);
        end += Math.ceil(nbytes / WINDOW_ALIGNMENT) * WINDOW_ALIGNMENT;
      } else if (kind === "output") {
        outputs.set(parameter.name, this.memory.allocate(this.steps, nbytes));
      }
    }
    const inputs = this.memory.allocate(this.steps, end);
    const staging = new Uint8Array(end);
    return { inputs, staging, offsets, outputs, symbols, calls: new Map() };
  }

  private release(place: Place): void {
    for (const call of place.calls.values()) {
      call.bound.launches.close();
    }
    this.memory.free(place.inputs);
    for (const buffer of place.outputs.values()) {
      this.memory.free(buffer);
    }
  }

  private advance(entry: string): void {
    const flips = this.flips.get(entry) ?? 0n;
    this.arrangement ^= flips;
    this.states.forEach((name, index) => {
      if ((flips >> BigInt(index)) & 1n) {
        const before = this.of(`state:${name}`);
        this.resident.set(`state:${name}`, this.of(`next:${name}`));
        this.resident.set(`next:${name}`, before);
      }
    });
  }

  private of(name: string): DeviceBuffer {
    const buffer = this.resident.get(name);
    if (buffer === undefined) {
      throw inputError(`the kernels ask for '${name}', which the folder does not have`);
    }
    return buffer;
  }

  private stageOf(nbytes: number): GPUBuffer {
    if (this.stage === null || this.stage.size < nbytes) {
      this.stage?.destroy();
      this.stage = this.gpu.device.createBuffer({ size: nbytes, usage: MAP_READ | COPY_DST });
    }
    return this.stage;
  }
}

function checkState(parameter: Parameter, state: TensorSpecification | undefined): void {
  const wanted = tensorOf(parameter);
  if (state?.dtype !== wanted.dtype || state.shape.join() !== wanted.shape.join()) {
    throw inputError(
      `the kernels take '${parameter.name}' as ${wanted.dtype} [${wanted.shape.join(", ")}], and ` +
        "the plan has another: make the folder again with `tapml package --browser`",
    );
  }
}

/** Check the inputs and bind the symbols of their shapes. */
function symbolsOf(program: EntryProgram, inputs: ReadonlyMap<string, Input>): Symbols {
  const symbols: Symbols = new Map();
  for (const parameter of program.parameters) {
    const [kind, name] = kindOf(parameter);
    if (kind !== "input") {
      continue;
    }
    const input = inputs.get(name);
    const what = `${program.name}: input '${name}'`;
    if (input?.dtype !== parameter.dtype) {
      throw inputError(`${what}: expected ${parameter.dtype}, got ${input?.dtype ?? "nothing"}`);
    }
    bindShape(parameter.shape, input.shape, symbols, what);
    if (input.bytes.length % itemsizeOf(input.dtype) !== 0) {
      throw inputError(`${what}: ${input.bytes.length} bytes are not a multiple of the element size`);
    }
  }
  return symbols;
}
