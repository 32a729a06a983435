"""Validates every distinct operator shape of 82 public configurations once, on some devices.

scripts/public_configurations.csv has the configurations: sizes of a model, and where they are
published. Shapes that several share are one case, for five tokens and 64 rows of a cache: products,
embeddings, norms, activations and attention, as functions of torch. Each is imported, run on the
processor, and replayed on the devices with the float64 oracle, as `tapml validate` does it, in a
process of its own. What most configurations have comes first. Cells are kept in
docs/configurations.json, so run it again to continue; another machine's cells have a file of their
own, `--cells`, and the page shows both.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.configuration_shapes import (
    Configuration,
    Shape,
    configurations,
    shapes_of,
)
from scripts.environment import ROOT
from scripts.kept_study import run_kept
from scripts.marked_section import write_between
from scripts.support_matrix import devices_of, shown
from scripts.support_pages import (
    Outcome,
    Shown,
    Table,
    by_order,
    json_text,
    read_matrix,
    to_json,
)
from scripts.sweep_job import DTYPE, TRY
from tapml.cli.model_arguments import byte_size, positive, times
from tapml.durable.files import write_text
from tapml.isolate.environment import Environment
from tapml.isolate.pool import Pool
from tapml_targets.errors import InputError, TapmlError

PAGE: Final = ROOT / "docs" / "configurations.md"
CELLS: Final = ROOT / "docs" / "configurations.json"
OTHERS: Final = ROOT / "docs" / "configurations_h200.json"
BEGIN: Final = "<!-- sweep: written by scripts/sweep_configurations.py -->"
END: Final = "<!-- sweep ends -->"
DEVICES: Final = ("opencl", "vulkan")
DEADLINE_SECONDS: Final = 3600.0
# Measured: of a process without its weights, and how often these are in memory, here and on a
# device whose memory is this machine's.
_PROCESS_BYTES: Final = 3 << 29
_COPIES: Final = 2
EXAMPLES: Final = """\
examples:
  python scripts/sweep_configurations.py --list                        shapes and who has them
  python scripts/sweep_configurations.py --minutes 15                  on OpenCL and Vulkan
  python scripts/sweep_configurations.py --devices webgpu --largest 64M
  python scripts/sweep_configurations.py --devices cuda vulkan --workers 8 --memory 100G \\
      --cells docs/configurations_h200.json                            on another machine
  python scripts/sweep_configurations.py --show                        only write the page

exit codes: 0; 1 a shape fails, or its process dies or takes too long; 2 input; 130 interrupted, and
what was done is kept.
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
    parser.add_argument("--devices", nargs="+", default=list(DEVICES), metavar="DEVICE")
    parser.add_argument(
        "--largest", type=byte_size, default=byte_size("16G"), metavar="SIZE",
        help="a shape with a larger operand is not run (16G)",
    )  # fmt: skip
    parser.add_argument(
        "--smallest", type=byte_size, default=0, metavar="SIZE",
        help="a shape whose operands are smaller is not run (0)",
    )  # fmt: skip
    parser.add_argument(
        "--memory", type=byte_size, default=byte_size("8G"), metavar="SIZE",
        help="of all processes together; a shape that needs more is not run (8G)",
    )  # fmt: skip
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="side by side (1)")
    parser.add_argument(
        "--threads", type=positive, default=os.cpu_count() or 1, metavar="N",
        help="of each process (as many as there are processors)",
    )  # fmt: skip
    parser.add_argument(
        "--order", choices=("shared", "largest"), default="shared", help="what comes first (shared)"
    )
    parser.add_argument(
        "--operators", default="*", metavar="PATTERN", help="only shapes like 'product *'"
    )
    parser.add_argument(
        "--minutes", type=times, default=15.0, metavar="N", help="begin no shape after so many (15)"
    )
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE")
    parser.add_argument("--cells", type=Path, default=CELLS, metavar="FILE", help="kept results")
    parser.add_argument(
        "--others", type=Path, default=OTHERS, metavar="FILE",
        help="another machine's cells: what passes there comes last, and the page has both",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="run what passed before, too")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="only print the shapes")
    what.add_argument("--show", action="store_true", help="only write the page")
    return parser.parse_args(arguments)


def _sweep(options: argparse.Namespace) -> int:
    rows = configurations()
    shapes = shapes_of(rows)
    chosen = [each for each in shapes if fnmatchcase(str(each), options.operators)]
    if not chosen:
        raise InputError(f"no shape is like {options.operators!r}: --list prints them")
    if options.list:
        for shape in chosen:
            print(f"{shape.weight_bytes >> 20:6d} MiB  {shape}: {', '.join(shapes[shape])}")
        return 0
    table, columns = _read(options.cells)
    others, their_columns = _elsewhere(options)
    made: Table = {}
    if not options.show:
        devices = list(devices_of(options.devices))
        here = {each.spec: shown(each) for each in devices}
        columns = by_order({**{each.device: each for each in columns}, **here}.values())
        left = {
            shape: [each for each in here if options.again or not _passed(table, shape, each)]
            for shape in chosen
            if options.smallest <= shape.weight_bytes <= options.largest
        }
        elsewhere = {name for (name, *_), cell in others.items() if cell.support == "pass"}
        order = sorted(filter(left.get, left), key=lambda shape: str(shape) in elsewhere)
        if options.order == "largest":
            order.sort(key=lambda shape: -shape.weight_bytes)
        for shape, cells in _made(order, left, options):
            made |= {(str(shape), DTYPE, "static", spec): cell for spec, cell in cells.items()}
            table |= made
            names = sorted({operator for operator, *_ in table})
            write_text(options.cells, json_text(to_json(table, names, columns)))
    lines = page_lines(rows, shapes, {**table, **others}, [*columns, *their_columns])
    text = "\n".join(lines)
    if options.page.is_file():
        write_between(options.page, BEGIN, END, text)
    print(text)
    return int(any(each.support in ("fail", "degraded", "not run") for each in made.values()))


