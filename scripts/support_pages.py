"""The support matrix as Markdown, JSON and a page, and the cells of an earlier JSON file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from tapml.durable.strict_json import to_strict
from tapml.report.html import Section, render_sections
from tapml_targets.errors import InputError

Support: TypeAlias = Literal["pass", "simulated", "degraded", "fail", "refused by limit", "not run"]

FORMAT: Final = "tapml-support/1"
DTYPES: Final = ("float32", "float16")
SHAPES: Final = ("static", "dynamic")
LETTERS: Final[dict[Support, str]] = {
    "pass": "p",
    "simulated": "s",
    "degraded": "d",
    "fail": "F",
    "refused by limit": "r",
    "not run": "-",
}
"""Mildest first."""
_CHIPS: Final[dict[Support, str]] = {
    "simulated": "pass",
    "refused by limit": "absent",
    "not run": "absent",
}


@dataclass(frozen=True)
class Outcome:
    """A cell: what came of a case on a device, why, and the worst error over its unit.

    `made` is the day, and `version` the hash of the importer, code generator, oracle, operators and
    compilers that made it; both are empty in files of before they were noted.
    """

    support: Support
    reason: str = ""
    worst_ratio: float = 0.0
    made: str = ""
    version: str = ""


Table: TypeAlias = dict[tuple[str, str, str, str], Outcome]
"""By operator, dtype, shapes and device."""
_ABSENT: Final = Outcome("not run", "not asked for")


@dataclass(frozen=True)
class Shown:
    """A device as the matrix names it: a column."""

    device: str
    name: str
    driver: str
    type: str


class _Cell(msgspec.Struct, frozen=True):
    operator: str
    dtype: str
    shapes: str
    device: str
    support: Support
    worst_ratio: float | str | None = 0.0
    reason: str = ""
    made: str = ""
    version: str = ""


class _File(msgspec.Struct, frozen=True):
    format: str
    made: str
    operators: list[str]
    devices: list[Shown]
    cells: list[_Cell]


def read_matrix(file: Path) -> tuple[Table, list[str], list[Shown]]:
    """The cells, operators and devices of a file that :func:`to_json` wrote.

    Raises
    ------
    InputError
        If there is no such file, or it is not one of those.
    """
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{file}: expected a matrix that --json wrote: {error}") from None
    if found.format != FORMAT:
        raise InputError(f"{file}: expected the format {FORMAT}, found {found.format!r}")
    day = found.made.partition("T")[0]
    table = {
        (each.operator, each.dtype, each.shapes, each.device): Outcome(
            each.support, each.reason, float(each.worst_ratio or 0), each.made or day, each.version
        )
        for each in found.cells
    }
    return table, found.operators, found.devices


def merged(table: Table, earlier: Table) -> Table:
    """`table` with the cells of `earlier` that it lacks or did not run."""
    kept = {
        key: each
        for key, each in earlier.items()
        if key not in table or table[key].support == "not run"
    }
    return {**table, **kept}


def _counts(table: Table, device: Shown) -> Counter[Support]:
    return Counter(each.support for key, each in table.items() if key[3] == device.device)


def _at(table: Table, name: str, dtype: str, shapes: str, device: Shown) -> Outcome:
    return table.get((name, dtype, shapes, device.device), _ABSENT)


def _age(table: Table, device: Shown, versions: Mapping[str, str]) -> tuple[str, int]:
    """The days on which a column was made, and how many of its cells another version made."""
    cells = [each for key, each in table.items() if key[3] == device.device]
    days = sorted({each.made for each in cells if each.made})
    now = versions.get(device.device.partition(":")[0], "")
    older = sum(not now or each.version != now for each in cells if each.support != "not run")
    return " to ".join(dict.fromkeys([*days[:1], *days[-1:]])), older


def _letters(table: Table, name: str, device: Shown) -> str:
    """The four cells of an operator on a device: ``pp rr``."""
    return " ".join(
        "".join(LETTERS[_at(table, name, dtype, shapes, device).support] for shapes in SHAPES)
        for dtype in DTYPES
    )


def _reasons(table: Table) -> Iterator[tuple[str, str, str]]:
    """Operator, devices and cases, and why, where it is no plain pass or known limit."""
    cases: dict[tuple[str, str, str], list[str]] = {}
    for (name, dtype, shapes, device), each in table.items():
        if each.support not in ("pass", "simulated", "refused by limit"):
            told = name, f"{each.support}: {each.reason}", device
            cases.setdefault(told, []).append(f"{dtype} {shapes}")
    alike: dict[tuple[str, str, str], list[str]] = {}
    for (name, reason, device), found in cases.items():
        alike.setdefault((name, reason, ", ".join(sorted(found))), []).append(device)
    for (name, reason, found_in), devices in sorted(alike.items()):
        yield name, f"{', '.join(devices)} ({found_in})", reason


def to_markdown(
    table: Table, names: Sequence[str], devices: Sequence[Shown], versions: Mapping[str, str]
) -> str:
    """The matrix as a page of the documentation; `versions` are those of now, by platform."""
    lines = [
        "# What runs where",
        "",
        f"{len(names)} operators, in float32 and float16, with static and dynamic shapes, by device"
        f" of one machine, written on {datetime.now(UTC):%Y-%m-%d}.",
        "Each was replayed against float64 as `tapml validate` does it. The processor is the"
        " reference and has no column.",
        "[support.json](support.json) has every cell's reason and worst error over its unit."
        " Made by",
        "",
        "    python3 scripts/support_matrix.py --folder support --markdown docs/support.md "
        "--json docs/support.json",
        "    python3 scripts/support_matrix.py --folder support --devices vulkan --earlier "
        "docs/support.json --markdown docs/support.md --json docs/support.json",
        "",
        "The second makes some columns again and takes the others from the file."
        " [The same on an NVIDIA H200](support_h200.md) is another machine's.",
        "",
        "A cell has four letters: float32 static and dynamic, then float16 static and dynamic.",
        ", ".join(f"`{letter}` {word}" for word, letter in LETTERS.items()) + ".",
        "*Simulated* passed on a simulator of kernel text, which says nothing of a GPU.",
        "*Refused by limit*: the device lacks float16, or a kernel is beyond its limits.",
        "*Older* counts cells that another version of importer, code generator, oracle, operators"
        " or compilers made; support.json has every cell's day and version. A cell whose kernels"
        " other code makes alike keeps its day.",
        "",
        f"| device | name | {' | '.join(LETTERS)} | made | older |",
        f"|---|---|{'---|' * len(LETTERS)}---|---|",
    ]
    for device in devices:
        counts = _counts(table, device)
        numbers = " | ".join(str(counts[word]) for word in LETTERS)
        made, older = _age(table, device, versions)
        lines.append(f"| {device.device} | {_cell(device.name)} | {numbers} | {made} | {older} |")
    lines += [
        "",
        f"| operator | {' | '.join(each.device for each in devices)} |",
        f"|---|{'---|' * len(devices)}",
    ]
    for name in names:
        cells = " | ".join(f"`{_letters(table, name, each)}`" for each in devices)
        lines.append(f"| {name} | {cells} |")
    reasons = [f"- {name}, {where}: {_cell(why)}" for name, where, why in _reasons(table)]
    if reasons:
        lines += ["", "## What did not pass", "", *reasons]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A device's own words in a table of Markdown."""
    plain = "".join(each if each.isprintable() else "?" for each in text)
    return plain.replace("|", "/").replace("<", "&lt;")


