/** Kernels built from WGSL, with the browser's compiler messages. */

import { messageOf, TapmlError } from "./errors";
import type { Gpu } from "./gpu";
import type { CodeModule, Kernel, Library } from "./library";
import { readShader, writtenText, type ShaderShape } from "./shader";
import { scoped } from "./steps";

/** A pipeline with the layout of its bindings. */
export interface Pipeline {
  readonly layout: GPUBindGroupLayout;
  readonly pipeline: GPUComputePipeline;
}

export class BuiltKernel {
  private readonly variants = new Map<string, Pipeline>();

  constructor(
    private readonly gpu: Gpu,
    readonly kernel: Kernel,
    readonly shape: ShaderShape,
    private readonly source: string,
    private readonly plain: Pipeline,
  ) {}

  /**
   * The pipeline that binds these `read` bindings as written: WebGPU wants one way of binding for a
   * buffer that a dispatch both reads and writes.
   */
  pipeline(written: ReadonlySet<number>): Pipeline {
    if (written.size === 0) {
      return this.plain;
    }
    const key = [...written].sort((a, b) => a - b).join(" ");
    let variant = this.variants.get(key);
    if (variant === undefined) {
      const { device } = this.gpu;
      const text = writtenText(this.source, this.shape, written);
      const module = device.createShaderModule({ code: prologue(this.gpu, this.kernel) + text });
      const layout = layoutOf(device, this.shape, written);
      const pipeline = device.createComputePipeline({
        label: this.kernel.name,
        layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
        compute: { module, entryPoint: this.kernel.symbol },
      });
      variant = { layout, pipeline };
      this.variants.set(key, variant);
    }
    return variant;
  }
}

const COMPUTE = 4; // GPUShaderStage.COMPUTE
const DIALECT = "wgsl";
const KIND = "source";
const NONE: ReadonlySet<number> = new Set();

/** Build every kernel of a Library, all at once; raises the first kernel's error. */
export async function buildKernels(gpu: Gpu, library: Library): Promise<Map<string, BuiltKernel>> {
  for (const module of library.modules) {
    checkModule(module);
  }
  const kernels = [...library.kernels.values()];
  const built = await Promise.allSettled(
    kernels.map((kernel) => {
      const module = library.modules[kernel.module];
      if (module === undefined) {
        throw new TapmlError("CompileError", `kernel '${kernel.name}' has no module`);
      }
      return build(gpu, kernel, module);
    }),
  );
  const result = new Map<string, BuiltKernel>();
  for (const each of built) {
    if (each.status === "rejected") {
      throw each.reason;
    }
    result.set(each.value.kernel.name, each.value);
  }
  return result;
}

function checkModule(module: CodeModule): void {
  if (module.dialect !== DIALECT) {
    throw new TapmlError(
      "CompileError",
      `WebGPU devices take '${DIALECT}' modules, this one holds '${module.dialect}'; compile it ` +
        "for the target webgpu",
    );
  }
  if (module.kind !== KIND) {
    throw new TapmlError(
      "CompileError",
      `a module says that it is ${module.kind} code, and '${DIALECT}' is ${KIND} code`,
    );
  }
  if (module.architecture !== "") {
    throw new TapmlError(
      "LimitExceededError",
      `a module needs architecture ${module.architecture}, which no browser names`,
    );
  }
  if (module.options.length > 0) {
    throw new TapmlError(
      "CompileError",
      `WGSL modules have no build options, got ${module.options.join(", ")}`,
    );
  }
}

async function build(gpu: Gpu, kernel: Kernel, module: CodeModule): Promise<BuiltKernel> {
  checkFeatures(gpu, kernel);
  const source = textOf(module, kernel);
  const shape = shapeOf(source, kernel);
  checkLimits(gpu, kernel, shape);
  // On the text's first line, so that line numbers in messages stay right.
  const code = prologue(gpu, kernel) + source;
  const module_ = scoped(gpu.device, "compiling", () =>
    gpu.device.createShaderModule({ label: kernel.name, code }),
  );
  const [info, refused] = await Promise.all([module_.result.getCompilationInfo(), module_.verdict]);
  const messages = info.messages.map(({ type, lineNum, linePos, message }) => ({
    type,
    line: lineNum,
    column: linePos,
    text: message,
  }));
  if (refused !== null || messages.some((message) => message.type === "error")) {
    throw compileError(kernel, "compiling", "", refused?.message ?? "", messages, source);
  }
  const parts = scoped(gpu.device, "building the pipeline", () => {
    const layout = layoutOf(gpu.device, shape, NONE);
    const pipelineLayout = gpu.device.createPipelineLayout({ bindGroupLayouts: [layout] });
    const pipeline = gpu.device.createComputePipelineAsync({
      label: kernel.name,
      layout: pipelineLayout,
      compute: { module: module_.result, entryPoint: kernel.symbol },
    });
    return { layout, pipeline };
  });
  try {
    const pipeline = await parts.result.pipeline;
    const wrong = await parts.verdict;
    if (wrong !== null) {
      throw wrong;
    }
    return new BuiltKernel(gpu, kernel, shape, source, { layout: parts.result.layout, pipeline });
  } catch (error) {
    const reason = (error as { reason?: string }).reason ?? "";
    throw compileError(kernel, "building the pipeline", reason, messageOf(error), messages, source);
  }
}

