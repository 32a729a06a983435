"""From a module's text to pipelines: the prologue, the host's own checks, layouts, variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import CompileError, LimitExceededError
from tapml_targets.library import CodeModule, Kernel, ModuleKind
from tapml_targets.limits import Limits
from tapml_targets.module_check import check_module
from tapml_targets.webgpu.failures import caught, compile_failure
from tapml_targets.webgpu.module_text import READ, READ_WRITE, ModuleText, read_module

DIALECTS: Final[Mapping[str, ModuleKind]] = MappingProxyType({"wgsl": "source"})
# Directives that wgpu's compiler needs; it needs none for subgroups.
_PROLOGUE: Final = {"float16": "enable f16;"}
_NONE: Final[frozenset[int]] = frozenset()


class LoadedKernel:
    """A kernel's text and its pipelines: one, and variants that bind read windows as written."""

    __slots__ = ("name", "pipelines", "prologue", "text")

    def __init__(self, name: str, text: ModuleText, prologue: str) -> None:
        self.name = name
        self.text = text
        self.prologue = prologue
        self.pipelines: dict[frozenset[int], tuple[Any, Any]] = {}


class Builder:
    """Builds kernels on one open device."""

    def __init__(self, wgpu: Any, device: Any, description: DeviceDescription) -> None:
        self._wgpu = wgpu
        self._device = device
        self._description = description
        self._layouts: dict[tuple[str, ...], tuple[Any, Any]] = {}

    def load(self, module: CodeModule, kernels: Sequence[Kernel]) -> dict[str, LoadedKernel]:
        """Build a module; the result is keyed by kernel name.

        Raises
        ------
        CompileError
            If the module is not what this platform takes, or the compiler refuses it; its text is
            in the message.
        LimitExceededError
            If the text needs more than the device has: the compiler lets some of that pass.
        """
        check_module(module, DIALECTS, self._description.name)
        if module.options:
            raise CompileError(f"WGSL modules have no build options, got {module.options[0]!r}")
        text = read_module(module.code)
        loaded = {}
        for kernel in kernels:
            if kernel.symbol != text.symbol:
                raise CompileError(
                    f"the module has the entry point {text.symbol!r}, not {kernel.symbol!r}"
                )
            check_limits(kernel, text, self._description)
            prologue = " ".join(_PROLOGUE[each] for each in kernel.features if each in _PROLOGUE)
            loaded[kernel.name] = built = LoadedKernel(kernel.name, text, prologue)
            self.pipeline(built)
        return loaded

    def pipeline(self, kernel: LoadedKernel, written: frozenset[int] = _NONE) -> tuple[Any, Any]:
        """A kernel's pipeline and the layout of its bindings.

        Parameters
        ----------
        written
            Bindings the text reads and the pipeline is to count as written: a buffer that one
            dispatch both reads and writes must be bound in one way.
        """
        known = kernel.pipelines.get(written)
        if known is None:
            known = kernel.pipelines[written] = self._build(kernel, written)
        return known

    def _build(self, kernel: LoadedKernel, written: frozenset[int]) -> tuple[Any, Any]:
        text = kernel.text
        access = tuple(
            READ_WRITE if index in written else how for index, how in enumerate(text.access)
        )
        # On the first line, so that the compiler counts lines as the module does.
        code = " ".join(filter(None, [kernel.prologue, text.written(written)]))
        try:
            layout, pipeline_layout = self._layout((*access, *("uniform",) * text.has_uniform))
            shader = self._device.create_shader_module(label=kernel.name[:200], code=code)
            pipeline = self._device.create_compute_pipeline(
                label=text.symbol,
                layout=pipeline_layout,
                compute={"module": shader, "entry_point": text.symbol},
            )
        except caught(self._wgpu) as error:
            raise compile_failure(self._description.name, kernel.name, error) from None
        return pipeline, layout

    def _layout(self, kinds: tuple[str, ...]) -> tuple[Any, Any]:
        known = self._layouts.get(kinds)
        if known is None:
            types = {READ: "read-only-storage", READ_WRITE: "storage", "uniform": "uniform"}
            layout = self._device.create_bind_group_layout(
                entries=[
                    {
                        "binding": binding,
                        "visibility": self._wgpu.ShaderStage.COMPUTE,
                        "buffer": {"type": types[kind]},
                    }
                    for binding, kind in enumerate(kinds)
                ]
            )
            whole = self._device.create_pipeline_layout(bind_group_layouts=[layout])
            known = self._layouts[kinds] = layout, whole
        return known


def check_limits(kernel: Kernel, text: ModuleText, device: DeviceDescription) -> None:
    """Raise LimitExceededError if the text exceeds the device's limits."""
    limits: Limits = device.limits
    x, y, z = text.block
    shared = max(kernel.shared_memory_bytes, text.workgroup_bytes)
    needs = [
        ("threads per block", x * y * z, limits.max_threads_per_block),
        *(
            (f"threads along {axis}", size, most)
            for axis, size, most in zip("xyz", text.block, limits.max_block, strict=True)
        ),
        ("bytes of workgroup memory", shared, limits.max_shared_memory_bytes),
        ("storage buffers", len(text.access), limits.max_storage_buffers),
    ]
    for what, need, most in needs:
        if most and need > most:
            raise LimitExceededError(
                f"kernel {kernel.name!r} needs {need} {what}; {device.name} has {most}"
            )
