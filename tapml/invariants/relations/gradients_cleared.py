"""GradientsCleared: of several optimizers, each has its gradients cleared between its steps.

Where one is cleared and another is not, the calls of the loop look right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import CARRIED, STEP, Record, Window
from tapml.invariants.relation import Example, Memory, Params, Relation


class GradientsCleared(Relation):
    """One of several optimizers; new beside the paper's relations."""

    name = "GradientsCleared"
    structural = True
    own = True
    least = 3
    avoided = ("",)
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Those of several optimizers that never have gradients of a step before."""
        seen: dict[str, set[bool]] = {}
        for window in windows:
            for record, place in _steps(window):
                seen.setdefault(place, set()).add(bool(record.fields[CARRIED]))
        if len(seen) > 1:
            for place, found in sorted(seen.items()):
                if found == {False}:
                    yield {"api": STEP, "optimizer": place}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each step of the optimizer but its first."""
        for record, place in _steps(window):
            if place == params["optimizer"]:
                found = f"the gradients of optimizer {place} were not cleared since its last step"
                yield Example(not record.fields[CARRIED], (record,), STEP, found)

    def sentence(self, params: Params) -> str:
        """The optimizer."""
        return f"Gradients of optimizer {params['optimizer']} are cleared between its steps."

    def concerns(self, params: Params) -> frozenset[str]:
        """The gradients."""
        return frozenset({f"gradients of optimizer {params['optimizer']}"})


def _steps(window: Window) -> Iterator[tuple[Record, str]]:
    for record in window.calls(STEP):
        if CARRIED in record.fields:
            yield record, str(record.fields["optimizer"])


RELATION = GradientsCleared()
