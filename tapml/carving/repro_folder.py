"""Reads a repro folder back and replays it. Nothing in a folder is trusted: bounded, no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from tapml.carving.definitions import unpack_operators
from tapml.carving.memory_case import MemoryCase
from tapml.carving.replay import replay
from tapml.carving.replay_repro import (
    DESCRIPTION,
    DIAGNOSIS,
    FORMAT_VERSION,
    LIBRARY,
    OPERATOR,
)
from tapml.carving.replay_results import ReplayResult
from tapml.carving.replay_run import RUNS
from tapml.carving.repro_failure import KERNELS, Failure
from tapml.carving.repro_tensors import read_bounded, read_expectation, read_tensors
from tapml.compare.expectation import Expectation
from tapml.compare.oracle import CarvedCase
from tapml.compare.policy import Policy
from tapml.graph.plan import Operator, Origin
from tapml.localize.diagnosis import Diagnosis
from tapml_rpc.client import Session
from tapml_targets.driver import DeviceDescription
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError
from tapml_targets.expression import bind_shape
from tapml_targets.library import Library, Parameter
from tapml_targets.library_format import unpack

_MAX_DESCRIPTION_BYTES: Final = 16 << 20
_MAX_LIBRARY_BYTES: Final = 1 << 30
_MAX_OPERATOR_BYTES: Final = 64 << 20
_MAX_DIAGNOSIS_BYTES: Final = 4 << 20
_ORIGIN: Final = ("module_path", "source", "operation", "node")
_KINDS: Final = ("value", "index", "code", "predicate", "state")
_ROLES: Final = ("input", "output", "inout")
_LIFETIMES: Final = ("weight", "state", "input", "activation")

Array = NDArray[Any]


@dataclass(frozen=True)
class Repro:
    """A repro folder, read and checked.

    Attributes
    ----------
    operator
        The operator with the shapes of the test, without its function.
    definition
        The operator with its function and body; None where the folder lacks them.
    case
        Its test.
    lifetimes
        Per input ``weight``, ``state``, ``input`` or ``activation``.
    library
        What was uploaded, with the sources as they are in ``kernels/`` now.
    edited
        Names of sources that are not as they were written.
    expectation
        Float64 outputs and sensitivities.
    policy
        The limits of the verdict.
    device
        ``platform``, ``name``, ... of the device it failed on.
    status, reason
        The verdict then.
    origins
        Where in the model the operator comes from.
    diagnosis
        What localization found; None where it was not asked.
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
        raise InputError(f"{folder} is no repro folder, or damaged: {error!r}") from error


def _read(folder: Path) -> Repro:
    description = json.loads(read_bounded(folder / DESCRIPTION, _MAX_DESCRIPTION_BYTES))
    if description["format"] != FORMAT_VERSION:
        raise InputError(
            f"{folder} has repro format {str(description['format'])[:20]}; this tapml reads format "
            f"{FORMAT_VERSION}: write it again with `tapml offload` or `tapml replay --repro`"
        )
    operator = _operator(description["operator"])
    names = description["files"]
    inputs = read_tensors(folder / "inputs", names["inputs"], operator.read)
    outputs = read_tensors(folder / "reference", names["reference"], operator.written)
    test = description["test"]
    case = MemoryCase(
        id=str(test["id"]),
        key=str(test["key"]),
        operator=operator.name,
        symbols={str(name): int(value) for name, value in test["symbols"].items()},
        arrays=inputs,
        results=outputs,
    )
    library = unpack(read_bounded(folder / LIBRARY, _MAX_LIBRARY_BYTES))
    library, edited = with_sources(library, folder / KERNELS, description["kernels"])
    verdict = description["verdict"]
    return Repro(
        operator=operator,
        definition=_definition(folder / OPERATOR, operator),
        case=case,
        lifetimes=_lifetimes(test["lifetimes"], len(inputs)),
        library=library,
        edited=edited,
        expectation=read_expectation(folder, description, operator, inputs),
        policy=Policy.from_json(description["policy"]),
        device=dict(description["device"]),
        status=str(verdict["status"]),
        reason=str(verdict["reason"]),
        origins=tuple(
            Origin(*(str(origin[name]) for name in _ORIGIN)) for origin in description["origins"]
        ),
        diagnosis=_diagnosis(folder / DIAGNOSIS),
    )


def _lifetimes(data: Sequence[Any], count: int) -> tuple[str, ...]:
    lifetimes = tuple(str(lifetime) for lifetime in data)
    if len(lifetimes) != count or any(lifetime not in _LIFETIMES for lifetime in lifetimes):
        raise InputError(f"expected {count} of {', '.join(_LIFETIMES)}, got {str(lifetimes)[:200]}")
    return lifetimes


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
    return Diagnosis.from_json(json.loads(read_bounded(path, _MAX_DIAGNOSIS_BYTES)))


def _operator(data: Mapping[str, Any]) -> Operator:
    parameters = []
    for item in data["parameters"]:
        role, shape = item["role"], tuple(int(extent) for extent in item["shape"])
        if role not in _ROLES or any(extent < 0 for extent in shape):
            raise InputError(f"not a parameter: {str(item)[:200]}")
        parameters.append(Parameter(str(item["name"]), shape, lookup(item["dtype"]).name, role))
    kinds = tuple(data["output_kinds"])
    if any(kind not in _KINDS for kind in kinds):
        raise InputError(f"unknown output kinds {kinds}; known ones: {', '.join(_KINDS)}")
    return Operator(
        name=str(data["name"]),
        hash=str(data["hash"]),
        parameters=tuple(parameters),
        symbols=tuple(str(symbol) for symbol in data["symbols"]),
        function="",
        script=str(data["script"]),
        output_kinds=kinds,
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