def _read(cells: Path) -> tuple[Table, list[Shown]]:
    """The cells of shapes, and their devices."""
    if not cells.is_file():
        return {}, []
    table, _, columns = read_matrix(cells)
    return {key: cell for key, cell in table.items() if cell.support != "not run"}, columns


def _elsewhere(options: argparse.Namespace) -> tuple[Table, list[Shown]]:
    """The other machine's cells; a device's name tells it from one of this machine."""
    if options.others.resolve() == options.cells.resolve():
        return {}, []
    table, columns = _read(options.others)
    names = {each.device: f"{each.device} of {each.name}" for each in columns}
    renamed = {(*key[:3], names[key[3]]): cell for key, cell in table.items()}
    return renamed, [replace(each, device=names[each.device]) for each in columns]


def _made(
    order: Sequence[Shape], devices: Mapping[Shape, Sequence[str]], options: argparse.Namespace
) -> Iterator[tuple[Shape, dict[str, Outcome]]]:
    """Validate the shapes in processes side by side, within the memory; each as it is done."""
    until = time.monotonic() + 60 * options.minutes
    waiting = [each for each in order if _bytes_of(each) <= options.memory]
    running: dict[Future[Any], Shape] = {}
    threads = str(options.threads)
    environment = Environment(
        variables={"OMP_NUM_THREADS": threads, "TVM_NUM_THREADS": threads},
        preload=("scripts.sweep_job",),
    )
    with Pool(
        [TRY], workers=options.workers, environment=environment, deadline_seconds=DEADLINE_SECONDS
    ) as pool:
        while waiting or running:
            room = options.memory - sum(map(_bytes_of, running.values()))
            fits = [each for each in waiting if _bytes_of(each) <= room]
            if fits and len(running) < options.workers and time.monotonic() < until:
                shape = fits[0]
                waiting.remove(shape)
                asked = {
                    "operator": shape.operator,
                    "extents": list(shape.extents),
                    "devices": list(devices[shape]),
                }
                running[pool.submit(TRY, asked)] = shape
                continue
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                shape = running.pop(future)
                cells = _outcomes(future, devices[shape])
                said = ", ".join(f"{spec} {_said(cell)}" for spec, cell in cells.items())
                print(f"[{len(waiting) + len(running)} left] {shape}: {said}", file=sys.stderr)
                yield shape, cells


def _bytes_of(shape: Shape) -> int:
    """The memory that a shape needs."""
    return _PROCESS_BYTES + _COPIES * shape.weight_bytes


def _outcomes(future: Future[Any], devices: Sequence[str]) -> dict[str, Outcome]:
    try:
        found = future.result()
    except TapmlError as error:  # its process died, or took too long
        reason = str(error).splitlines()[0]
        return dict.fromkeys(devices, Outcome("not run", reason))
    return {spec: msgspec.convert(each, Outcome) for spec, each in found.items()}


def _said(cell: Outcome) -> str:
    """How a shape ended; the page says why it fails, and not why it was not run."""
    return f"not run ({cell.reason})" if cell.support == "not run" else cell.support


def _passed(table: Table, shape: Shape, device: str) -> bool:
    cell = table.get((str(shape), DTYPE, "static", device))
    return cell is not None and cell.support == "pass"


def page_lines(
    rows: Sequence[Configuration],
    shapes: Mapping[Shape, Sequence[str]],
    table: Table,
    columns: Sequence[Shown],
) -> Iterator[str]:
    """What was run and how it ended, by device; every configuration; what was not run."""
    devices = {each.device: each.name for each in columns}
    cells = {
        (shape, device): table.get((str(shape), DTYPE, "static", device))
        for shape in shapes
        for device in devices
    }
    done = {key for key, cell in cells.items() if cell is not None and cell.support == "pass"}
    passing = {shape for shape, _ in done}
    yield (
        f"{len(rows)} configurations have {len(shapes)} distinct operator shapes; "
        f"{len(passing)} pass on a device."
    )
    yield ""
    for device, name in devices.items():
        found = Counter(
            cell.support for (_, each), cell in cells.items() if each == device and cell is not None
        )
        said = ", ".join(f"{number} {support}" for support, number in found.most_common())
        about = "" if device.endswith(name) else f" ({name})"
        yield f"- {device}{about}: {said}"
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
    for title, left in (
        ("On no device", [each for each in shapes if each not in passing]),
        *(
            (f"Not on {device}", [each for each in passing if cells[each, device] is None])
            for device in devices
        ),
    ):
        if left:
            sizes = sorted(each.weight_bytes for each in left)
            yield ""
            yield (
                f"{title}: {len(left)}, with operands of {sizes[0] >> 20} to {sizes[-1] >> 20} MiB"
                + (f": {', '.join(map(str, left))}." if title == "On no device" else ".")
            )
    yield ""


if __name__ == "__main__":
    sys.exit(main())
