"""The result of the complete model on the target, new or from the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tapml.verdicts.modelwise import WholeVerdict
from tapml.verdicts.verdict import Status
from tapml.workloads.trace import CaseResult


@dataclass(frozen=True)
class FinalRun:
    """The complete model on the target.

    Attributes
    ----------
    status
        The model-wise verdict. Results of free runs are reported, but do not affect it.
    headline
        A summary in half a line.
    data
        The complete result as JSON data.
    """

    status: Status
    headline: str
    data: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(
        cls,
        whole: WholeVerdict,
        results: Sequence[CaseResult],
        *,
        subject: str = "",
        agreement: str = "",
        argument: str = "",
    ) -> FinalRun:
        """A new run, or one that was not possible.

        Parameters
        ----------
        whole, results
            The verdict, and what the target gave for each case on its own.
        subject, agreement
            What was compared, and how many results are equal, for people.
        argument
            What ``tapml run`` takes, if it is no prompt.
        """
        headline = text = whole.reason
        if whole.status != "not run":
            headline = f"{subject} {whole.status}, {agreement}"
            text = f"{headline}: {whole.reason}"
        data = {
            "status": whole.status,
            "headline": headline,
            "text": text,
            "logits": whole.to_json(),
            "prompts": [vars(each) | {"tokens": list(each.tokens)} for each in results],
            "argument": argument,
        }
        return cls(whole.status, headline, data)

    @classmethod
    def reused(cls, data: Mapping[str, Any]) -> FinalRun:
        """A run that passed, from the journal; `data` is :meth:`to_json`'s."""
        return cls("pass", str(data["headline"]), {**data, "reused": True})

    @property
    def text(self) -> str:
        """A summary with numbers."""
        return str(self.data["text"])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(self.data)
