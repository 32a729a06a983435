"""A device that dies while a matrix runs costs one operator, or its column if it stays dead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.devices.reach import open_device
from tapml.matrix.implementation import Column, columns_of
from tapml.matrix.report import Row
from tapml.matrix.running import Matrix, opened
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.oracle import Oracle
from tapml.validation.run import lost_with
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Cause
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError, ProtocolError, SetupError, TapmlError
from tests.conftest import RequireDevice
from tests.replaying.replay_kernels import linear_case, linear_library, linear_operator
from tests.rpc.peers import ServerProcess
from tests.rpc.test_faults import process_of

OPERATOR = linear_operator()


class Connecting:
    """Opens a device as often as it is allowed to."""

    def __init__(self, device: DeviceDescription, times: int) -> None:
        self.device, self.left = device, times

    def __call__(self) -> Session:
        if not self.left:
            raise SetupError("nobody answers there any more")
        self.left -= 1
        return open_local(self.device)


def rows(columns: Sequence[Column], victim: Column | None) -> tuple[Row, Row]:
    """An operator in whose second test the victim's server is killed, and the operator again."""
    case = linear_case(OPERATOR, compile_reference([OPERATOR]))

    def tests() -> Iterator[CarvedCase]:
        yield case
        if victim is not None:
            assert victim.session is not None
            process_of(victim.session).kill()
        yield case

    libraries = {"opencl": linear_library(OPERATOR)}
    with Oracle({OPERATOR.name: OPERATOR}, compile_twins, Policy()) as oracle:
        matrix = Matrix(columns, oracle, Policy())
        return (
            matrix.operator(OPERATOR, tests(), libraries),
            matrix.operator(OPERATOR, [case], libraries),
        )


@pytest.mark.parametrize("comes_back", [True, False], ids=["comes back", "stays dead"])
def test_a_device_that_dies_fails_the_operator_and_only_then_the_rest(
    require_device: RequireDevice, comes_back: bool
) -> None:
    device, *_ = require_device("opencl")
    well = Column("well", Connecting(device, 1))
    ill = Column("ill", Connecting(device, 1 + comes_back))
    with opened([well, ill]):
        first, second = rows([well, ill], ill)
    assert (first.cells["well"].status, first.cells["well"].tests) == ("pass", 2)
    assert (first.cells["ill"].status, first.cells["ill"].cause) == ("fail", Cause.LOST)
    # That one passes and takes another down is a difference of its own.
    (difference,) = first.differences
    assert (difference.kind, difference.suspects) == ("verdicts", ("ill",))
    assert second.cells["well"].status == "pass" and not second.differences
    again = second.cells["ill"]
    assert again.status == ("pass" if comes_back else "not run")
    assert comes_back or "it cannot be opened again: nobody answers" in again.reason
    assert ill.exit_code == (0 if comes_back else 4)


def test_one_that_cannot_be_opened_is_not_run(require_device: RequireDevice) -> None:
    device, *_ = require_device("opencl")
    well, dead = Column("well", Connecting(device, 1)), Column("dead", Connecting(device, 0))
    case = linear_case(OPERATOR, compile_reference([OPERATOR]))
    with (
        opened([well, dead]),
        opened([well, dead]),
        Oracle({OPERATOR.name: OPERATOR}, compile_twins, Policy()) as oracle,
    ):
        matrix = Matrix([well, dead], oracle, Policy())
        row = matrix.operator(OPERATOR, [case], {"opencl": linear_library(OPERATOR)})
    assert (row.cells["well"].status, row.cells["dead"].status) == ("pass", "not run")
    assert row.cells["dead"].reason == "nobody answers there any more"
    assert not row.differences and row.status == "not run"


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        ("upload", ProtocolError("expected a length, got none")),
        ("batch", ConnectionResetError(104, "Connection reset by peer")),
    ],
)
def test_what_says_nothing_of_a_kernel_is_not_run_there_and_ends_nothing_else(
    require_device: RequireDevice, monkeypatch: pytest.MonkeyPatch, step: str, fault: Exception
) -> None:
    device, *_ = require_device("opencl")
    well, ill = Column("well", Connecting(device, 1)), Column("ill", Connecting(device, 2))
    with opened([well, ill]):
        assert ill.session is not None
        monkeypatch.setattr(ill.session, step, raising(fault))
        first, second = rows([well, ill], None)
        assert lost_with([well, ill]) == TapmlError.exit_code
    assert (first.cells["well"].status, first.cells["well"].tests) == ("pass", 2)
    assert first.cells["ill"].status == "not run" and not first.differences
    assert str(fault) in first.cells["ill"].reason
    # Another session is opened for the next operator.
    assert {cell.status for cell in second.cells.values()} == {"pass"}


def test_a_fault_of_ours_ends_the_matrix(
    require_device: RequireDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, *_ = require_device("opencl")
    column = Column("one", Connecting(device, 1))
    with opened([column]):
        assert column.session is not None
        monkeypatch.setattr(column.session, "upload", raising(TypeError("a fault of ours")))
        with pytest.raises(TypeError, match="a fault of ours"):
            rows([column], None)


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_one_device_under_two_names_is_compared_with_nobody(require_device: RequireDevice) -> None:
    """What ``opencl`` means is known when it is open."""
    device, *_ = require_device("opencl")
    names = ("opencl", f"opencl:{device.index}")
    columns = columns_of({name: Connecting(device, 1) for name in names}, len(names))
    said = f"{names[1]} is the same device as opencl .*each device once"
    with pytest.raises(InputError, match=said), opened(columns):
        pass
    assert all(column.session is None for column in columns)


def test_one_server_by_two_addresses_is_one_device(require_device: RequireDevice) -> None:
    device, *_ = require_device("opencl")
    with ServerProcess("--device", f"opencl:{device.index}") as server:
        names = (server.address, server.address.replace("127.0.0.1", "localhost"))
        connecting = {name: partial(open_device, name) for name in names}
        columns = columns_of(connecting, len(names))
        with pytest.raises(InputError, match="is the same device as tcp://127"), opened(columns):
            pass