function shapeOf(source: string, kernel: Kernel): ShaderShape {
  try {
    const shape = readShader(source);
    if (shape.symbol !== kernel.symbol) {
      throw new TapmlError(
        "CompileError",
        `the module has the entry point '${shape.symbol}', not '${kernel.symbol}'`,
      );
    }
    return shape;
  } catch (error) {
    throw new TapmlError("CompileError", `kernel '${kernel.name}': ${messageOf(error)}`);
  }
}

function checkFeatures(gpu: Gpu, kernel: Kernel): void {
  const missing = kernel.features.filter((feature) => !gpu.features.has(feature));
  if (kernel.subgroupWidth !== 0 && kernel.subgroupWidth !== gpu.subgroupWidth) {
    missing.push(`subgroup_widths ${kernel.subgroupWidth}`);
  }
  if (missing.length > 0) {
    throw new TapmlError(
      "LimitExceededError",
      `kernel '${kernel.name}' needs ${missing.join(", ")}, which ${gpu.name} does not have`,
    );
  }
}

/** Checked here since some compilers accept kernels that exceed the device's limits. */
function checkLimits(gpu: Gpu, kernel: Kernel, shape: ShaderShape): void {
  const { limits } = gpu.device;
  const [x, y, z] = shape.workgroup;
  const shared = Math.max(kernel.sharedMemoryBytes, shape.workgroupBytes);
  const needs: readonly (readonly [string, number, number])[] = [
    ["threads per block", x * y * z, limits.maxComputeInvocationsPerWorkgroup],
    ["threads along x", x, limits.maxComputeWorkgroupSizeX],
    ["threads along y", y, limits.maxComputeWorkgroupSizeY],
    ["threads along z", z, limits.maxComputeWorkgroupSizeZ],
    ["bytes of workgroup memory", shared, limits.maxComputeWorkgroupStorageSize],
    ["storage buffers", shape.buffers.length, limits.maxStorageBuffersPerShaderStage],
  ];
  for (const [what, need, most] of needs) {
    if (need > most) {
      throw new TapmlError(
        "LimitExceededError",
        `kernel '${kernel.name}' needs ${need} ${what}; ${gpu.name} has ${most}`,
      );
    }
  }
}

function textOf(module: CodeModule, kernel: Kernel): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(module.code);
  } catch {
    throw new TapmlError("CompileError", `kernel '${kernel.name}': its WGSL is not UTF-8`);
  }
}

function prologue(gpu: Gpu, kernel: Kernel): string {
  const lines: string[] = [];
  if (kernel.features.includes("float16")) {
    lines.push("enable f16;");
  }
  // naga refuses this line and accepts the builtins without it.
  if (kernel.features.includes("subgroups") && gpu.compiler !== "naga") {
    lines.push("enable subgroups;");
  }
  return lines.map((line) => `${line} `).join("");
}

function layoutOf(device: GPUDevice, shape: ShaderShape, written: ReadonlySet<number>): GPUBindGroupLayout {
  const types: GPUBufferBindingType[] = shape.buffers.map((access, binding) =>
    access === "read" && !written.has(binding) ? "read-only-storage" : "storage",
  );
  if (hasUniform(shape)) {
    types.push("uniform");
  }
  return device.createBindGroupLayout({
    entries: types.map((type, binding) => ({ binding, visibility: COMPUTE, buffer: { type } })),
  });
}

/** Whether a uniform binding follows the buffers. */
export const hasUniform = (shape: ShaderShape): boolean => shape.scalars.length > 0 || shape.packsGrid;

interface CompilerMessage {
  readonly type: string;
  readonly line: number;
  readonly column: number;
  readonly text: string;
}

function compileError(
  kernel: Kernel,
  stage: string,
  reason: string,
  message: string,
  messages: readonly CompilerMessage[],
  source: string,
): TapmlError {
  const lines = source.split("\n");
  const told = messages.map(({ type, line, column, text }) => {
    const place = line > 0 ? ` at line ${line}, column ${column}` : "";
    const quoted = lines[line - 1];
    return `${type}${place}: ${text}${quoted === undefined || quoted.trim() === "" ? "" : `\n    ${quoted.trim()}`}`;
  });
  // The browser's error repeats the messages, if any.
  const said = told.length > 0 ? told.join("\n") : message;
  return new TapmlError(
    "CompileError",
    `kernel '${kernel.name}' does not compile in this browser (${stage}):\n` +
      (said || "the browser gives no text"),
    JSON.stringify({ kind: "validation", reason, message, messages, stage }),
  );
}
