"""Special functions have PyTorch's values, at their poles and in their tails, too."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tapml.importing.special_functions import special_functions
from tapml_targets.errors import UnsupportedOperatorError

_aten = torch.ops.aten
ODD = [0.0, -0.0, math.inf, -math.inf, math.nan, -1.0, -2.0, 1.0, 2.0, -0.5]
EVERYWHERE = torch.cat([torch.linspace(-7.3, 30, 1500), torch.tensor(ODD)])
SHARES = torch.cat([torch.linspace(0, 1, 500), torch.logspace(-37, -1, 100)])


def cases() -> list[tuple[Callable[..., Tensor], tuple[int, ...], Tensor]]:
    """Operations, their orders, and what they are of."""
    return [
        (_aten.lgamma.default, (), EVERYWHERE),
        (_aten.digamma.default, (), EVERYWHERE),
        (_aten.polygamma.default, (1,), torch.cat([EVERYWHERE[:1500], EVERYWHERE.abs()])),
        (_aten.polygamma.default, (2,), EVERYWHERE[:1500]),
        (_aten.polygamma.default, (3,), EVERYWHERE[:1500]),
        (_aten.polygamma.default, (5,), EVERYWHERE[:1500]),
        (_aten.erfc.default, (), EVERYWHERE.clamp(-9, 9)),
        (_aten.special_erfcx.default, (), EVERYWHERE.clamp(-5)),
        (_aten.erfinv.default, (), torch.cat([2 * SHARES - 1, torch.tensor([-2.0, math.nan])])),
        (_aten.special_ndtri.default, (), SHARES),
        (_aten.i0.default, (), EVERYWHERE),
        (_aten.special_i0e.default, (), EVERYWHERE),
        (_aten.special_i1.default, (), EVERYWHERE),
        (_aten.special_i1e.default, (), EVERYWHERE),
        (_aten.angle.default, (), EVERYWHERE),
    ]


@pytest.mark.parametrize("case", cases(), ids=lambda case: str(case[0]))
def test_the_values_are_those_of_pytorch(
    case: tuple[Callable[..., Tensor], tuple[int, ...], Tensor],
) -> None:
    operation, arguments, operands = case
    found = special_functions()[operation](*arguments, operands)

    wanted = operation(*arguments, operands.double())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted.float(), rtol=3e-6, atol=3e-6, equal_nan=True)


def test_a_logarithm_of_gamma_has_its_digits_beside_its_zeros() -> None:
    steps = torch.logspace(-6, -1, 50)
    operands = torch.cat([1 + steps, 1 - steps, 2 + steps, 2 - steps])

    found = special_functions()[_aten.lgamma.default](operands)

    torch.testing.assert_close(found, operands.double().lgamma().float(), rtol=2e-6, atol=0)


def test_the_tail_of_doubles_is_as_precise_as_float32() -> None:
    shares = 10 ** torch.linspace(-306, -1, 200, dtype=torch.float64)

    found = special_functions()[_aten.special_ndtri.default](shares)

    torch.testing.assert_close(found, torch.special.ndtri(shares), rtol=1e-7, atol=0)


def test_incomplete_gamma_functions_are_pytorchs_at_every_order() -> None:
    orders = torch.cat([torch.logspace(-2, 3, 60), torch.tensor(ODD)])[:, None]
    operands = torch.cat([torch.logspace(-3, 3.2, 400), torch.tensor(ODD)])[None]
    for ours, own in (
        (_aten.special_gammainc.default, torch.special.gammainc),
        (_aten.special_gammaincc.default, torch.special.gammaincc),
    ):
        wanted = own(orders.double(), operands.double()).float()
        found = special_functions()[ours](orders, operands)
        torch.testing.assert_close(found, wanted, rtol=0, atol=4e-6, equal_nan=True)


def test_zeta_is_pytorchs() -> None:
    powers = torch.tensor([-1.0, 0.5, 1.0, 1.0001, 1.5, 2, 3, 7.3, 20, 40])[:, None]
    operands = torch.tensor([-11.3, -5.5, -3, -0.5, 0, 0.1, 0.5, 1, 2, 7.7, 30, 200])[None]
    wanted = torch.special.zeta(powers.double(), operands.double()).float()
    found = special_functions()[_aten.special_zeta.default](powers, operands)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-38, equal_nan=True)


def test_a_zeta_of_a_high_power_is_its_first_terms() -> None:
    powers = torch.tensor([50.0, 1e4, 1e5, 1e10, math.inf])
    found = special_functions()[_aten.special_zeta.other_scalar](powers, 1.0)
    torch.testing.assert_close(found, torch.ones(5))
    found = special_functions()[_aten.special_zeta.other_scalar](powers[:4], 2.0)
    torch.testing.assert_close(found, powers[:4].neg().exp2())


def test_a_high_order_is_refused_by_its_number() -> None:
    with pytest.raises(UnsupportedOperatorError, match="order 9 is not imported: orders go to 6"):
        special_functions()[_aten.polygamma.default](9, EVERYWHERE)
