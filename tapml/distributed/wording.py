"""How a result is said in a sentence."""

from __future__ import annotations

from tapml.distributed.results import Deviation


def sentence(first: Deviation, world: int) -> str:
    """The first wrong tensor in one sentence."""
    if len(first.ranks) == world:
        who = "on all ranks" if world > 1 else "on the only rank"
    else:
        who = f"on rank{'s' * (len(first.ranks) > 1)} {', '.join(map(str, first.ranks))}"
    step = f" in step {first.step}" if first.step > 1 else ""
    text = f"the first wrong tensor is the {first.words}{step}, {who}"
    if first.note:
        return f"{text}: {first.note}"
    ratio = "" if first.ratio is None else f", {first.ratio:.4g} times one device's"
    return f"{text}: off by {first.error:.2g} of its largest value{ratio}"
