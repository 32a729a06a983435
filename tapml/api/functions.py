"""Compile, upload, call: figure 6 of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
from msgspec.structs import replace

from tapml.api.device import Device
from tapml.api.tensor import Tensor, tensor
from tapml_targets.call_plan import TensorShape, bind_parameters
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library import Library, Parameter
from tapml_targets.target import Target

if TYPE_CHECKING:
    from tapml.compiler.symbol_ranges import SymbolRanges
    from tapml.importing.module import Module
    from tapml_rpc.client import RemoteLibrary


@dataclass(frozen=True)
class CompiledLibrary:
    """A Library, the device it was compiled for, its entries' weights, and its symbol ranges."""

    library: Library
    device: Device
    weights: Mapping[str, npt.NDArray[Any]]
    ranges: SymbolRanges


@dataclass(frozen=True)
class RemoteFunction:
    """An entry or operator of an uploaded Library; call it with all inputs, then all outputs."""

    name: str
    library: RemoteLibrary
    device: Device
    parameters: tuple[Parameter, ...]
    symbols: tuple[str, ...] = ()
    weights: tuple[Tensor, ...] = ()

    def __call__(self, *tensors: Tensor, **symbols: int) -> None:
        """Run the entry; outputs are written in place (destination passing).

        Parameters
        ----------
        tensors
            Inputs, then outputs, in the order of the entry's parameters.
        symbols
            Values of symbols that no tensor's shape determines.

        Raises
        ------
        InputError
            If a tensor is on another device, or count, shape or dtype do not fit; the message
            names the parameter.
        """
        self._check(tensors, symbols)
        arguments = [each.remote for each in (*tensors, *self.weights)]
        with self.device.commands() as session:
            session.call(self.library, self.name, arguments, symbols)
            session.fence()

    def _check(self, tensors: Sequence[Tensor], symbols: Mapping[str, int]) -> None:
        """Refuse wrong arguments early, with Python names in the message."""
        if len(tensors) != len(self.parameters):
            names = ", ".join(f"{each.name} ({each.role})" for each in self.parameters)
            raise InputError(
                f"{self.name}: expected {len(self.parameters)} tensors, got {len(tensors)}; "
                f"in order they are {names}"
            )
        for parameter, each in zip(self.parameters, tensors, strict=True):
            if each.device is not self.device:
                raise InputError(
                    f"{self.name}: parameter {parameter.name!r} is on {each.device.name}, "
                    f"expected {self.device.name}; copy it with tapml.tensor(array, device)"
                )
        shapes = [TensorShape(each.shape, each.dtype) for each in tensors]
        bind_parameters(self.name, self.parameters, shapes, dict(symbols), self.symbols)


@dataclass(frozen=True)
class UploadedLibrary:
    """A Library on a device."""

    library: Library
    remote: RemoteLibrary
    device: Device
    weights: Mapping[str, Tensor]

    def get_function(self, name: str) -> RemoteFunction:
        """The entry or operator with a name.

        Raises
        ------
        InputError
            If it does not exist; the message lists the existing ones.
        """
        known = (*self.library.entries, *self.library.operators)
        if name not in known:
            raise InputError(f"the Library has no function {name!r}; it has: {', '.join(known)}")
        entry = self.library.entries.get(name)
        if entry is None:
            operator = self.library.operators[name]
            return RemoteFunction(
                name, self.remote, self.device, operator.parameters, operator.symbols
            )
        # Names of an entry's parameters have prefixes: input:x, weight:x, output:x.
        given, weights = [], []
        for parameter in entry.parameters:
            kind, _, plain = parameter.name.partition(":")
            if kind == "weight":
                weights.append(self.weights[plain])
            else:
                given.append(replace(parameter, name=plain))
        return RemoteFunction(
            name, self.remote, self.device, tuple(given), entry.symbols, tuple(weights)
        )


def compile(module: Module, device: Device) -> CompiledLibrary:
    """Compile every operator of a module for a device, and link its entries.

    Raises
    ------
    CompileError
        If operators cannot be compiled; the message names all of them.
    LimitExceededError
        If a kernel exceeds the device's limits.
    """
    from tapml.compiler.compiler import Compiler
    from tapml.compiler.link import link_entries
    from tapml.compiler.preflight import require
    from tapml.compiler.symbol_ranges import symbol_ranges

    description = device.description
    target = Target(device.platform, limits=description.limits)
    with Compiler() as compiler:
        compiled = list(compiler.compile_all(module.plan.operators.values(), target))
    failures = [str(outcome) for _, outcome in compiled if isinstance(outcome, CompileError)]
    if failures:
        raise CompileError("\n".join(failures))
    libraries = {o.name: each for o, each in compiled if isinstance(each, Library)}
    library = link_entries(module.plan, libraries)
    ranges = symbol_ranges(module.plan)
    require(library, description.limits, ranges=ranges)
    return CompiledLibrary(library, device, module.weights, ranges)


def upload(compiled: CompiledLibrary, device: Device | None = None) -> UploadedLibrary:
    """Send a Library to the device it was compiled for, or to another one of its platform.

    Raises
    ------
    InputError
        If the device has another platform.
    LimitExceededError
        If a kernel exceeds the device's limits.

    Examples
    --------
    >>> import torch
    >>> import tapml as tml
    >>> x = torch.ones(2, 3)
    >>> module = tml.Module(torch.nn.Softmax(dim=-1), "softmax", inputs=[x])
    >>> softmax = tml.upload(tml.compile(module, tml.cpu())).get_function("softmax")
    >>> output = tml.allocate((2, 3), "float32", tml.cpu())
    >>> softmax(tml.tensor(x, tml.cpu()), output)
    >>> output.numpy().sum(axis=1).tolist()
    [1.0, 1.0]
    """
    from tapml.compiler.preflight import require

    where = device or compiled.device
    if where.platform != compiled.library.target:
        raise InputError(
            f"this Library is for {compiled.library.target}, not for {where.platform}; "
            f"compile it with tapml.compile(module, tapml.{where.platform}())"
        )
    require(compiled.library, where.description.limits, ranges=compiled.ranges)
    weights = {name: tensor(array, where) for name, array in compiled.weights.items()}
    return UploadedLibrary(compiled.library, where.session.upload(compiled.library), where, weights)
