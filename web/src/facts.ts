/** The adapter's facts, for people. */

import type { Gpu } from "./gpu";
import { hasDeviceClock } from "./kernel_timer";
import type { Facts } from "./messages";

/** Bytes with a unit. */
export const amount = (count: number): string => {
  const unit = count >= 2 ** 30 ? 30 : count >= 2 ** 20 ? 20 : count >= 2 ** 10 ? 10 : 0;
  const names: Record<number, string> = { 30: "GiB", 20: "MiB", 10: "KiB", 0: "bytes" };
  return `${Number((count / 2 ** unit).toFixed(2))} ${names[unit]}`;
};

/** The adapter's names and limits, in display order. */
export function factsOf(gpu: Gpu): Facts {
  const { limits } = gpu.device;
  const workgroup = [
    limits.maxComputeWorkgroupSizeX,
    limits.maxComputeWorkgroupSizeY,
    limits.maxComputeWorkgroupSizeZ,
  ];
  return [
    ["Browser", String(gpu.description["driver_version"])],
    ["WGSL compiler", gpu.compiler],
    ["Kind", gpu.description["device_type"] === "cpu" ? "processor" : "GPU"],
    ["Features", [...gpu.features].join(", ") || "none beyond the core"],
    ["Kernel times", hasDeviceClock(gpu.device) ? "by the GPU's clock" : "by wall clock"],
    ["Threads in a workgroup", String(limits.maxComputeInvocationsPerWorkgroup)],
    ["Largest workgroup", workgroup.join(" × ")],
    ["Workgroups along an axis", String(limits.maxComputeWorkgroupsPerDimension)],
    ["Workgroup memory", amount(limits.maxComputeWorkgroupStorageSize)],
    ["Largest buffer", amount(limits.maxBufferSize)],
    ["Largest binding", amount(limits.maxStorageBufferBindingSize)],
    ["Buffers of a kernel", String(limits.maxStorageBuffersPerShaderStage)],
  ];
}
