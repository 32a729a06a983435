"""How large the integers of a launch can become."""

from __future__ import annotations

from tapml_targets.codegen.symbol_bounds import MOST_BYTES, launch_ranges
from tapml_targets.library import Launch, OperatorProgram, Parameter, ScalarArgument


def program(*shape: object) -> OperatorProgram:
    """One kernel over rows of a tensor, with `n` passed beside it."""
    launch = Launch("kernel", (ScalarArgument("n", "int32"),), grid=(("mul", 2, "n"), 1, 1))
    tensor = Parameter("x", shape, "float32", "input")  # type: ignore[arg-type]
    return OperatorProgram("rows", (tensor,), (launch,), symbols=("n",))


def test_a_symbol_that_a_shape_multiplies_is_bounded_by_what_is_bound() -> None:
    found = launch_ranges(program(("mul", 2, "n"), 96), MOST_BYTES)["kernel"]
    most = MOST_BYTES // (4 * 2 * 96)
    assert found.scalars == ((0, most),)
    assert found.grid[0] == 2 * most


def test_a_symbol_that_no_shape_has_may_be_any_number_of_32_bits() -> None:
    assert launch_ranges(program(96), MOST_BYTES)["kernel"].scalars == (
        (-(1 << 31), (1 << 31) - 1),
    )
