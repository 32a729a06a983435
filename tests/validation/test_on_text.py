"""A target beside the reference over a text: numbers from logits that are known."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

from tapml.execute.arrays import Array
from tapml.models.text import Codec
from tapml.validation.on_text import TextReport, TextTotals, read_text
from tapml.verdicts.modelwise import AllowedLogitError
from tapml_targets.errors import InputError

TOKENS = (3, 1, 4, 1, 5, 0, 2)
ALLOWED = AllowedLogitError(0.25, 0.25, 0.0)


class Numbers(Codec):
    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        return tuple(map(int, text.split()))

    def decode(self, token_ids: Iterable[int]) -> str:
        return " ".join(map(str, token_ids))


def logits() -> Array:
    return np.random.default_rng(8).normal(size=(len(TOKENS), 6)).astype(np.float32)


def in_windows(want: Array, got: Array, cut: int) -> TextReport:
    totals = TextTotals(TOKENS, Numbers())
    totals.add(0, 2, want[:cut], got[:cut], ALLOWED)
    totals.add(cut, 1, want[cut:], got[cut:], ALLOWED)
    return totals.report("model", "opencl", "the processor")


def test_perplexity_is_that_of_every_token_but_the_first_also_across_windows() -> None:
    want = logits()
    report = in_windows(want, want, 4)
    likely = log_softmax(want.astype(np.float64), axis=1)[np.arange(6), TOKENS[1:]]
    np.testing.assert_allclose(report.reference_perplexity, np.exp(-likely.mean()))
    assert report.perplexity == report.reference_perplexity
    assert (report.status, report.exit_code, report.parting) == ("pass", 0, None)
    assert (report.tokens, report.windows, report.decoded) == (7, 2, 3)
    assert report.top1_right == np.mean(want[:6].argmax(axis=1) == np.array(TOKENS[1:]))


def test_the_first_parting_has_its_place_in_the_text_and_the_references_margin() -> None:
    want = logits()
    got = want.copy()
    first, second = np.argsort(want[5])[::-1][:2]
    got[5, second] = want[5, first] + 0.5
    report = in_windows(want, got, 4)
    assert report.parting is not None
    assert report.parting.position == 5
    assert report.parting.before == "3 1 4 1 5 0"
    assert (report.parting.reference_token, report.parting.target_token) == (first, second)
    np.testing.assert_allclose(report.parting.margin, want[5, first] - want[5, second])
    assert report.top1 == pytest.approx(6 / 7)
    assert (report.status, report.exit_code) == ("degraded", 1)
    assert any("behind token 5, '3 1 4 1 5 0'" in line for line in report.lines())


def test_what_is_no_number_is_in_the_json_as_text() -> None:
    want = logits()
    got = want.copy()
    got[2] = np.nan
    found = in_windows(want, got, 4).to_json()
    assert found["status"] == "fail"
    assert isinstance(found["max_kl"], str)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_text(tmp_path / "missing.txt")
    with pytest.raises(InputError, match="Is a directory"):
        read_text(tmp_path)
    (tmp_path / "picture").write_bytes(b"ab\xff")
    with pytest.raises(InputError, match="byte 2 is not UTF-8"):
        read_text(tmp_path / "picture")
