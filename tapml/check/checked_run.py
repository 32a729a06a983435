"""Runs one carved test on a checker, and reads its log and the outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from tapml.check.checker import Checker
from tapml.check.findings import Finding, TensorPlace, findings_of
from tapml.check.sample_tests import case_bytes, case_shapes
from tapml.oracles.carved_case import CarvedCase
from tapml.plan.graph_plan import Operator
from tapml_rpc.failures import is_out_of_memory
from tapml_rpc.remote import RemoteBuffer, RemoteTensor
from tapml_targets.call_plan import TensorShape, plan_call
from tapml_targets.errors import CompileError, DeviceLostError, SetupError, TapmlError
from tapml_targets.float_formats import as_float64
from tapml_targets.library import Library, Parameter

MAX_TEST_BYTES: Final = 16 << 20
"""Limit on the tensors of one test: the simulator uses 48 bytes for every byte of them."""
_GROSS: Final = 0.05

Array = NDArray[Any]


@dataclass(frozen=True)
class CheckedRun:
    """The result of one test.

    Attributes
    ----------
    findings
        Faults.
    reason
        Why it did not finish; empty if it did.
    notes
        Outputs that are far from the carved ones.
    gave_up
        Whether it used a feature that the simulator does not support.
    """

    findings: tuple[Finding, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()
    gave_up: bool = False


@dataclass(frozen=True)
class _Placed:
    """A tensor on the simulator; `values` is its carved content, None for a workspace."""

    parameter: Parameter
    buffer: RemoteBuffer
    number: int
    values: Array | None

    @property
    def tensor(self) -> RemoteTensor:
        """The argument of the call."""
        shape = (self.buffer.nbytes,) if self.values is None else self.values.shape
        return RemoteTensor(self.buffer, 0, shape, self.parameter.dtype)


def run_checked(
    operator: Operator, test: CarvedCase, library: Library, checker: Checker
) -> CheckedRun:
    """Run a test once on the simulator.

    What a checker gives up on runs again without the platform's optimiser, whose output (LLVM's
    ``freeze``) some do not know.

    Raises
    ------
    InputError
        If the Library has no such operator, or the test's shapes do not match it.
    SetupError
        If the simulator's process cannot be restarted, or lacks what compiles the kernels.
    """
    run = _run(operator, test, library, checker)
    if run.reason and run.gave_up and checker.tool.UNOPTIMISED:
        return _run(operator, test, _unoptimised(library, checker.tool.UNOPTIMISED), checker)
    return run


def _run(operator: Operator, test: CarvedCase, library: Library, checker: Checker) -> CheckedRun:
    workspaces = _workspaces(operator, test, library)
    total = case_bytes(test, operator) + sum(workspaces.values())
    if total > MAX_TEST_BYTES:
        return CheckedRun(
            reason=f"its tensors need {total / 1e6:.0f} MB; "
            f"the limit of the simulator is {MAX_TEST_BYTES / 1e6:.0f} MB"
        )
    # A large tensor is assembled in a separate buffer.
    checker.make_room(2 * total)
    placed: list[_Placed] = []
    after: list[Array] = []
    refused: tuple[Finding, ...] = ()
    reason = ""
    session = checker.session
    loaded = False
    try:
        remote = session.upload(with_given_workspaces(library, operator.name))
        loaded = True
        placed = _place(operator, test, workspaces, checker)
        with session.batch() as batch:
            batch.call(remote, operator.name, [each.tensor for each in placed], test.symbols)
            reads = [batch.read(each.buffer) for each in placed]
        after = [np.frombuffer(read.result(), np.uint8) for read in reads]
    except DeviceLostError as error:
        reason = f"the simulator crashed: {str(error).splitlines()[0]}"
    except TapmlError as error:
        if isinstance(error, CompileError) and not loaded:
            return CheckedRun(reason=f"the simulator rejected its kernels: {error}")
        if isinstance(error, SetupError) and not loaded:
            # What compiles kernels is not installed: that says nothing of this one.
            raise
        if is_out_of_memory(error):
            reason = f"the simulator ran out of memory: {error}"
        else:
            reason = "its launch was refused"
            refused = (Finding("launch refused", operator.name, test.id, "", str(error)),)
    messages, silent = checker.messages()
    gave_up = [message for message in messages if message.kind == "simulator error"]
    if gave_up:
        reason = f"the simulator gave up: {gave_up[0].headline}"
    places = [TensorPlace(each.number, each.parameter.name, each.buffer.nbytes) for each in placed]
    findings = findings_of(
        (message for message in messages if message.kind != "simulator error"),
        library,
        operator=operator.name,
        test=test.id,
        tensors=places,
        at_least=silent,
    )
    if reason:
        # A failed process is not reliable.
        checker.renew()
        return CheckedRun((*findings, *refused), reason, gave_up=bool(gave_up))
    changed = [
        Finding(
            "input changed",
            operator.name,
            test.id,
            "",
            f"{count} bytes of input {each.parameter.name} were changed",
            tensor=each.parameter.name,
            tensor_bytes=each.buffer.nbytes,
        )
        for each, found in zip(placed, after, strict=True)
        if each.parameter.role == "input" and (count := _changed_bytes(each, found))
    ]
    notes = [_note(each, found) for each, found in zip(placed, after, strict=True)]
    return CheckedRun((*findings, *changed), notes=tuple(filter(None, notes)))


def _unoptimised(library: Library, option: str) -> Library:
    modules = (
        replace(module, options=tuple(sorted({*module.options, option})))
        for module in library.modules
    )
    return replace(library, modules=tuple(modules))


def _workspaces(operator: Operator, test: CarvedCase, library: Library) -> dict[str, int]:
    """Size in bytes of each workspace in this test."""
    shapes = case_shapes(test)
    read = iter(shapes[: len(operator.read)])
    written = iter(shapes[len(operator.read) :])
    tensors = []
    for parameter in operator.parameters:
        shape = next(read) if parameter.role != "output" else None
        if parameter.role != "input":
            shape = next(written)
        tensors.append(TensorShape(tuple(shape or ()), parameter.dtype))
    plan = plan_call(library, operator.name, tensors, test.symbols)
    return {workspace.name: workspace.nbytes for workspace in plan.workspaces}


def _place(
    operator: Operator, test: CarvedCase, workspaces: dict[str, int], checker: Checker
) -> list[_Placed]:
    """Allocate inputs with carved content, and outputs and workspaces unwritten."""
    inputs, outputs = iter(test.read_inputs()), iter(test.read_outputs())
    placed = []
    for parameter in operator.parameters:
        before = next(inputs) if parameter.role != "output" else None
        values = before if parameter.role == "input" else next(outputs)
        assert values is not None  # noqa: S101 - an input has a content
        if before is None:
            buffer, number = checker.allocate(values.nbytes)
        else:
            buffer, number = checker.place(before)
        placed.append(_Placed(parameter, buffer, number, np.asarray(values, order="C")))
    for name, nbytes in workspaces.items():
        buffer, number = checker.allocate(nbytes)
        placed.append(_Placed(Parameter(name, (nbytes,), "uint8", "output"), buffer, number, None))
    return placed


def _changed_bytes(placed: _Placed, found: Array) -> int:
    assert placed.values is not None  # noqa: S101 - an input has a content
    return int((placed.values.reshape(-1).view(np.uint8) != found).sum())


def _note(placed: _Placed, found: Array) -> str:
    """A note if an output is far from the carved one; replay gives the verdict on numbers."""
    if placed.values is None or placed.parameter.role == "input" or not placed.values.size:
        return ""
    name, carved = placed.parameter.name, placed.values
    values = found.view(carved.dtype).reshape(carved.shape)
    expected, given = (as_float64(raw, placed.parameter.dtype) for raw in (carved, values))
    finite = np.isfinite(expected)
    odd = int((finite != np.isfinite(given)).sum())
    if odd:
        return f"{odd} elements of {name} are finite in only one of carved and simulated output"
    scale = np.abs(expected[finite]).max(initial=0.0)
    worst = np.abs(given[finite] - expected[finite]).max(initial=0.0)
    if worst <= _GROSS * scale:
        return ""
    return (
        f"{name} differs by up to {worst:.3g} from the carved output, whose largest is {scale:.3g}"
    )


def with_given_workspaces(library: Library, operator: str) -> Library:
    """`library` with only this operator, and its workspaces as additional parameters.

    A server reuses and grows workspaces between calls. Reads of unwritten bytes or out of bounds
    are only detected in a new workspace of the exact size.
    """
    program = library.operators[operator]
    workspaces = tuple(
        Parameter(workspace.name, (workspace.nbytes,), "uint8", "output")
        for workspace in program.workspaces
    )
    given = structs.replace(program, parameters=(*program.parameters, *workspaces), workspaces=())
    return replace(library, operators={operator: given}, entries={})