def to_json(table: Table, names: Sequence[str], devices: Sequence[Shown]) -> dict[str, Any]:
    """The matrix as plain data, format ``tapml-support/1``."""
    return {
        "format": FORMAT,
        "made": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "operators": list(names),
        "devices": [
            {
                **msgspec.to_builtins(each),
                "counts": dict(_counts(table, each)),
            }
            for each in devices
        ],
        "cells": [
            {
                **dict(zip(("operator", "dtype", "shapes", "device"), key, strict=True)),
                "support": each.support,
                "worst_ratio": to_strict(float(f"{each.worst_ratio:.3g}")),
                **({"reason": each.reason} if each.reason else {}),
                **({"made": each.made} if each.made else {}),
                **({"version": each.version} if each.version else {}),
            }
            for key, each in table.items()
        ],
    }


def json_text(plain: dict[str, Any]) -> str:
    """A line for each device and cell, so that two versions can be compared."""
    rest = {key: value for key, value in plain.items() if key not in ("devices", "cells")}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in rest.items()]
    for key in ("devices", "cells"):
        rows = ",\n".join(json.dumps(each, allow_nan=False) for each in plain[key])
        lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
    return "{" + ",\n".join(lines) + "}\n"


def to_page(table: Table, names: Sequence[str], devices: Sequence[Shown]) -> str:
    """The matrix as one file of HTML, a table for every dtype and kind of shapes."""
    heads: list[str] = ["device", "name", *LETTERS]
    counted: list[list[Any]] = [
        [each.device, each.name, *(_counts(table, each)[word] for word in LETTERS)]
        for each in devices
    ]
    sections: list[Section] = [{"title": "Devices", "table": (heads, counted)}]
    for dtype, shapes in product(DTYPES, SHAPES):
        rows: list[list[Any]] = [
            [name, *(_chip(_at(table, name, dtype, shapes, each).support) for each in devices)]
            for name in names
        ]
        columns = ["operator", *(each.device for each in devices)]
        sections.append({"title": f"{dtype}, {shapes} shapes", "table": (columns, rows)})
    reasons = [list(each) for each in _reasons(table)]
    if reasons:
        sections.append(
            {"title": "What did not pass", "table": (["operator", "where", "why"], reasons)}
        )
    headline = f"{len(names)} operators on {len(devices)} devices"
    return render_sections("What runs where", headline, sections)


def _chip(support: Support) -> dict[str, str]:
    return {"status": _CHIPS.get(support, support), "text": support}


def by_order(devices: Iterable[Shown]) -> list[Shown]:
    """Columns by platform and number."""

    def place(each: Shown) -> tuple[str, int]:
        platform, _, number = each.device.partition(":")
        return platform, int(number)

    return sorted(devices, key=place)
