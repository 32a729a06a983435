"""What came of the whole model on the target alone, new or as the journal has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tapml.compare.modelwise import LogitVerdict
from tapml.compare.verdict import Status


@dataclass(frozen=True)
class PromptResult:
    """What the target wrote for one prompt, and how it compares with the reference."""

    prompt: str
    text: str
    tokens: tuple[int, ...]
    verdict: str
    equal: bool


@dataclass(frozen=True)
class FinalRun:
    """The whole model on the target alone.

    Attributes
    ----------
    status
        The model-wise verdict: free-running tokens are reported and decide nothing.
    headline
        How it went, in half a line.
    data
        All of it, as JSON data.
    """

    status: Status
    headline: str
    data: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, logits: LogitVerdict, prompts: Sequence[PromptResult]) -> FinalRun:
        """A run that was made just now, or one that could not be."""
        headline = text = logits.reason
        if logits.status != "not run":
            equal = sum(each.equal for each in prompts)
            tokens = f"tokens equal the reference's for {equal} of {len(prompts)} prompts"
            headline = f"logits {logits.status}, {tokens}"
            text = f"{headline}: {logits.reason}"
        data = {
            "status": logits.status,
            "headline": headline,
            "text": text,
            "logits": logits.to_json(),
            "prompts": [vars(each) | {"tokens": list(each.tokens)} for each in prompts],
        }
        return cls(logits.status, headline, data)

    @classmethod
    def reused(cls, data: Mapping[str, Any]) -> FinalRun:
        """A run that passed, from the journal; `data` is :meth:`to_json`'s."""
        return cls("pass", str(data["headline"]), {**data, "reused": True})

    @property
    def text(self) -> str:
        """How it went, with the numbers behind it."""
        return str(self.data["text"])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(self.data)
