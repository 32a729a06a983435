/** Kernels built from WGSL, with everything the browser's compiler says when it refuses one. */

import { messageOf, TapmlError } from "./errors";
import type { Gpu } from "./gpu";
import type { CodeModule, Kernel, Library } from "./library";
import { readShader, type ShaderShape } from "./shader";
import { scoped } from "./steps";

export interface BuiltKernel {
  readonly kernel: Kernel;
  readonly shape: ShaderShape;
  readonly layout: GPUBindGroupLayout;
  readonly pipeline: GPUComputePipeline;
}

const COMPUTE = 4; // GPUShaderStage.COMPUTE
const DIALECT = "wgsl";

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
      "InputError",
      `this device is a browser: it loads '${DIALECT}', and this Library holds ` +
        `'${module.dialect}'; compile it for the target webgpu`,
    );
  }
  if (module.options.length > 0) {
    throw new TapmlError(
      "InputError",
      `a browser knows no build options, and this Library names ${module.options.join(", ")}`,
    );
  }
}

async function build(gpu: Gpu, kernel: Kernel, module: CodeModule): Promise<BuiltKernel> {
  checkLimits(gpu, kernel);
  const source = textOf(module, kernel);
  const shape = readShader(source, kernel.symbol);
  const limits = gpu.device.limits;
  const most = limits.maxStorageBuffersPerShaderStage;
  if (shape.buffers.length > most) {
    throw tooMuch(kernel, gpu, `${shape.buffers.length} storage buffers`, most);
  }
  // On one line with the text, so that the lines of the compiler's messages are the text's own.
  const code = prologue(gpu, kernel) + source;
  const module_ = scoped(gpu.device, "compiling", () =>
    gpu.device.createShaderModule({ label: kernel.name, code }),
  );
  const [info, refused] = await Promise.all([
    module_.result.getCompilationInfo(),
    module_.verdict,
  ]);
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
    const layout = gpu.device.createBindGroupLayout({ entries: entriesOf(shape) });
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
    return { kernel, shape, layout: parts.result.layout, pipeline };
  } catch (error) {
    const reason = (error as { reason?: string }).reason ?? "";
    throw compileError(kernel, "building the pipeline", reason, messageOf(error), messages, source);
  }
}

function checkLimits(gpu: Gpu, kernel: Kernel): void {
  const missing = kernel.features.filter((feature) => !gpu.features.has(feature));
  if (missing.length > 0) {
    throw new TapmlError(
      "LimitExceededError",
      `kernel '${kernel.name}' needs ${missing.join(", ")}, which ${gpu.name} does not have`,
    );
  }
  const { limits } = gpu.device;
  if (kernel.threadsPerBlock > limits.maxComputeInvocationsPerWorkgroup) {
    const most = limits.maxComputeInvocationsPerWorkgroup;
    throw tooMuch(kernel, gpu, `${kernel.threadsPerBlock} threads per block`, most);
  }
  if (kernel.sharedMemoryBytes > limits.maxComputeWorkgroupStorageSize) {
    const most = limits.maxComputeWorkgroupStorageSize;
    throw tooMuch(kernel, gpu, `${kernel.sharedMemoryBytes} bytes of shared memory`, most);
  }
}

function tooMuch(kernel: Kernel, gpu: Gpu, need: string, most: number): TapmlError {
  return new TapmlError(
    "LimitExceededError",
    `kernel '${kernel.name}' needs ${need}, ${gpu.name} allows ${most}`,
  );
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

function entriesOf(shape: ShaderShape): GPUBindGroupLayoutEntry[] {
  const entries: GPUBindGroupLayoutEntry[] = shape.buffers.map((access, binding) => ({
    binding,
    visibility: COMPUTE,
    buffer: { type: access === "read" ? "read-only-storage" : "storage" },
  }));
  if (shape.hasUniform) {
    entries.push({
      binding: entries.length,
      visibility: COMPUTE,
      buffer: { type: "uniform" },
    });
  }
  return entries;
}

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
  const said = [...told, message].filter((each) => each !== "").join("\n");
  return new TapmlError(
    "CompileError",
    `kernel '${kernel.name}' does not compile in this browser (${stage}):\n` +
      (said || "the browser gives no text"),
    JSON.stringify({ kind: "validation", reason, message, messages, stage }),
  );
}
