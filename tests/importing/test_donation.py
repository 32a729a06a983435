"""State is written in place only where that changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tapml.importing.exporting import EntryDescription
from tapml.importing.importer import import_entries
from tests.importing.modules import Apply


class Two(Apply):
    """A function of a state tensor and an input."""

    def forward(self, state: Any, operand: Any) -> Any:  # type: ignore[override]
        """Apply the function."""
        return self.function(state, operand)


def donated(function: Callable[..., Any]) -> bool:
    """Whether the update of a state tensor, the last result of `function`, may be in place."""
    count = len(function(torch.ones(4, 4), torch.ones(4, 4)))
    description = EntryDescription(
        name="step",
        module=Two(function),
        example_inputs=(torch.rand(4, 4), torch.rand(4, 4)),
        input_names=("total", "operand"),
        state=(("total", 0, count - 1),),
    )
    (entry,) = import_entries("model", [description]).plan.entries.values()
    assert [binding.state for binding in entry.state] == ["total"]
    return any(call.donates for call in entry.calls)


def test_an_elementwise_update_may_be_in_place() -> None:
    assert donated(lambda state, x: (torch.where(x > 0, x, state),))
    assert donated(lambda state, x: (torch.sigmoid(x) * 2 + state,))


@pytest.mark.parametrize(
    "function",
    [
        lambda state, x: (state.T + x,),
        lambda state, x: (state[:1] + x,),
        lambda state, x: (state @ x,),
        lambda state, x: (torch.softmax(state, -1) + x,),
    ],
    ids=["transposed", "broadcast", "product", "softmax"],
)
def test_an_update_that_reads_other_elements_may_not(function: Callable[..., Any]) -> None:
    assert not donated(function)


def test_state_that_is_read_afterwards_is_kept() -> None:
    def function(state: Any, x: Any) -> Any:
        after = state + x
        return (after @ state, after)

    assert not donated(function)


def test_state_that_is_returned_is_kept() -> None:
    assert not donated(lambda state, x: (state.reshape(16), state + x))
