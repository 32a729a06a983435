"""A device that dies while a matrix runs costs one operator, or its column if it stays dead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tapml.compare.oracle import CarvedCase, Oracle
from tapml.compare.policy import Policy
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.matrix.implementation import Column
from tapml.matrix.report import Row
from tapml.matrix.running import Matrix, opened
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import SetupError
from tests.carving.replay_kernels import linear_case, linear_library, linear_operator
from tests.conftest import RequireDevice
from tests.rpc.test_faults import server_of

pytestmark = pytest.mark.slow
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


def rows(columns: Sequence[Column], victim: Column) -> tuple[Row, Row]:
    """An operator in whose second test the victim's server is killed, and the operator again."""
    case = linear_case(OPERATOR, compile_reference([OPERATOR]))

    def tests() -> Iterator[CarvedCase]:
        yield case
        assert victim.session is not None
        server_of(victim.session).process.kill()
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
    assert first.cells["ill"].status == "fail"
    assert "the device was lost in test" in first.cells["ill"].reason
    # That one passes and takes another down is a difference of its own.
    (difference,) = first.differences
    assert (difference.kind, difference.suspects) == ("verdicts", ("ill",))
    assert second.cells["well"].status == "pass" and not second.differences
    again = second.cells["ill"]
    assert again.status == ("pass" if comes_back else "not run")
    assert comes_back or "it does not come back: nobody answers" in again.reason
    assert ill.exit_code == (0 if comes_back else 4)


def test_one_that_cannot_be_opened_is_not_run(require_device: RequireDevice) -> None:
    device, *_ = require_device("opencl")
    well, dead = Column("well", Connecting(device, 1)), Column("dead", Connecting(device, 0))
    case = linear_case(OPERATOR, compile_reference([OPERATOR]))
    with (
        opened([well, dead]),
        Oracle({OPERATOR.name: OPERATOR}, compile_twins, Policy()) as oracle,
    ):
        matrix = Matrix([well, dead], oracle, Policy())
        row = matrix.operator(OPERATOR, [case], {"opencl": linear_library(OPERATOR)})
    assert (row.cells["well"].status, row.cells["dead"].status) == ("pass", "not run")
    assert row.cells["dead"].reason == "nobody answers there any more"
    assert not row.differences and row.status == "not run"
