"""Validates every distinct operator shape of 82 public configurations once, on some devices.

scripts/public_configurations.csv has the configurations: sizes of a model, and where they are
published. Shapes that several share are one case, for five tokens and 64 rows of a cache: products,
embeddings, norms, activations and attention, as functions of torch. Each is imported, run on the
processor, and replayed on the devices with the float64 oracle, as `tapml validate` does it. What
most configurations have comes first. Cells are kept in docs/configurations.json, so run it again to
continue, elsewhere too.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts import configuration_shapes
from scripts.configuration_shapes import (
    Configuration,
    Shape,
    configurations,
    shapes_of,
)
from scripts.environment import ROOT
from scripts.kept_study import run_kept
from scripts.marked_section import write_between
from scripts.support_matrix import Case, devices_of, fill, shown
from scripts.support_pages import (
    Shown,
    Table,
    by_order,
    json_text,
    merged,
    read_matrix,
    to_json,
)
from tapml.cli.model_arguments import byte_size, times
from tapml.durable.files import write_text
from tapml_targets.errors import InputError

PAGE: Final = ROOT / "docs" / "configurations.md"
CELLS: Final = ROOT / "docs" / "configurations.json"
BEGIN: Final = "<!-- sweep: written by scripts/sweep_configurations.py -->"
END: Final = "<!-- sweep ends -->"
DTYPE: Final = "float32"
# A cell is made again where what a shape computes has changed.
_WRITTEN: Final = Path(str(configuration_shapes.__file__))
DEVICES: Final = ("opencl", "vulkan")
EXAMPLES: Final = """\
examples:
  python scripts/sweep_configurations.py --list                        shapes and who has them
  python scripts/sweep_configurations.py --minutes 15                  on OpenCL and Vulkan
  python scripts/sweep_configurations.py --devices webgpu --largest 64M

exit codes: 0; 1 a shape fails; 2 input; 130 interrupted, and what was done is kept.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Validate what is missing and write the page."""
    options = _parse(arguments)
    return run_kept("sweep_configurations", lambda: _sweep(options))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/sweep_configurations.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "sweep", metavar="FOLDER")
    parser.add_argument("--devices", nargs="+", default=list(DEVICES), metavar="DEVICE")
    parser.add_argument(
        "--largest", type=byte_size, default=byte_size("256M"), metavar="SIZE",
        help="a shape with a larger operand is not run (256M)",
    )  # fmt: skip
    parser.add_argument(
        "--operators", default="*", metavar="PATTERN", help="only shapes like 'product *'"
    )
    parser.add_argument("--minutes", type=times, default=15.0, metavar="N", help="(15)")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE")
    parser.add_argument("--cells", type=Path, default=CELLS, metavar="FILE", help="kept results")
    parser.add_argument("--again", action="store_true", help="run what passed before, too")
    parser.add_argument("--list", action="store_true", help="only print the shapes")
    return parser.parse_args(arguments)


def _sweep(options: argparse.Namespace) -> int:
    rows = configurations()
    every = shapes_of(rows)
    shapes = {
        shape: names for shape, names in every.items() if fnmatchcase(str(shape), options.operators)
    }
    if not shapes:
        raise InputError(f"no shape is like {options.operators!r}: --list prints them")
    if options.list:
        for shape, names in shapes.items():
            print(f"{shape.weight_bytes >> 20:6d} MiB  {shape}: {', '.join(names)}")
        return 0
    devices = list(devices_of(options.devices))
    small = [shape for shape in shapes if shape.weight_bytes <= options.largest]
    earlier, _, columns = read_matrix(options.cells) if options.cells.is_file() else ({}, [], [])
    left = [
        shape
        for shape in small
        if options.again or not all(_passed(earlier, shape, each.spec) for each in devices)
    ]
    options.folder.parent.mkdir(parents=True, exist_ok=True)
    cases = [Case(shape.as_operator(), DTYPE, "static") for shape in left]
    made = fill(options.folder, cases, devices, options.minutes, _WRITTEN)
    table = merged(made, earlier)
    here = {each.spec: shown(each) for each in devices}
    columns = by_order({**{each.device: each for each in columns}, **here}.values())
    names = sorted({operator for operator, *_ in table})
    write_text(options.cells, json_text(to_json(table, names, columns)))
    lines = list(page_lines(rows, every, table, columns, options.largest))
    text = "\n".join(lines)
    if options.page.is_file():
        write_between(options.page, BEGIN, END, text)
    print(text)
    return int(any(each.support in ("fail", "degraded") for each in made.values()))


def _passed(table: Table, shape: Shape, device: str) -> bool:
    cell = table.get((str(shape), DTYPE, "static", device))
    return cell is not None and cell.support == "pass"


def page_lines(
    rows: Sequence[Configuration],
    shapes: Mapping[Shape, Sequence[str]],
    table: Table,
    columns: Sequence[Shown],
    largest: int,
) -> Iterator[str]:
    """What was run and how it ended, by device; every configuration; what was not run."""
    devices = {each.device: each.name for each in columns}
    cells = {
        (shape, device): table.get((str(shape), DTYPE, "static", device))
        for shape in shapes
        for device in devices
    }
    done = {key for key, cell in cells.items() if cell is not None and cell.support == "pass"}
    too_large = [
        shape
        for shape in shapes
        if shape.weight_bytes > largest and not any((shape, device) in done for device in devices)
    ]
    yield (
        f"{len(rows)} configurations have {len(shapes)} distinct operator shapes; "
        f"{len(too_large)} have an operand above {largest >> 20} MiB and were left out."
    )
    yield ""
    for device, name in devices.items():
        found = Counter(
            cell.support for (_, each), cell in cells.items() if each == device and cell is not None
        )
        said = ", ".join(f"{number} {support}" for support, number in found.most_common())
        yield f"- {device} ({name}): {said}"
    for (shape, device), cell in cells.items():
        if cell is not None and cell.support not in ("pass", "not run"):
            yield f"- {shape} on {device}: {cell.support}: {cell.reason}"
    yield ""
    header = "| configuration | hidden | inner | layers | heads | head size | vocabulary | source |"
    yield header + "".join(f" {device} |" for device in devices)
    yield "|---" * (8 + len(devices)) + "|"
    for row in rows:
        own = row.shapes()
        counts = (
            f"{sum((shape, device) in done for shape in own)} of {len(own)}" for device in devices
        )
        heads = f"{row.heads}" if row.heads == row.kv_heads else f"{row.heads} / {row.kv_heads}"
        yield (
            f"| {row.name} | {row.hidden} | {row.inner} | {row.layers} | {heads} | "
            f"{row.head_size} | {row.vocabulary} | {row.source} | {' | '.join(counts)} |"
        )
    yield ""
    waiting = [
        shape
        for shape in shapes
        if shape not in too_large and not all((shape, device) in done for device in devices)
    ]
    for title, left in (("Above the bound", too_large), ("Not done", waiting)):
        if left:
            yield f"{title}: {', '.join(map(str, left))}."
            yield ""


if __name__ == "__main__":
    sys.exit(main())
