"""A decoder on a device beside the reference, over a text: perplexity, divergence, first parting.

The text is cut into windows of the model's context. Both sides are given the same tokens: all but
a window's last ones through prefill, these through decode, so that both entries are judged. The
logits of one window are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tapml.compiler.link import link_entries
from tapml.durable.strict_json import to_strict
from tapml.execute.device_reference import executor_on
from tapml.execute.plan_runner import PlanRunner
from tapml.matrix.compiling import common_limits, compile_for_all, written_for
from tapml.matrix.implementation import Column
from tapml.models.prompts import Prompt
from tapml.offload.reference_device import opened_reference
from tapml.offload.rooted_reference import open_rooted_reference
from tapml.runs.phases import Phases
from tapml.session.settings import Settings
from tapml.verdicts.likelihood import Float64s, perplexity, surprise
from tapml.verdicts.modelwise import (
    AllowedLogitError,
    LogitVerdict,
    allowed_logit_error,
    compare_logits,
    gravest,
)
from tapml.verdicts.verdict import Status
from tapml.workloads import workload_of
from tapml.workloads.decoder import DecoderWorkload
from tapml_targets.errors import EXIT_MISMATCH, InputError, NoSuchDeviceError
from tapml_targets.library import Library

if TYPE_CHECKING:
    from tapml.compiler.compiler import Compiler
    from tapml.models.text import Codec

MAX_TEXT_BYTES: Final = 64 << 20
# Of each window, through decode: a step costs as much as a whole prefill of a small model.
_DECODED: Final = 8
_SHOWN_TOKENS: Final = 12


@dataclass(frozen=True)
class TextParting:
    """The first position where another token wins on the target.

    Attributes
    ----------
    position
        Number of the token in the text, from 0, behind which the two differ.
    reference_token, target_token
        What each side would write there.
    margin
        By how much the reference prefers its own, in logits.
    allowed
        The largest logit error that passes there: a margin up to twice this decides nothing.
    before
        The text up to there, its last tokens.
    """

    position: int
    reference_token: int
    target_token: int
    margin: float
    allowed: float
    before: str


@dataclass(frozen=True)
class TextReport:
    """A target beside the reference on one text.

    Attributes
    ----------
    status, reason
        Of the gravest window.
    tokens, windows, decoded
        Tokens of the text, windows they were cut into, and how many went through decode.
    reference_perplexity, perplexity
        Of each token given those before it in its window.
    mean_kl, max_kl
        Divergence of the target's distributions from the reference's, in nats.
    top1
        Share of positions where both prefer the same token.
    top1_right, reference_top1_right
        Share of tokens that the side would have written itself.
    max_absolute
        Largest difference of two logits.
    parting
        The first one; None if the same token wins everywhere.
    """

    status: Status
    reason: str
    model: str
    device: str
    reference: str
    tokens: int
    windows: int
    decoded: int
    reference_perplexity: float
    perplexity: float
    mean_kl: float
    max_kl: float
    top1: float
    top1_right: float
    reference_top1_right: float
    max_absolute: float
    parting: TextParting | None

    @property
    def exit_code(self) -> int:
        """0 for a pass, else 1."""
        return 0 if self.status == "pass" else EXIT_MISMATCH

    def to_json(self) -> dict[str, Any]:
        """Plain data; NaN and Inf become text."""
        plain: dict[str, Any] = to_strict(asdict(self))
        return plain

    def lines(self) -> Iterator[str]:
        """What people read."""
        yield (
            f"{self.status}: {self.model} on {self.device} beside {self.reference}: {self.reason}"
        )
        yield (
            f"text: {self.tokens} tokens in {self.windows} windows, {self.decoded} of them through "
            "decode"
        )
        yield (
            f"perplexity {self.perplexity:.6g}, the reference's {self.reference_perplexity:.6g}; "
            f"right tokens {self.top1_right:.2%}, the reference's {self.reference_top1_right:.2%}"
        )
        yield (
            f"KL {self.mean_kl:.3g} (at most {self.max_kl:.3g}) nats; the same first token at "
            f"{self.top1:.2%} of positions"
        )
        if self.parting is None:
            yield "first parting: none"
            return
        found = self.parting
        yield (
            f"first parting: behind token {found.position}, {found.before!r}: "
            f"{found.reference_token} on the reference, {found.target_token} on the target; the "
            f"reference's margin is {found.margin:.3g} logits, and up to {2 * found.allowed:.3g} "
            "decide nothing"
        )


def read_text(path: Path) -> str:
    """The text of a file.

    Raises
    ------
    InputError
        If it cannot be read, is larger than 64 MiB, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise InputError(f"--text {path}: {error.strerror}; give a file of text") from error
    if len(content) > MAX_TEXT_BYTES:
        raise InputError(f"--text {path}: expected at most {MAX_TEXT_BYTES >> 20} MiB; cut it")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"--text {path}: byte {error.start} is not UTF-8; give a file of text in UTF-8"
        ) from error


