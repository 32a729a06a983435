"""How far quantization moved a model, apart from how far the target moved it.

The first is the reference's output with packed weights beside the same model's with float weights,
in PyTorch on the same tokens. It is reported and decides nothing: it was chosen with the scheme.
The second is the target beside the reference with the same codes, and decides the exit code.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tapml.models.loaded import LoadedModel
from tapml.runs.events import Note, Watcher
from tapml.verdicts.likelihood import Float64s, perplexity, surprise
from tapml.verdicts.modelwise import compare_logits, not_compared

if TYPE_CHECKING:
    from tapml.models.loaded import Loaded
    from tapml.runs.journal import Journal
    from tapml.workloads.trace import CaseTrace, ReferenceTrace


@dataclass(frozen=True)
class QuantizationError:
    """The packed model beside the float one, on the reference.

    Attributes
    ----------
    scheme
        Of the packed weights.
    positions
        Tokens compared; 0 if the float weights are not known.
    mean_kl, max_kl
        Divergence of the packed model's distribution from the float one's, in nats.
    top1
        Share of positions where both choose the same token.
    perplexity, float_perplexity
        On the prompts' tokens, with packed and with float weights; 0 if they have one token each.
    why
        Why nothing was compared.
    """

    scheme: str
    positions: int = 0
    mean_kl: float = 0.0
    max_kl: float = 0.0
    top1: float = 0.0
    perplexity: float = 0.0
    float_perplexity: float = 0.0
    why: str = ""

    @property
    def text(self) -> str:
        """A line about it."""
        if not self.positions:
            return f"{self.scheme}: not known, because {self.why}"
        perplexity = (
            f", perplexity {self.perplexity:.4g} where floats have {self.float_perplexity:.4g}"
            if self.perplexity
            else ""
        )
        return (
            f"{self.scheme}: KL {self.mean_kl:.3g} (at most {self.max_kl:.3g}) nats, the same "
            f"first token at {self.top1:.1%} of {self.positions} positions{perplexity}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the line."""
        return asdict(self) | {"text": self.text}


def quantization_error(model: Loaded, trace: ReferenceTrace) -> QuantizationError | None:
    """Compare the reference's run with the float model on the same tokens.

    Returns
    -------
    QuantizationError or None
        None if the model is not quantized.
    """
    if not model.quantization:
        return None
    if model.floats is None:
        why = "there are no float weights to compare with"
        return QuantizationError(model.quantization, why=why)
    if not isinstance(model, LoadedModel):
        return QuantizationError(model.quantization, why="it is measured for decoders alone")
    module = model.floats().module
    pairs = [(_float_logits(module, case), case) for case in trace.cases]
    largest = not_compared("").allowed
    verdicts = [compare_logits(plain, case.outputs, largest) for plain, case in pairs]
    counts = np.array([each.positions for each in verdicts])
    share = counts / counts.sum()
    packed = [surprise(case.outputs, case.case.token_ids[1:]) for case in trace.cases]
    plain = [surprise(logits, case.case.token_ids[1:]) for logits, case in pairs]
    return QuantizationError(
        model.quantization,
        positions=int(counts.sum()),
        mean_kl=float(np.dot(share, [each.mean_kl for each in verdicts])),
        max_kl=max(each.max_kl for each in verdicts),
        top1=float(np.dot(share, [each.top1_agreement for each in verdicts])),
        perplexity=perplexity(packed),
        float_perplexity=perplexity(plain),
    )


def record_quantization(
    model: Loaded, trace: ReferenceTrace, journal: Journal, watcher: Watcher
) -> None:
    """Measure it, say it, and write it to the journal for the report of this and later runs."""
    found = quantization_error(model, trace)
    if found is not None:
        watcher(Note(f"quantization error, {found.text}"))
        journal.append("quantization", **found.to_json())


def _float_logits(module: Any, case: CaseTrace) -> Float64s:
    """Logits ``[positions, vocabulary]`` of the tokens that the reference was given."""
    import torch

    tokens = [*case.case.token_ids, *case.choices[:-1]]
    with torch.no_grad():
        logits = module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    found: Float64s = logits.double().numpy()
    return found
