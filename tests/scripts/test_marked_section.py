"""A part of a page that a script writes again."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.marked_section import put_between, write_between


def test_a_text_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- a -->\nold\n<!-- b -->\nbelow\n")
    for text in ("one\n", "two"):
        write_between(page, "<!-- a -->", "<!-- b -->", text)
        written = page.read_text()
        assert written == f"above\n<!-- a -->\n\n{text.strip()}\n\n<!-- b -->\nbelow\n"


@pytest.mark.parametrize("page", ["no marks", "begin", "end and begin"])
def test_a_page_without_both_marks_in_order_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="no line 'begin' with 'end' below it"):
        put_between(page, "begin", "end", "text")
