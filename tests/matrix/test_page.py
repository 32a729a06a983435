"""What a matrix shows as a page and in a terminal: texts as they are, sides that were compared."""

from __future__ import annotations

import re
from dataclasses import replace

from tapml.matrix.finding import Difference, Reading
from tapml.matrix.implementation import Implementation
from tapml.matrix.page import render
from tapml.matrix.report import Cell, MatrixReport, Row
from tapml.verdicts.verdict import Cause

HOSTILE = "\"><script>alert('1')</script><b onclick=x>&"


def difference(platform: str, *labels: str, text: str = "") -> Difference:
    """Each of these differs from the others."""
    readings = tuple(
        Reading(label, text, float("nan"), float("inf"), "fail", text, place)
        for place, label in enumerate(labels)
    )
    return Difference(
        operator=f"sum{text}", kernels=(f"k{text}",), platform=platform, kind="values",
        test=f"t{text}", tests=1, output=f"o{text}", index=(0,), elements=1, expected=float("nan"),
        distance=float("inf"), limit=1.0, unit=1.0, readings=readings, suspects=labels[:1],
        explanations=(text,),
    )  # fmt: skip


def report(platforms: dict[str, str], *differences: Difference, text: str = "") -> MatrixReport:
    """One row, on an implementation of each label."""
    cells = {label: Cell("fail", float("inf"), 1, text, Cause.INF) for label in platforms}
    return MatrixReport(
        title=f"m{text}",
        reference="cpu",
        implementations=tuple(
            Implementation(label, platform, name=text, problem=text)
            for label, platform in platforms.items()
        ),
        rows=(Row(f"sum{text}", (), cells, differences),),
    )


def test_no_text_of_a_model_or_a_device_becomes_markup() -> None:
    label = f"tracker:{HOSTILE}"
    found = difference("webgpu", label, "b", text=HOSTILE)
    matrix = report({label: "webgpu", "b": "webgpu"}, found, text=HOSTILE)
    whole = replace(matrix, end_to_end=matrix.rows[0])
    page = render(whole.to_json())
    assert not re.search(r"<script|<b onclick|=\"\">", page)
    assert page.count("alert(&#x27;1&#x27;)") > 10


def test_no_text_of_a_device_reaches_a_terminal_as_a_command() -> None:
    text = "\x1b]0;mine\x07\x9b2J"
    found = difference("webgpu", "a", "b", text=text)
    shown = str(report({"a": "webgpu", "b": "webgpu"}, found, text=text))
    assert "?]0;mine??2J" in shown
    assert all(each.isprintable() or each == "\n" for each in shown)


def test_sides_of_two_platforms_have_no_letter_in_common() -> None:
    """Nobody has compared them."""
    platforms = {"w0": "webgpu", "w1": "webgpu", "o0": "opencl", "o1": "opencl"}
    found = (difference("webgpu", "w0", "w1"), difference("opencl", "o0", "o1"))
    page = render(report(platforms, *found).to_json())
    assert re.findall(r'class="side">(\w)<', page) == ["A", "B", "C", "D"]


def test_devices_of_different_platforms_are_not_said_to_agree() -> None:
    assert "nothing to compare: each has" in report({"a": "cpu", "b": "webgpu"}).headline
    assert "fewer than two" in report({"a": "cpu", "b": ""}).headline
    assert "no two implementations differ" in report({"a": "cpu", "b": "cpu"}).headline
