"""Compile, upload, call: figure 6 of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tapml.api.device import Device
from tapml.api.tensor import Tensor
from tapml_targets.errors import InputError
from tapml_targets.library import Library
from tapml_targets.target import Target

if TYPE_CHECKING:
    from tapml.api.module import Module
    from tapml_rpc.client import RemoteLibrary


@dataclass(frozen=True)
class CompiledLibrary:
    """A Library, and the device it was compiled for."""

    library: Library
    device: Device


@dataclass(frozen=True)
class RemoteFunction:
    """An entry of an uploaded Library; call it with all inputs, then all outputs."""

    name: str
    library: RemoteLibrary
    device: Device

    def __call__(self, *tensors: Tensor, **symbols: int) -> None:
        """Run the entry; outputs are written in place (destination passing).

        Parameters
        ----------
        tensors
            In the order of the entry's parameters: inputs, then outputs.
        symbols
            Integers that no tensor's shape gives.

        Raises
        ------
        InputError
            If a tensor lives on another device, or count, shape or dtype do not fit; the message
            names the parameter.
        """
        for position, tensor in enumerate(tensors):
            if tensor.device is not self.device:
                raise InputError(
                    f"{self.name}: argument {position} is on {tensor.device.name}, "
                    f"expected {self.device.name}; copy it with tapml.tensor(array, device)"
                )
        session = self.device.session
        session.call(self.library, self.name, [t.remote for t in tensors], symbols)
        session.fence()


@dataclass(frozen=True)
class UploadedLibrary:
    """A Library on a device."""

    library: Library
    remote: RemoteLibrary
    device: Device

    def get_function(self, name: str) -> RemoteFunction:
        """The entry or operator called `name`.

        Raises
        ------
        InputError
            If there is none; the known ones are listed.
        """
        known = (*self.library.entries, *self.library.operators)
        if name not in known:
            raise InputError(f"the Library has no function {name!r}; it has: {', '.join(known)}")
        return RemoteFunction(name, self.remote, self.device)


def compile(module: Module, device: Device) -> CompiledLibrary:
    """Compile every operator of a module for a device, and its entries over them.

    Raises
    ------
    CompileError
        If an operator cannot be compiled; all of them are named.
    LimitExceededError
        If a kernel needs more than the device has.
    """
    from tapml.compiler import Compiler, link_entries, require_limits

    description = device.description
    target = Target(device.platform, limits=description.limits)
    with Compiler() as compiler:
        libraries = compiler.compile_plan(module.plan, target)
    library = link_entries(module.plan, libraries)
    require_limits(library, description.limits)
    return CompiledLibrary(library, device)


def upload(compiled: CompiledLibrary, device: Device | None = None) -> UploadedLibrary:
    """Send a Library to the device it was compiled for, or to another of the same platform.

    Raises
    ------
    InputError
        If the other device is of another platform.
    """
    where = device or compiled.device
    if where.platform != compiled.library.target:
        raise InputError(
            f"this Library is for {compiled.library.target}, not for {where.platform}; "
            f"compile it with tapml.compile(module, tapml.{where.platform}())"
        )
    return UploadedLibrary(compiled.library, where.session.upload(compiled.library), where)
