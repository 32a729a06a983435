"""What was found there, a row a part: as JSON, as a table, and as an exit code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

FORMAT: Final = "tapml-nvidia/1"
RESULTS: Final = "results.json"
TABLE: Final = "table.md"
NOTHING_RAN: Final = 3
_CONFORMANCE: Final = "conformance"
_DECODE: Final = "package"
_EAGER: Final = "torch"
# What passes where there is no device of tapml's.
_WITHOUT_A_DEVICE: Final = ("device", "compile", _EAGER)
NO_DEVICE: Final = "no device, see above"
_TITLES: Final = {
    "device": "device",
    "compile": "the demo's kernels compiled by NVRTC",
    _CONFORMANCE: "conformance cases that pass",
    _DECODE: "demo package, decode tokens a second",
    "suite": "the exported suite replayed",
    "carve": "carved with this device as the reference",
    _EAGER: "PyTorch eager, decode tokens a second",
}

Status = Literal["pass", "fail", "skip"]


@dataclass(frozen=True)
class Row:
    """One part on one platform.

    Attributes
    ----------
    part, platform
        What ran, and where; the platform is empty for what has none.
    status
        A loader, GPU, driver or package that is missing is a *skip*.
    line
        What was found, or why not, in one line.
    seconds
        How long it took.
    figures
        Numbers, by name.
    """

    part: str
    platform: str
    status: Status
    line: str
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The part for people."""
        return f"{self.part} {self.platform}".strip()

    def text(self) -> str:
        """One line for a terminal."""
        return f"{self.status:<4} {self.name:<20} {self.seconds:6.1f} s  {self.line}"


def one_line(text: str, longest: int = 300) -> str:
    """Text without line ends, and not longer than a line of a table."""
    plain = " ".join(text.split())
    return plain if len(plain) <= longest else f"{plain[: longest - 3]}..."


def exit_code(rows: Sequence[Row]) -> int:
    """1 if a part fails, 3 if no part ran on a device, else 0."""
    if any(row.status == "fail" for row in rows):
        return 1
    ran = any(row.status == "pass" and row.part not in _WITHOUT_A_DEVICE for row in rows)
    return 0 if ran else NOTHING_RAN


def write_results(folder: Path, machine: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write both files; each is complete or as it was."""
    data = {"format": FORMAT, "machine": dict(machine), "rows": [asdict(row) for row in rows]}
    _write(folder / RESULTS, json.dumps(data, indent=1) + "\n")
    _write(folder / TABLE, table(machine, rows))


def read_results(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """Read what :func:`write_results` wrote.

    Raises
    ------
    ValueError
        If it is something else; the message is one line.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"expected {FORMAT}, got {data['format']}")
        return dict(data["machine"]), [Row(**row) for row in data["rows"]]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no results: {error}") from error


def table(machine: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Markdown: where and when, a column a platform, and below it what is missing or fails."""
    platforms = [*dict.fromkeys(row.platform for row in rows if row.platform)]
    cells = {(row.part, row.platform): row for row in rows}
    lines = [_where(machine), ""]
    if platforms:
        lines += [f"| | {' | '.join(platforms)} |", f"|---{'|---' * len(platforms)}|"]
    for part, title in _TITLES.items():
        found = [cells.get((part, platform)) for platform in platforms]
        if any(found):
            lines.append(f"| {title} | {' | '.join(_cell(row) for row in found)} |")
    eager = cells.get((_EAGER, ""))
    if eager is not None:
        lines += ["", f"{_TITLES[_EAGER]}: {_cell(eager)}."]
    told = [
        f"- {row.name}: {row.status}: {row.line}"
        for row in rows
        if row.status != "pass" and row.line != NO_DEVICE
    ]
    if told:
        lines += ["", *told]
    return "\n".join(lines) + "\n"


def _where(machine: Mapping[str, Any]) -> str:
    known = {
        "GPU": machine.get("gpu"),
        "driver": machine.get("driver"),
        "PyTorch": machine.get("torch"),
        "Python": machine.get("python"),
        "tapml": machine.get("made_of"),
    }
    facts = [f"{name} {value}" for name, value in known.items() if value]
    return f"{', '.join(facts) or 'No GPU'}; {machine.get('date', 'no date')}."


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row.status != "pass":
        return f"**{row.status}**" if row.status == "fail" else row.status
    figures = row.figures
    if "tokens_per_second" in figures:
        return f"{figures['tokens_per_second']:,.0f}"
    if "passed" in figures:
        return f"{figures['passed']} of {figures['of']}"
    return row.line


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, "utf-8")
    partial.replace(path)
