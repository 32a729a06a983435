"""A stop text never shows, not even its beginning, however the pieces are cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tapml.serving.answers import StopText

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
