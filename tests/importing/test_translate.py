"""What cannot be imported is named before the import starts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tapml.importing.importer import import_module
from tapml_targets.errors import UnsupportedOperatorError


class Strange(nn.Module):
    """Uses two operations that no converter knows."""

    def forward(self, operand: Tensor) -> Tensor:
        """Apply them."""
        result: Tensor = torch.special.bessel_j0(operand)
        result += torch.special.bessel_j1(operand)
        return result


class Outer(nn.Module):
    """Holds the strange module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Strange()

    def forward(self, operand: Tensor) -> Tensor:
        """Call it."""
        return torch.relu(self.inner(operand))


class Counter(nn.Module):
    """Changes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))

    def forward(self, operand: Tensor) -> Tensor:
        """Count."""
        count = self.get_buffer("count")
        count.add_(1)
        return operand + count


def test_all_unknown_operators_are_named_with_module_and_line() -> None:
    with pytest.raises(UnsupportedOperatorError) as caught:
        import_module(Outer(), (torch.rand(5),))
    message = str(caught.value)
    assert "2 operators" in message
    line = Strange.forward.__code__.co_firstlineno
    place = f"tests/importing/test_translate.py:{line + 2}"
    assert f"aten.special_bessel_j0.default in inner ({place})" in message
    assert "aten.special_bessel_j1.default in inner" in message
    assert "relu" not in message


def test_a_buffer_changed_in_place_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"count is modified in place at .*\.py:\d+"):
        import_module(Counter(), (torch.rand(2),))


def test_an_input_changed_in_place_is_refused() -> None:
    class Writes(nn.Module):
        def forward(self, operand: Tensor) -> Tensor:
            return operand.mul_(2)

    with pytest.raises(UnsupportedOperatorError, match="operand is modified in place"):
        import_module(Writes(), (torch.rand(2),))
