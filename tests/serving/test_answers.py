"""A stop text never shows, not even its beginning, however the pieces are cut."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml.serving.answers import StopText, _Probable

LETTERS = st.text("ab", max_size=12)


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(LETTERS, max_size=6), stops=st.lists(st.text("ab", min_size=1), max_size=3))
def test_the_text_is_cut_at_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    stop = StopText(stops)
    shown = ""
    given_so_far = ""
    for piece in pieces:
        given_so_far += piece
        shown += stop.push(piece)
        if stop.reached:
            break
    if not stop.reached:
        shown += stop.finish()
    places = [given_so_far.find(each) for each in stops if each in given_so_far]
    assert stop.reached == bool(places)
    assert shown == (given_so_far[: min(places)] if places else given_so_far)


def test_a_token_that_cannot_come_has_a_number_that_json_has() -> None:
    logits = np.array([-np.inf, 1.0, 1.0], np.float32)
    told = _Probable.of(1, logits, 3)
    assert [token for token, _ in told.best] == [1, 2, 0]
    assert told.best[-1][1] == -9999.0
    json.dumps([told.logarithm, told.best], allow_nan=False)
    json.dumps(_Probable.of(0, logits * np.float32(np.nan), 3).best, allow_nan=False)
