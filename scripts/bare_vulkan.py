"""Dispatches of one kernel by the package ``vulkan`` alone: the peer of scripts/bench_platforms.py.

The commands are recorded once: per dispatch a pipeline, a descriptor set, its push constants and a
barrier, as any program that runs them in order needs. A run hands them on and waits for their end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import vulkan as vk

_COUNT: Final = 64
_BYTES: Final = 4 * _COUNT
_READ_WRITE: Final = vk.VK_ACCESS_SHADER_READ_BIT | vk.VK_ACCESS_SHADER_WRITE_BIT
_COMPUTE: Final = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT


def bare_dispatches(name: str, spirv: bytes, pushed: bytes) -> Callable[[int], None]:
    """What runs a number of dispatches of a kernel on the device called `name`.

    The kernel takes an output and an input of 64 numbers, and the push constants `pushed`. What is
    made for it goes with the process.

    Raises
    ------
    LookupError
        If no device has that name.
    """
    about = vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 1, 0))
    instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=about), None)
    for physical in vk.vkEnumeratePhysicalDevices(instance):
        if vk.vkGetPhysicalDeviceProperties(physical).deviceName == name:
            break
    else:
        raise LookupError(f"no Vulkan device is called {name!r}")
    queues = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=0, pQueuePriorities=[1.0])
    device = vk.vkCreateDevice(physical, vk.VkDeviceCreateInfo(pQueueCreateInfos=[queues]), None)
    return _runner(physical, device, spirv, pushed)


def _runner(physical: Any, device: Any, spirv: bytes, pushed: bytes) -> Callable[[int], None]:
    queue = vk.vkGetDeviceQueue(device, 0, 0)
    layout, pipeline, set_layout = _pipeline(device, spirv, len(pushed))
    numbers = _descriptors(device, set_layout, [_buffer(physical, device) for _ in range(2)])
    pool = vk.vkCreateCommandPool(device, vk.VkCommandPoolCreateInfo(queueFamilyIndex=0), None)
    fence = vk.vkCreateFence(device, vk.VkFenceCreateInfo(), None)
    values = vk.ffi.new("char[]", pushed)
    recorded: dict[int, Any] = {}

    def record(count: int) -> Any:
        (commands,) = vk.vkAllocateCommandBuffers(
            device,
            vk.VkCommandBufferAllocateInfo(
                commandPool=pool, level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1
            ),
        )
        barrier = vk.VkMemoryBarrier(srcAccessMask=_READ_WRITE, dstAccessMask=_READ_WRITE)
        vk.vkBeginCommandBuffer(commands, vk.VkCommandBufferBeginInfo())
        for _ in range(count):
            vk.vkCmdBindPipeline(commands, vk.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline)
            vk.vkCmdBindDescriptorSets(
                commands, vk.VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, [numbers], 0, None
            )
            vk.vkCmdPushConstants(
                commands, layout, vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, len(pushed), values
            )
            vk.vkCmdDispatch(commands, 1, 1, 1)
            vk.vkCmdPipelineBarrier(commands, _COMPUTE, _COMPUTE, 0, 1, [barrier], 0, None, 0, None)
        vk.vkEndCommandBuffer(commands)
        return vk.VkSubmitInfo(pCommandBuffers=[commands])

    def run(count: int) -> None:
        if count not in recorded:
            recorded[count] = record(count)
        vk.vkQueueSubmit(queue, 1, [recorded[count]], fence)
        vk.vkWaitForFences(device, 1, [fence], vk.VK_TRUE, 1 << 62)
        vk.vkResetFences(device, 1, [fence])

    return run


def _buffer(physical: Any, device: Any) -> Any:
    made = vk.vkCreateBuffer(
        device,
        vk.VkBufferCreateInfo(size=_BYTES, usage=vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT),
        None,
    )
    needs = vk.vkGetBufferMemoryRequirements(device, made)
    memory = vk.vkGetPhysicalDeviceMemoryProperties(physical)
    visible = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
    kind = next(
        index
        for index in range(memory.memoryTypeCount)
        if needs.memoryTypeBits >> index & 1
        and memory.memoryTypes[index].propertyFlags & visible == visible
    )
    allocated = vk.vkAllocateMemory(
        device, vk.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=kind), None
    )
    vk.vkBindBufferMemory(device, made, allocated, 0)
    return made


def _pipeline(device: Any, spirv: bytes, pushed_bytes: int) -> tuple[Any, Any, Any]:
    compute = vk.VK_SHADER_STAGE_COMPUTE_BIT
    bindings = [
        vk.VkDescriptorSetLayoutBinding(
            binding=place,
            descriptorType=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
            descriptorCount=1,
            stageFlags=compute,
        )
        for place in range(2)
    ]
    set_layout = vk.vkCreateDescriptorSetLayout(
        device, vk.VkDescriptorSetLayoutCreateInfo(pBindings=bindings), None
    )
    pushed = vk.VkPushConstantRange(stageFlags=compute, offset=0, size=pushed_bytes)
    layout = vk.vkCreatePipelineLayout(
        device,
        vk.VkPipelineLayoutCreateInfo(pSetLayouts=[set_layout], pPushConstantRanges=[pushed]),
        None,
    )
    shader = vk.vkCreateShaderModule(
        device, vk.VkShaderModuleCreateInfo(codeSize=len(spirv), pCode=spirv), None
    )
    stage = vk.VkPipelineShaderStageCreateInfo(stage=compute, module=shader, pName="main")
    (pipeline,) = vk.vkCreateComputePipelines(
        device, None, 1, [vk.VkComputePipelineCreateInfo(stage=stage, layout=layout)], None
    )
    return layout, pipeline, set_layout


def _descriptors(device: Any, set_layout: Any, buffers: list[Any]) -> Any:
    kind = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
    size = vk.VkDescriptorPoolSize(type=kind, descriptorCount=len(buffers))
    pool = vk.vkCreateDescriptorPool(
        device, vk.VkDescriptorPoolCreateInfo(maxSets=1, pPoolSizes=[size]), None
    )
    (made,) = vk.vkAllocateDescriptorSets(
        device, vk.VkDescriptorSetAllocateInfo(descriptorPool=pool, pSetLayouts=[set_layout])
    )
    writes = [
        vk.VkWriteDescriptorSet(
            dstSet=made,
            dstBinding=place,
            descriptorCount=1,
            descriptorType=kind,
            pBufferInfo=[vk.VkDescriptorBufferInfo(buffer=each, offset=0, range=_BYTES)],
        )
        for place, each in enumerate(buffers)
    ]
    vk.vkUpdateDescriptorSets(device, len(writes), writes, 0, None)
    return made
