"""A reference that is a device: the mature platform of the paper, on which operators are recorded.

Its operators are functions over arrays, as the processor's are, for rooting, probes and timing. In
a hybrid graph they are placed on the device, so that values stay there between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tapml.compiler.cache import generator_hash, joint_hash
from tapml.execute.arrays import Array, flat_bytes
from tapml.execute.device import reference_failure
from tapml.execute.executor import Executor
from tapml.execute.place import REFERENCE
from tapml_rpc.remote import RemoteTensor
from tapml_targets.description import fingerprint
from tapml_targets.errors import (
    CompileError,
    CompilerFailedError,
    InputError,
    ReferenceFailedError,
    RemoteError,
    TapmlError,
)
from tapml_targets.library_format import library_hash, pack
from tapml_targets.target import Target

if TYPE_CHECKING:
    from tapml.compiler.compiler import Compiler
    from tapml.execute.interfaces import Reference
    from tapml.plan.graph_plan import GraphPlan, Operator
    from tapml_rpc.client import Session
    from tapml_rpc.remote import RemoteLibrary
    from tapml_targets.driver import DeviceDescription
    from tapml_targets.library import Library

LLVM: Final = "llvm"
"""What the processor's reference runs on, for tables of times."""
_SHOWN: Final = 3
_DIGITS: Final = 12


class DeviceReference(Mapping[str, Callable[..., None]]):
    """A plan's operators on a device, by name; made by :func:`compile_on`.

    A function takes arrays in parameter order and fills the outputs in place, as a
    :class:`~tapml.compiler.reference_module.ReferenceFunction` does.

    Attributes
    ----------
    session
        The connection to the device.
    libraries
        Each operator's Library.
    """

    def __init__(
        self,
        session: Session,
        operators: Mapping[str, Operator],
        libraries: Mapping[str, Library],
    ) -> None:
        self.session = session
        self.libraries = libraries
        self._operators = operators
        self._remote: dict[str, RemoteLibrary] = {}

    @property
    def name(self) -> str:
        """The device for people: ``opencl:0 (its name)``."""
        return reference_name(self.session)

    @property
    def kernels_hash(self) -> str:
        """Hash of all kernels and launch plans."""
        return joint_hash(library_hash(pack(each)) for each in self.libraries.values())

    def __getitem__(self, operator: str) -> Callable[..., None]:
        """The function of an operator."""
        return partial(self._call, self._operators[operator])

    def __iter__(self) -> Iterator[str]:
        return iter(self.libraries)

    def __len__(self) -> int:
        return len(self.libraries)

    def _call(
        self, operator: Operator, *arrays: Any, symbols: Mapping[str, int] | None = None
    ) -> None:
        tensors = [np.asarray(each) for each in arrays]
        if len(tensors) != len(operator.parameters):
            raise InputError(
                f"operator {operator.name!r} takes {len(operator.parameters)} tensors, got "
                f"{len(tensors)}"
            )
        own = {name: number for name, number in (symbols or {}).items() if name in operator.symbols}
        try:
            self._run(operator, tensors, own)
        except (RemoteError, CompileError) as error:
            raise reference_failure(self.name, error) from error

    def _run(self, operator: Operator, arrays: list[Array], symbols: Mapping[str, int]) -> None:
        session = self.session
        library = self._remote.get(operator.name)
        if library is None:
            library = self._remote[operator.name] = session.upload(self.libraries[operator.name])
        tensors: list[RemoteTensor] = []
        reads = []
        try:
            for parameter, array in zip(operator.parameters, arrays, strict=True):
                buffer = session.allocate(max(1, array.nbytes))
                tensors.append(RemoteTensor(buffer, 0, array.shape, parameter.dtype))
                # Outputs, too: what a kernel leaves unwritten is then as the caller left it.
                if array.nbytes:
                    session.write(buffer, flat_bytes(np.ascontiguousarray(array)))
            with session.batch() as batch:
                batch.call(library, operator.name, tensors, symbols)
                for parameter, array, tensor in zip(
                    operator.parameters, arrays, tensors, strict=True
                ):
                    if parameter.role != "input":
                        reads.append((array, batch.read(tensor.buffer, array.nbytes)))
            for array, read in reads:
                written = np.frombuffer(read.result(), array.dtype)
                array[...] = written.reshape(array.shape)
        except RemoteError:
            with suppress(TapmlError):
                session.reset()
            raise
        finally:
            for tensor in tensors:
                with suppress(TapmlError):
                    session.free(tensor.buffer)


