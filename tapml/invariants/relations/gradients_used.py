"""GradientsUsed: an optimizer uses the gradients that its parameters get before it clears them.

Where optimizers take turns, a loss goes through models of others: a GAN's critic gets gradients
from the generator's loss, and clears them. The generator gets none of the critic's, because what it
made was detached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tapml.invariants.record import UNUSED, ZERO_GRAD, Window
from tapml.invariants.relation import Example, Memory, Params, Relation

_SCALED: Final = "torch.amp.GradScaler.step"


class GradientsUsed(Relation):
    """One optimizer beside another one that never uses all; new beside the paper's relations."""

    name = "GradientsUsed"
    structural = True
    least = 3
    avoided = ("",)
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """Optimizers that use all, beside those that never do: this pattern is the program's."""
        seen: dict[str, set[bool]] = {}
        for window in windows:
            for place, unused in _cleared(window):
                seen.setdefault(place, set()).add(unused)
        left = [place for place, found in sorted(seen.items()) if found == {True}]
        if left:
            for place, found in sorted(seen.items()):
                if found == {False}:
                    yield {"api": ZERO_GRAD, "optimizer": place, "beside": left[0]}

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each clearing, once the other optimizer has cleared what it did not use."""
        # A step with infinite gradients is left out.
        if window.calls(_SCALED):
            return
        for record in window.calls(ZERO_GRAD):
            if UNUSED not in record.fields or record.parent >= 0:
                continue
            place, unused = str(record.fields["place"]), bool(record.fields[UNUSED])
            if place == params["beside"]:
                memory[record.rank] = unused
            elif place == params["optimizer"] and memory.get(record.rank):
                found = f"optimizer {place} cleared gradients that it had not used"
                yield Example(not unused, (record,), ZERO_GRAD, found)

    def sentence(self, params: Params) -> str:
        """The optimizer."""
        return (
            f"Optimizer {params['optimizer']} uses the gradients of its parameters before it "
            "clears them."
        )

    def concerns(self, params: Params) -> frozenset[str]:
        """The gradients."""
        return frozenset({"gradients of another loss"})


def _cleared(window: Window) -> Iterator[tuple[str, bool]]:
    for record in window.calls(ZERO_GRAD):
        if UNUSED in record.fields and record.parent < 0:
            yield str(record.fields["place"]), bool(record.fields[UNUSED])


RELATION = GradientsUsed()
