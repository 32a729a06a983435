"""Reads a repro folder back and replays it. Nothing in a folder is trusted: bounded, no pickle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tapml.failures.diagnosis import Diagnosis
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.expectation_store import unpack_check
from tapml.plan.graph_plan import Operator, Origin
from tapml.replaying.failure import KERNELS, Failure
from tapml.replaying.replayer import replay
from tapml.replaying.results import ReplayResult
from tapml.replaying.run import RUNS
from tapml.repro.description import (
    Description,
    TestedOperator,
    read_bounded,
    read_description,
)
from tapml.repro.writing import (
    DESCRIPTION,
    DIAGNOSIS,
    INDEPENDENT,
    LIBRARY,
    OPERATOR,
)
from tapml.suite.definitions import unpack_operators
from tapml.suite.memory_case import MemoryCase
from tapml.verdicts.expectation import Expectation, ExpectedOutput
from tapml.verdicts.index_source import locate_source
from tapml.verdicts.operator_class import checked_class
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Cause
from tapml_rpc.client import Session
from tapml_targets.driver import DeviceDescription
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError
from tapml_targets.expression import bind_shape
from tapml_targets.library import Library, Parameter
from tapml_targets.library_format import unpack

_NPY_HEADER_BYTES: Final = 4096
_CHECK_BYTES: Final = 1 << 16
_MAX_LIBRARY_BYTES: Final = 1 << 30
_MAX_OPERATOR_BYTES: Final = 64 << 20
_MAX_DIAGNOSIS_BYTES: Final = 4 << 20

Array = NDArray[Any]


def read_tensors(
    folder: Path, names: Sequence[str], parameters: Sequence[Parameter], dtype: str | None = None
) -> tuple[Array, ...]:
    """One array per parameter, checked against its shape and dtype."""
    arrays = []
    for name, parameter in zip(names, parameters, strict=True):
        expected = np.dtype(dtype or lookup(parameter.dtype).numpy_name)
        arrays.append(read_array(folder, name, parameter, expected))
    return tuple(arrays)


def read_array(folder: Path, name: str, parameter: Parameter, expected: np.dtype[Any]) -> Array:
    """The array in a file of `folder`, checked against its parameter's shape and its dtype."""
    path = folder / name
    if path.name != name:
        raise InputError(f"{name!r} is no name of a file in {folder}")
    shape = tuple(int(extent) for extent in parameter.shape if isinstance(extent, int))
    nbytes = math.prod(shape) * expected.itemsize
    if path.stat().st_size > nbytes + _NPY_HEADER_BYTES:
        raise InputError(f"{path} is larger than a {expected}{list(shape)} array")
    array: Array = np.load(path, allow_pickle=False)
    if array.dtype != expected or array.shape != shape:
        raise InputError(
            f"{path}: expected {expected}{list(shape)}, got {array.dtype}{list(array.shape)}"
        )
    return array


def read_expectation(
    folder: Path, description: Description, operator: Operator, inputs: Sequence[Array]
) -> Expectation:
    """What the outputs should be, as the folder has it."""
    names = description.files
    outputs = []
    for index, (parameter, kind) in enumerate(
        zip(operator.written, operator.output_kinds, strict=True)
    ):
        is_float = lookup(parameter.dtype).is_float
        carrier = "float64" if is_float else lookup(parameter.dtype).numpy_name
        values = read_array(
            folder / "expected", names.expected[index], parameter, np.dtype(carrier)
        )
        moved = read_array(
            folder / "sensitivity", names.sensitivity[index], parameter, np.dtype("float32")
        )
        outputs.append(
            ExpectedOutput(
                parameter.name,
                parameter.dtype,
                kind,
                values,
                moved,
                locate_source(
                    description.index_sources[index], operator.read, inputs, values.shape
                ),
                float(description.reference_ratios[index]),
                *checked_class(description.classes[index]),
            )
        )
    independent = None
    if (folder / INDEPENDENT).exists():
        size = sum(2 * output.values.nbytes for output in outputs) + _CHECK_BYTES
        independent = unpack_check(read_bounded(folder / INDEPENDENT, size), outputs)
    return Expectation(tuple(outputs), description.terms, description.repeats, independent)


@dataclass(frozen=True)
class Repro:
    """A repro folder, read and checked.

    Attributes
    ----------
    operator, definition
        The operator with the shapes of the test; the same with function and body, None if the
        folder lacks them.
    lifetimes
        Per input ``weight``, ``state``, ``input`` or ``activation``.
    library, edited
        The uploaded Library with the sources in ``kernels/`` now, and which of them were edited.
    device, status, reason, cause
        The failing device and the verdict of then.
    """

    operator: Operator
    definition: Operator | None
    case: MemoryCase
    lifetimes: tuple[str, ...]
    library: Library
    edited: tuple[str, ...]
    expectation: Expectation
    policy: Policy
    device: Mapping[str, Any]
    status: str
    reason: str
    cause: Cause
    origins: tuple[Origin, ...] = ()
    diagnosis: Diagnosis | None = None

    def expect(self, test: CarvedCase) -> Expectation:
        """What the folder says the outputs should be."""
        return self.expectation

    def appeal(self, test: CarvedCase) -> Expectation:
        """The same: the folder holds the closer measurement already."""
        return self.expectation


