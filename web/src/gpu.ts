/** The browser's GPU: opened with all that its adapter grants, and described as devices are. */

import { TapmlError } from "./errors";
import { hasDeviceClock } from "./kernel_timer";
import type { Header } from "./wire";

/** Limits requested at the adapter's maximum. */
const WANTED_LIMITS = [
  "maxBindGroups",
  "maxBufferSize",
  "maxComputeInvocationsPerWorkgroup",
  "maxComputeWorkgroupSizeX",
  "maxComputeWorkgroupSizeY",
  "maxComputeWorkgroupSizeZ",
  "maxComputeWorkgroupsPerDimension",
  "maxComputeWorkgroupStorageSize",
  "maxStorageBufferBindingSize",
  "maxStorageBuffersPerShaderStage",
  "maxUniformBufferBindingSize",
  "minStorageBufferOffsetAlignment",
] as const;
/** Kernels count elements with 31 bits, whatever an adapter binds. */
const MOST_BOUND = 2 ** 31 - 4;
const MOST_BLOCKS = 2 ** 31 - 1;
type LimitName = (typeof WANTED_LIMITS)[number];

const FEATURES: readonly (readonly [GPUFeatureName, string])[] = [
  ["shader-f16", "float16"],
  ["subgroups", "subgroups"],
];

/** The browser's WGSL compiler. */
export type ShaderCompiler = "tint" | "naga" | "unknown";

export interface Gpu {
  readonly device: GPUDevice;
  readonly description: Header;
  /** Names of features as kernels state them. */
  readonly features: ReadonlySet<string>;
  readonly compiler: ShaderCompiler;
  /** Threads of every subgroup; 0 where that is not known or not one number. */
  readonly subgroupWidth: number;
  /** The adapter's name, for people. */
  readonly name: string;
}

/** The most bytes that a kernel binds as one buffer. */
export const mostBound = (limits: GPUSupportedLimits): number =>
  Math.min(MOST_BOUND, Math.floor(limits.maxStorageBufferBindingSize / 4) * 4);

/** Open the GPU; raises a SetupError that says what is missing and what to do. */
export async function openGpu(): Promise<Gpu> {
  const gpu = (navigator as { gpu?: GPU }).gpu;
  if (gpu === undefined) {
    throw new TapmlError(
      "SetupError",
      isSecureContext
        ? "this browser has no WebGPU; use a current Chrome, Edge, Safari or Firefox, and see " +
            "chrome://gpu or about:support for why it is switched off"
        : "this page is not a secure context, so the browser hides WebGPU: open it by localhost, " +
            "or by https with a certificate that this browser trusts",
    );
  }
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (adapter === null) {
    throw new TapmlError(
      "SetupError",
      "the browser has WebGPU but no adapter for it: its GPU may be on a block list " +
        "(chrome://gpu says so), or the graphics driver is missing",
    );
  }
  const requiredFeatures = [...FEATURES.map(([feature]) => feature), "timestamp-query"].filter((feature) =>
    adapter.features.has(feature),
  ) as GPUFeatureName[];
  const requiredLimits = Object.fromEntries(WANTED_LIMITS.map((name) => [name, adapter.limits[name]]));
  const device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
  const compiler = compilerOf(navigator.userAgent);
  return {
    device,
    compiler,
    description: describe(adapter.info, device, compiler),
    features: new Set(FEATURES.filter(([feature]) => device.features.has(feature)).map(([, name]) => name)),
    subgroupWidth: subgroupWidthOf(adapter.info),
    name: nameOf(adapter.info),
  };
}

function subgroupWidthOf({ subgroupMinSize: least, subgroupMaxSize: most }: GPUAdapterInfo): number {
  // WGSL cannot ask for one of several. Some browsers state neither.
  return least > 0 && least === most ? least : 0;
}

function compilerOf(agent: string): ShaderCompiler {
  if (/\bFirefox\//.test(agent)) {
    return "naga";
  }
  return /Chrom(e|ium)\//.test(agent) ? "tint" : "unknown";
}

function nameOf(info: GPUAdapterInfo): string {
  const parts = [info.description, info.device, info.architecture, info.vendor];
  return parts.find((part) => part !== "") ?? "WebGPU adapter";
}

function browserOf(agent: string): string {
  const known = /(Firefox|Edg|Chrome|Version)\/([\d.]+)/.exec(agent);
  const names: Record<string, string> = { Edg: "Edge", Version: "Safari" };
  return known === null ? "browser" : `${names[known[1] ?? ""] ?? known[1]} ${known[2]}`;
}

/** Limits and names in the form of a welcome's `device`. */
function describe(info: GPUAdapterInfo, device: GPUDevice, compiler: ShaderCompiler): Header {
  const limit = (name: LimitName): number => device.limits[name];
  const perDimension = limit("maxComputeWorkgroupsPerDimension");
  const width = subgroupWidthOf(info);
  const software =
    info.isFallbackAdapter ||
    /swiftshader|llvmpipe/i.test(`${info.description} ${info.device} ${info.architecture}`);
  return {
    platform: "webgpu",
    index: 0,
    name: nameOf(info),
    vendor_platform: `${browserOf(navigator.userAgent)} (${compiler})`,
    device_type: software ? "cpu" : "gpu",
    driver_version: browserOf(navigator.userAgent),
    limits: {
      max_threads_per_block: limit("maxComputeInvocationsPerWorkgroup"),
      max_block: [
        limit("maxComputeWorkgroupSizeX"),
        limit("maxComputeWorkgroupSizeY"),
        limit("maxComputeWorkgroupSizeZ"),
      ],
      // A grid wider than one dimension is folded into another.
      max_grid: [Math.min(perDimension ** 2, MOST_BLOCKS), perDimension, perDimension],
      max_shared_memory_bytes: limit("maxComputeWorkgroupStorageSize"),
      max_buffer_bytes: limit("maxBufferSize"),
      memory_bytes: 0,
      max_arguments: 0,
      max_binding_bytes: mostBound(device.limits),
      max_storage_buffers: limit("maxStorageBuffersPerShaderStage"),
      offset_alignment: limit("minStorageBufferOffsetAlignment"),
      ...(width === 0 ? {} : { subgroup_widths: [width, width] }),
      features: FEATURES.filter(([feature]) => device.features.has(feature))
        .map(([, name]) => name)
        .sort(),
    },
    details: {
      vendor: info.vendor,
      architecture: info.architecture,
      device: info.device,
      compiler,
      kernel_clock: hasDeviceClock(device) ? "gpu" : "wall",
      user_agent: navigator.userAgent,
    },
  };
}
