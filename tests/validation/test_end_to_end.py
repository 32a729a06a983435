"""What the verdict on a complete module is measured in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tapml.importing.module import Module
from tapml.validation.end_to_end import narrowest_dtype
from tests.importing.modules import Apply


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: torch.sort(x.half())[0].float(), "float16"),
        # What only leaves the module is rounded behind all that is computed.
        (lambda x: torch.cumsum(x, 0).half(), "float32"),
    ],
)
def test_a_value_between_two_operators_bounds_the_precision(
    function: Callable[[Tensor], Tensor], expected: str
) -> None:
    assert narrowest_dtype(Module(Apply(function), inputs=[torch.ones(2, 3)])) == expected
