"""GradientsClipped: what is clipped has gradients; those of another model have none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tapml.invariants.record import CLIPS, Window
from tapml.invariants.relation import Example, Memory, Params, Relation, short_name


class GradientsClipped(Relation):
    """The parameters that clipping is given; new beside the paper's relations."""

    name = "GradientsClipped"
    structural = True
    avoided = ("arg.", "result", "gradients")
    apis = ("api",)

    def hypotheses(self, windows: Sequence[Window]) -> Iterable[Params]:
        """One rule for each kind of clipping."""
        return [{"api": api} for api in CLIPS if any(window.calls(api) for window in windows)]

    def examples(self, window: Window, params: Params, memory: Memory) -> Iterator[Example]:
        """Each call."""
        for call in window.calls(params["api"]):
            found = "no parameter that it got has a gradient"
            yield Example(bool(call.fields.get("gradients")), (call,), call.name, found)

    def sentence(self, params: Params) -> str:
        """The rule."""
        return f"{short_name(params['api'])} is given parameters with gradients."

    def concerns(self, params: Params) -> frozenset[str]:
        """The API."""
        return frozenset({params["api"]})


RELATION = GradientsClipped()
