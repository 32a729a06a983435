"""tapml: moves a model to a new device, one operator at a time, and shows that it still works.

Everything here is loaded on first use: the ``tapml`` command and a device server work on a base
install, without a compiler or PyTorch.

Examples
--------
>>> import tapml as tml
>>> module = tml.Module(relax_module, entry="transformer_block")  # doctest: +SKIP
>>> report = tml.validate(module, inputs, target=tml.opencl())  # doctest: +SKIP
"""

from __future__ import annotations

# Nothing is imported before it is needed: this runs first of all in the command, where an interrupt
# cannot be caught yet. Type checkers know the name.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from tapml.api.carving import carve
    from tapml.api.device import Device, device
    from tapml.api.functions import RemoteFunction, UploadedLibrary, compile, upload
    from tapml.api.module import Module
    from tapml.api.replaying import replay
    from tapml.api.tensor import Tensor, allocate, tensor
    from tapml.api.validate import ValidationReport, validate
    from tapml.compare.policy import Policy
    from tapml.offload.session import OffloadSession
    from tapml.package.load import load_package

    def cpu(index: int | None = None) -> Device:
        """Device `index` of this platform; the best-ranked one where no index is given."""

    def opencl(index: int | None = None) -> Device:
        """The same for OpenCL."""


__all__ = [
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
    "compile",
    "cpu",
    "device",
    "load_package",
    "opencl",
    "replay",
    "tensor",
    "upload",
    "validate",
]

_HOME = {
    "Device": "tapml.api.device",
    "device": "tapml.api.device",
    "Module": "tapml.api.module",
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
    "Policy": "tapml.compare.policy",
    "OffloadSession": "tapml.offload.session",
    "load_package": "tapml.package.load",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    from functools import partial

    from tapml_targets.platforms import platform_names

    # Every platform folder is a device factory here: tapml.opencl(), tapml.cpu().
    if name in platform_names():
        return partial(import_module("tapml.api.device").open_platform, name)
    known = ", ".join(platform_names())
    raise AttributeError(f"module 'tapml' has no attribute {name!r}; platforms: {known}")


def __dir__() -> list[str]:
    return sorted(__all__)