def is_repro(path: Path) -> bool:
    """Whether `path` is a repro folder."""
    return (path / DESCRIPTION).is_file()


def replay_repro(repro: Repro, session: Session, *, runs: int = RUNS) -> ReplayResult:
    """Replay a repro folder's test on a device, `runs` times."""
    return replay(
        repro.operator, repro.case, repro.library, session, repro, repro.policy, runs=runs
    )


def failure_of(repro: Repro, result: ReplayResult, device: DeviceDescription) -> Failure:
    """What localization, or another repro folder, is made from: a folder's test, replayed again.

    Raises
    ------
    InputError
        If the folder holds no definition of the operator.
    """
    if repro.definition is None:
        raise InputError(
            f"the repro folder of {repro.operator.name} has no {OPERATOR}: write it again with "
            "`tapml offload` or `tapml replay --repro`"
        )
    return Failure(
        operator=repro.definition,
        result=result,
        library=repro.library,
        device=device,
        expectation=repro.expectation,
        policy=repro.policy,
        origins=repro.origins,
        diagnosis=repro.diagnosis,
    )


def read_repro(folder: Path) -> Repro:
    """Read and check a repro folder.

    Raises
    ------
    InputError
        If it is none, of another version, or damaged.
    """
    try:
        return _read(folder)
    except (KeyError, TypeError, ValueError, IndexError, OSError, EOFError) as error:
        raise InputError(f"{folder} is not a repro folder, or it is damaged: {error}") from error


def _read(folder: Path) -> Repro:
    description = read_description(folder)
    operator = _operator(description.operator)
    names, test, verdict = description.files, description.test, description.verdict
    inputs = read_tensors(folder / "inputs", names.inputs, operator.read)
    outputs = read_tensors(folder / "reference", names.reference, operator.written)
    if len(test.lifetimes) != len(inputs):
        raise InputError(f"expected {len(inputs)} lifetimes, got {len(test.lifetimes)}")
    case = MemoryCase(
        id=test.id,
        key=test.key,
        operator=operator.name,
        symbols=test.symbols,
        arrays=inputs,
        results=outputs,
    )
    library = unpack(read_bounded(folder / LIBRARY, _MAX_LIBRARY_BYTES))
    library, edited = with_sources(library, folder / KERNELS, description.kernels)
    return Repro(
        operator=operator,
        definition=_definition(folder / OPERATOR, operator),
        case=case,
        lifetimes=test.lifetimes,
        library=library,
        edited=edited,
        expectation=read_expectation(folder, description, operator, inputs),
        policy=Policy.from_json(description.policy),
        device=description.device,
        status=verdict.status,
        reason=verdict.reason,
        cause=verdict.cause,
        origins=description.origins,
        diagnosis=_diagnosis(folder / DIAGNOSIS),
    )


def _definition(path: Path, operator: Operator) -> Operator | None:
    """The operator with its function, checked against what the test has."""
    if not path.exists():
        return None
    definition = unpack_operators(read_bounded(path, _MAX_OPERATOR_BYTES)).get(operator.name)
    if definition is None or len(definition.parameters) != len(operator.parameters):
        raise InputError(f"{path} does not define {operator.name}")
    symbols: dict[str, int] = {}
    for own, tested in zip(definition.parameters, operator.parameters, strict=True):
        if (own.name, own.dtype, own.role) != (tested.name, tested.dtype, tested.role):
            raise InputError(f"{path}: parameter {own.name} is not that of the test")
        shape = [extent for extent in tested.shape if isinstance(extent, int)]
        bind_shape(own.shape, shape, symbols, f"{path}: parameter {own.name}")
    return definition


def _diagnosis(path: Path) -> Diagnosis | None:
    if not path.exists():
        return None
    return Diagnosis.from_json(msgspec.json.decode(read_bounded(path, _MAX_DIAGNOSIS_BYTES)))


def _operator(tested: TestedOperator) -> Operator:
    parameters = tuple(
        Parameter(each.name, each.shape, lookup(each.dtype).name, each.role)
        for each in tested.parameters
    )
    return Operator(
        name=tested.name,
        hash=tested.hash,
        parameters=parameters,
        symbols=tested.symbols,
        function="",
        script=tested.script,
        output_kinds=tested.output_kinds,
    )


def with_sources(
    library: Library, folder: Path, names: Sequence[str | None]
) -> tuple[Library, tuple[str, ...]]:
    """A Library with the sources in `folder` in place of its own, and which of them differ.

    `names` has a file per module, None for a binary one.
    """
    modules, edited = [], []
    for module, name in zip(library.modules, names, strict=True):
        code = module.code
        if name is not None:
            path = folder / name
            if path.name != name:
                raise InputError(f"{name!r} is no name of a file in {folder}")
            code = read_bounded(path, _MAX_LIBRARY_BYTES)
            if code != module.code:
                edited.append(name)
        modules.append(replace(module, code=code))
    return replace(library, modules=tuple(modules)), tuple(edited)


def device_like(written: Mapping[str, Any]) -> DeviceDescription | str:
    """The device that a folder was written for; its platform's default where that is not here."""
    from tapml_targets.ranking import list_devices

    platform, same = str(written["platform"]), ("name", "vendor_platform")
    for device in list_devices(platform):
        if all(getattr(device, each) == written.get(each) for each in same):
            return device
    return platform