def validate_text(
    text: str,
    settings: Settings,
    column: Column,
    compiler: Compiler,
    phases: Phases,
    *,
    kernels: Sequence[Path] = (),
    most_tokens: int | None = None,
) -> TextReport:
    """Run a decoder over a text on a device and on the reference.

    Parameters
    ----------
    text
        Any text of two tokens or more.
    settings
        The model and its reference; its prompts only root it.
    column
        The open device.
    kernels
        Folders of hand-written kernels, which replace compiled ones.
    most_tokens
        The text is cut behind this many.

    Raises
    ------
    InputError
        If the model is no decoder, has no tokenizer, or the text has fewer than two tokens.
    CompileError
        If an operator has no kernel for the device.
    """
    session = column.session
    if session is None:
        raise NoSuchDeviceError(f"{column.label} is not open: {column.problem}")
    with opened_reference(settings, phases) as on:
        rooted = open_rooted_reference(
            settings,
            phases,
            limits=common_limits([column.limits]) if settings.dtype == "auto" else None,
            on=on,
        )
        model, plan, weights = rooted.model, rooted.imported.plan, rooted.imported.weights
        workload = workload_of(model)
        if not isinstance(workload, DecoderWorkload):
            raise InputError(f"--text: {model.name} is no decoder of text; use --input or --prompt")
        codec: Codec | None = model.tokenizer
        if codec is None:
            raise InputError(f"--text: {model.name} has no tokenizer; use --tokens without --text")
        tokens = codec.encode(text)[:most_tokens]
        if len(tokens) < 2:
            raise InputError(
                f"--text: expected at least two tokens, got {len(tokens)}; give a longer text"
            )
        with phases.phase("compile kernels", platform=column.platform) as phase:
            written = written_for(kernels, [column])
            compiled = compile_for_all(compiler, list(plan.operators.values()), [column], written)
            libraries: dict[str, Library] = {}
            for name, each in compiled[column.platform].items():
                if not isinstance(each, Library):
                    raise each
                libraries[name] = each
            phase.detail = f"{len(libraries)} operators"
        executor = executor_on(plan, weights, rooted.reference)
        program = link_entries(plan, libraries)
        totals = TextTotals(tokens, codec)
        with (
            phases.phase("run the text", platform=column.label) as phase,
            PlanRunner(plan, weights, program, session) as runner,
        ):
            starts = range(0, len(tokens), model.context_length)
            for number, start in enumerate(starts, 1):
                window = tokens[start : start + model.context_length]
                decoded = min(_DECODED, len(window) - 1)
                kept = len(window) - decoded
                # The last choice is never fed back.
                given = Prompt(window[:kept]), (*window[kept:], 0)
                want = workload.forced_logits(executor, *given)
                got = workload.forced_logits(runner, *given)
                allowed = allowed_logit_error(model.dtype, want, rooted.logit_deviation)
                totals.add(start, decoded, want, got, allowed)
                phase.progress(number, len(starts))
            phase.detail = f"{len(tokens)} tokens"
    reference = "the processor" if on is None else f"{on.device.platform}, {on.device.name}"
    return totals.report(model.name, column.label, reference)


class TextTotals:
    """Sums over the windows."""

    def __init__(self, tokens: Sequence[int], codec: Codec) -> None:
        self._tokens, self._codec = tokens, codec
        self._verdicts: list[LogitVerdict] = []
        self._surprises: tuple[list[Float64s], list[Float64s]] = [], []
        self._right = [0, 0]
        self._decoded = 0
        self._parting: TextParting | None = None

    def add(
        self, start: int, decoded: int, want: Any, got: Any, allowed: AllowedLogitError
    ) -> None:
        """Take a window's logits ``[positions, vocabulary]`` of the reference and of the target."""
        verdict = compare_logits(want, got, allowed)
        self._verdicts.append(verdict)
        self._decoded += decoded
        following = self._tokens[start + 1 : start + len(want) + 1]
        winners = want.argmax(axis=1), got.argmax(axis=1)
        for side, (logits, chosen) in enumerate(zip((want, got), winners, strict=True)):
            self._surprises[side].append(surprise(logits, following))
            self._right[side] += int((chosen[: len(following)] == np.array(following)).sum())
        differing = np.flatnonzero(winners[0] != winners[1])
        if self._parting is None and differing.size:
            row = int(differing[0])
            ours, theirs = int(winners[0][row]), int(winners[1][row])
            end = start + row + 1
            self._parting = TextParting(
                position=end - 1,
                reference_token=ours,
                target_token=theirs,
                margin=float(want[row, ours]) - float(want[row, theirs]),
                allowed=allowed.value,
                before=self._codec.decode(self._tokens[max(0, end - _SHOWN_TOKENS) : end]),
            )

    def report(self, model: str, device: str, reference: str) -> TextReport:
        """What was found over all windows."""
        worst = gravest(self._verdicts)
        counts = np.array([each.positions for each in self._verdicts])
        share = counts / counts.sum()
        predicted = len(self._tokens) - 1
        return TextReport(
            status=worst.status,
            reason=worst.reason,
            model=model,
            device=device,
            reference=reference,
            tokens=len(self._tokens),
            windows=len(self._verdicts),
            decoded=self._decoded,
            reference_perplexity=perplexity(self._surprises[0]),
            perplexity=perplexity(self._surprises[1]),
            mean_kl=float(np.dot(share, [each.mean_kl for each in self._verdicts])),
            max_kl=max(each.max_kl for each in self._verdicts),
            top1=float(np.dot(share, [each.top1_agreement for each in self._verdicts])),
            top1_right=self._right[1] / predicted,
            reference_top1_right=self._right[0] / predicted,
            max_absolute=max(each.max_absolute for each in self._verdicts),
            parting=self._parting,
        )
