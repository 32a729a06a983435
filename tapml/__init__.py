"""tapml: moves a model to a new device, one operator at a time, and shows that it still works.

Everything here is loaded on first use: the ``tapml`` command and a device server work on a base
install, without a compiler or PyTorch.

Examples
--------
>>> import torch
>>> import tapml as tml
>>> module = tml.Module(torch.nn.Softmax(dim=-1), inputs=[torch.ones(2, 3)])
>>> tml.validate(module, [torch.rand(2, 3)], target=tml.cpu()).status
'pass'
"""

from __future__ import annotations

# Nothing is imported before it is needed: this runs first of all in the command, where an interrupt
# cannot be caught yet. Type checkers know the name.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from tapml import distributed
    from tapml.api.carving import carve
    from tapml.api.device import Device, device
    from tapml.api.from_torch import from_torch
    from tapml.api.functions import RemoteFunction, UploadedLibrary, compile, upload
    from tapml.api.replaying import replay
    from tapml.api.tensor import Tensor, allocate, tensor
    from tapml.api.validate import ValidationReport, validate
    from tapml.comparing.result import Comparison
    from tapml.comparing.run import compare
    from tapml.importing.module import Module
    from tapml.offload.session import OffloadSession
    from tapml.package.load import load_package
    from tapml.verdicts.policy import Policy

    def cpu(index: int | None = None) -> Device:
        """Device `index` of this platform; the best-ranked one where no index is given."""

    def metal(index: int | None = None) -> Device:
        """The same for Metal."""

    def cuda(index: int | None = None) -> Device:
        """The same for NVIDIA GPUs."""

    def opencl(index: int | None = None) -> Device:
        """The same for OpenCL."""

    def rocm(index: int | None = None) -> Device:
        """The same for AMD GPUs."""

    def vulkan(index: int | None = None) -> Device:
        """The same for Vulkan."""

    def webgpu(index: int | None = None) -> Device:
        """The same for WebGPU."""


__all__ = [
    "Comparison",
    "Device",
    "Module",
    "OffloadSession",
    "Policy",
    "RemoteFunction",
    "Tensor",
    "UploadedLibrary",
    "ValidationReport",
    "allocate",
    "carve",
    "compare",
    "compile",
    "cpu",
    "cuda",
    "device",
    "distributed",
    "from_torch",
    "load_package",
    "metal",
    "opencl",
    "replay",
    "rocm",
    "tensor",
    "upload",
    "validate",
    "vulkan",
    "webgpu",
]

_HOME = {
    "Device": "tapml.api.device",
    "device": "tapml.api.device",
    "from_torch": "tapml.api.from_torch",
    "Module": "tapml.importing.module",
    "RemoteFunction": "tapml.api.functions",
    "UploadedLibrary": "tapml.api.functions",
    "compile": "tapml.api.functions",
    "upload": "tapml.api.functions",
    "Tensor": "tapml.api.tensor",
    "allocate": "tapml.api.tensor",
    "tensor": "tapml.api.tensor",
    "ValidationReport": "tapml.api.validate",
    "validate": "tapml.api.validate",
    "carve": "tapml.api.carving",
    "replay": "tapml.api.replaying",
    "Policy": "tapml.verdicts.policy",
    "Comparison": "tapml.comparing.result",
    "compare": "tapml.comparing.run",
    "OffloadSession": "tapml.offload.session",
    "load_package": "tapml.package.load",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name == "distributed":
        return import_module("tapml.distributed")
    from functools import partial

    from tapml_targets.platforms import platform_names

    # Every platform folder is a device factory here: tapml.opencl(), tapml.cpu().
    if name in platform_names():
        return partial(import_module("tapml.api.device").open_platform, name)
    known = ", ".join(platform_names())
    raise AttributeError(f"module 'tapml' has no attribute {name!r}; platforms: {known}")


def __dir__() -> list[str]:
    return sorted(__all__)