def compile_on(session: Session, plan: GraphPlan, compiler: Compiler) -> DeviceReference:
    """Compile a plan's operators for the device that is to be the reference.

    Raises
    ------
    ReferenceFailedError
        Naming the operators that do not compile: every operator of a plan needs the reference.
    """
    target = Target(session.device.platform, limits=session.device.limits)
    libraries: dict[str, Library] = {}
    refused: dict[str, CompileError] = {}
    for operator, outcome in compiler.compile_all(plan.operators.values(), target):
        if isinstance(outcome, CompileError):
            refused[operator.name] = outcome
        else:
            libraries[operator.name] = outcome
    if refused:
        # What a compiler did not survive says more than what it refused.
        first = min(refused.values(), key=lambda each: not isinstance(each, CompilerFailedError))
        names = ", ".join(list(refused)[:_SHOWN]) + ", ..." * (len(refused) > _SHOWN)
        raise ReferenceFailedError(
            f"the reference {reference_name(session)} has no kernel for {len(refused)} of "
            f"{len(plan.operators)} operators ({names}): {first}; choose another --reference"
        ) from first
    return DeviceReference(session, plan.operators, libraries)


def executor_on(
    plan: GraphPlan,
    weights: Mapping[str, Array],
    reference: Reference,
    session: Session | None = None,
) -> Executor:
    """An executor whose operators are on the reference, be it this process or a device.

    Parameters
    ----------
    session
        The target's; None if nothing is to move.
    """
    executor = Executor(plan, weights, reference, session)
    if isinstance(reference, DeviceReference):
        executor.attach(reference.session, REFERENCE, reference=reference.name)
        for operator, library in reference.libraries.items():
            executor.place(operator, library, place=REFERENCE)
    return executor


def reference_name(session: Session) -> str:
    """What a reference's device is called in messages and reports."""
    device = session.device
    return f"{device.platform}:{device.index} ({device.name})"


def described(reference: Reference) -> str:
    """The reference's device for people; empty for this machine's processor."""
    return reference.name if isinstance(reference, DeviceReference) else ""


def platform_of(reference: Reference) -> str:
    """What a reference runs on, for tables of times."""
    return reference.session.device.platform if isinstance(reference, DeviceReference) else LLVM


def reference_facts(reference: Reference) -> dict[str, str] | None:
    """Which device the reference is, as plain data; None for this machine's processor."""
    return (
        device_facts(reference.session.device) if isinstance(reference, DeviceReference) else None
    )


def device_facts(device: DeviceDescription) -> dict[str, str]:
    """The same, of a device that is to be the reference."""
    return {
        "platform": device.platform,
        "device": f"{device.platform}:{device.index}",
        "name": device.name,
        "vendor_platform": device.vendor_platform,
        "driver_version": device.driver_version,
        "fingerprint": fingerprint(device),
        "generator": generator_hash(device.platform)[:_DIGITS],
    }


def reference_identity(reference: Reference) -> str:
    """What the reference's device and kernels depend on; empty for this machine's processor."""
    return identity_of(reference_facts(reference))


def identity_of(facts: Mapping[str, str] | None) -> str:
    """The same, from :func:`reference_facts`."""
    return "" if facts is None else f"{facts['fingerprint']} {facts['generator']}"
