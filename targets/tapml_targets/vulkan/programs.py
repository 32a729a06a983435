"""Kernels built for a device: pipelines made of SPIR-V."""

from __future__ import annotations

from typing import Any, Final

from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import LimitExceededError
from tapml_targets.library import Kernel
from tapml_targets.vulkan.api import NULL, array, check, created, ffi, lib, struct
from tapml_targets.vulkan.naming import PIPELINE, give_name
from tapml_targets.vulkan.reflection import CAPABILITIES, Interface, read_interface
from tapml_targets.vulkan_loader.validation import is_checking

_FORMAT: Final = b"tapml-spirv-1"
_STORAGE_BUFFER: Final = 7
_COMPUTE_STAGE: Final = 0x20
_FULL_SUBGROUPS: Final = 2


class LoadedKernel:
    """A pipeline and what its kernel takes."""

    __slots__ = ("__weakref__", "interface", "layout", "name", "pipeline", "set_layout")

    def __init__(
        self, name: str, interface: Interface, set_layout: Any, layout: Any, pipeline: Any
    ) -> None:
        self.name = name
        self.interface = interface
        self.set_layout = set_layout
        self.layout = layout
        self.pipeline = pipeline

    @property
    def handles(self) -> tuple[Any, Any, Any]:
        """What :func:`destroy_kernel` takes."""
        return self.pipeline, self.layout, self.set_layout


def build_kernel(
    device: Any, code: bytes, kernel: Kernel, description: DeviceDescription
) -> LoadedKernel:
    """A pipeline of SPIR-V on an open device.

    Raises
    ------
    CompileError
        If the module is no SPIR-V of a kernel.
    LimitExceededError
        If it uses what the device lacks: it would compute anything.
    """
    interface, name = read_interface(code, kernel.name), description.name
    _check_fits(interface, kernel, description)
    what = f"building kernel {kernel.name!r}"
    words = ffi.new("uint32_t[]", len(code) // 4)
    ffi.memmove(words, code, len(code))
    shader = created(
        lib.vkCreateShaderModule, "VkShaderModule", name, what, device,
        struct("VkShaderModuleCreateInfo", codeSize=len(code), pCode=words),
    )  # fmt: skip
    made: list[tuple[Any, Any]] = [(lib.vkDestroyShaderModule, shader)]
    try:
        bindings = [
            struct(
                "VkDescriptorSetLayoutBinding", binding=place, descriptorType=_STORAGE_BUFFER,
                descriptorCount=1, stageFlags=_COMPUTE_STAGE,
            )
            for place in range(len(interface.read_only))
        ]  # fmt: skip
        set_layout = created(
            lib.vkCreateDescriptorSetLayout, "VkDescriptorSetLayout", name, what, device,
            struct(
                "VkDescriptorSetLayoutCreateInfo", bindingCount=len(bindings),
                pBindings=array("VkDescriptorSetLayoutBinding", bindings),
            ),
        )  # fmt: skip
        made.append((lib.vkDestroyDescriptorSetLayout, set_layout))
        layout = _layout(device, set_layout, interface, name, what)
        made.append((lib.vkDestroyPipelineLayout, layout))
        stage = _stage(shader, interface, kernel.subgroup_width)
        pipeline = _pipeline(device, stage, layout, name, what)
    except BaseException:
        for destroy, handle in reversed(made):
            destroy(device, handle, NULL)
        raise
    lib.vkDestroyShaderModule(device, shader, NULL)
    if is_checking():
        give_name(device, PIPELINE, pipeline, kernel.symbol)
    return LoadedKernel(kernel.name, interface, set_layout, layout, pipeline)


def destroy_kernel(device: Any, pipeline: Any, layout: Any, set_layout: Any) -> None:
    """Give a kernel back, whose work has ended."""
    lib.vkDestroyPipeline(device, pipeline, NULL)
    lib.vkDestroyPipelineLayout(device, layout, NULL)
    lib.vkDestroyDescriptorSetLayout(device, set_layout, NULL)


def _check_fits(interface: Interface, kernel: Kernel, description: DeviceDescription) -> None:
    limits, x, y, z = description.limits, *interface.block
    needs = [
        feature
        for capability, feature in CAPABILITIES.items()
        if feature and capability in interface.capabilities and feature not in limits.features
    ]
    threads = x * y * z
    if threads > limits.max_threads_per_block:
        needs.append(f"{threads} threads per block, of at most {limits.max_threads_per_block}")
    if kernel.shared_memory_bytes > limits.max_shared_memory_bytes:
        needs.append(
            f"{kernel.shared_memory_bytes} bytes of shared memory, of at most "
            f"{limits.max_shared_memory_bytes}"
        )
    if interface.pushed_bytes > limits.push_constant_bytes:
        needs.append(
            f"{interface.pushed_bytes} bytes of push constants, of at most "
            f"{limits.push_constant_bytes}"
        )
    if needs:
        raise LimitExceededError(
            f"kernel {kernel.name!r} needs {', '.join(needs)}, which {description.name} does not "
            "have"
        )


def _layout(device: Any, set_layout: Any, interface: Interface, name: str, what: str) -> Any:
    pushed = struct(
        "VkPushConstantRange", stageFlags=_COMPUTE_STAGE, size=-(-interface.pushed_bytes // 4) * 4
    )
    info = struct(
        "VkPipelineLayoutCreateInfo",
        setLayoutCount=1,
        pSetLayouts=array("VkDescriptorSetLayout", [set_layout]),
        pushConstantRangeCount=1 if interface.pushed_bytes else 0,
        pPushConstantRanges=pushed,
    )
    return created(lib.vkCreatePipelineLayout, "VkPipelineLayout", name, what, device, info)


def _stage(shader: Any, interface: Interface, width: int) -> Any:
    """A kernel's stage; one that is made for subgroups of a width requires it."""
    wanted: dict[str, Any] = {}
    if width:
        wanted["pNext"] = struct(
            "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=width
        )
        # Blocks of another shape than whole rows of subgroups may not ask for full ones.
        wanted["flags"] = 0 if interface.block[0] % width else _FULL_SUBGROUPS
    return struct(
        "VkPipelineShaderStageCreateInfo", stage=_COMPUTE_STAGE, module=shader, pName="main",
        **wanted,
    )  # fmt: skip


def _pipeline(device: Any, stage: Any, layout: Any, name: str, what: str) -> Any:
    info = struct("VkComputePipelineCreateInfo", layout=layout)
    info.stage = stage[0]
    made = ffi.new("VkPipeline *")
    check(lib.vkCreateComputePipelines(device, NULL, 1, info, NULL, made), name, what)
    return made[0]
