"""Takes models that no file has, and unusual settings of families, from a folder to a rooted plan.

The tiny seeded models are those of tests/models/other_models.py. Each runs in a process of its own
with a deadline: it is loaded, its entries are compared with the class's own forward, imported, and
compared with PyTorch; the last stage, which is asked for, moves it to OpenCL. What came of it is
kept in docs/other_models.json, and the table between the marks in docs/models.md is written from
that, so run it again to continue.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.environment import ROOT as HOME
from scripts.kept_study import found_by_stages, run_kept
from scripts.marked_section import write_between
from scripts.other_models_job import (
    IMPORT,
    LOADING_SECONDS,
    MOVE,
    ROOT,
    STAGES,
    TRY,
    WRAPPER,
)
from tapml.cli.model_arguments import positive, times
from tapml.durable.files import write_json
from tapml_targets.errors import InputError
from tests.models.other_models import OTHERS, UNUSUAL

PAGE: Final = HOME / "docs" / "models.md"
KEPT: Final = HOME / "docs" / "other_models.json"
BEGIN: Final = "<!-- other models: written by scripts/other_models.py -->"
END: Final = "<!-- other models end -->"
EXAMPLES: Final = """\
examples:
  python scripts/other_models.py                        what is missing, to a rooted plan
  python scripts/other_models.py --stage wrapper        load and compare with the class, in seconds
  python scripts/other_models.py --only 'Roberta*' --again
  python scripts/other_models.py --stage move --minutes 14   whole migrations, in parts
  python scripts/other_models.py --show                 only write the table

exit codes: 0; 1 a row is wrong or ends in an error that no user may see; 2 input; 130 interrupted,
and what was done is kept.
"""


class Row(NamedTuple):
    """A line of the table."""

    part: str
    number: int
    kind: str
    name: str
    about: str

    @property
    def key(self) -> str:
        """What its result is kept by."""
        return f"{self.name}: {self.about}" if self.about else self.name


def rows() -> list[Row]:
    """Classes without a file, then settings of known families."""
    others = [
        Row("others", number, each.kind, each.architecture, "")
        for number, each in enumerate(OTHERS)
    ]
    unusual = [
        Row("unusual", number, "family", family, about)
        for number, (family, about, _) in enumerate(UNUSUAL)
    ]
    return others + unusual


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what is missing and write the table."""
    options = _parse(arguments)
    return run_kept("other_models", lambda: _try(options))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/other_models.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--stage", choices=STAGES, default=ROOT, help=f"the last one ({ROOT})")
    parser.add_argument(
        "--only", metavar="PATTERN", nargs="+", default=["*"], help="names or kinds like these"
    )
    parser.add_argument("--again", action="store_true", help="try what is there already")
    parser.add_argument("--show", action="store_true", help="try nothing")
    parser.add_argument(
        "--minutes", type=times, default=0.0, metavar="N", help="begin none after so many"
    )
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="(1)")
    parser.add_argument("--deadline", type=float, default=120.0, metavar="SECONDS", help="(120)")
    return parser.parse_args(arguments)


def _try(options: argparse.Namespace) -> int:
    kept = _read()
    wanted = [
        row
        for row in rows()
        if any(fnmatchcase(row.key, each) or fnmatchcase(row.kind, each) for each in options.only)
    ]
    if not wanted:
        raise InputError(f"--only {' '.join(options.only)}: no name or kind is like it")
    left = [row for row in wanted if options.again or not _done(kept.get(row.key), options.stage)]
    more = LOADING_SECONDS if options.stage == MOVE else 0.0
    asked = {"stage": options.stage, "seconds": options.deadline}
    cases = {row.key: {"part": row.part, "number": row.number, **asked} for row in left}
    for number, key, found in found_by_stages(
        TRY,
        {} if options.show else cases,
        options.stage,
        workers=options.workers,
        # A process that is killed leaves the command that it has started.
        deadline=options.deadline + more,
        minutes=options.minutes,
    ):
        earlier = kept.get(key, {}) if options.stage == MOVE else {}
        kept[key] = {k: v for k, v in earlier.items() if k == "rooted"} | found
        print(f"[{number}/{len(left)}] {key}: {_outcome(found)}", flush=True)
        _write(kept)
    _write(kept)
    found_now = [kept.get(row.key) or {} for row in wanted]
    return int(any("wrong" in each or "broken" in each for each in found_now))


def _done(found: Mapping[str, Any] | None, stage: str) -> bool:
    """Whether a row went as far as is asked, or is refused before."""
    if found is None:
        return False
    ended = any(each in found for each in ("refused", "wrong", "broken"))
    return ended or STAGES.index(found["stage"]) >= STAGES.index(stage)


def _outcome(found: Mapping[str, Any]) -> str:
    for word in ("broken", "wrong", "refused"):
        if word in found:
            return f"{word}: {found[word]}"
    stages = {WRAPPER: "loads", IMPORT: "imports", ROOT: "rooted", MOVE: "moves"}
    stage = stages[found["stage"]]
    return ", ".join(
        [
            stage,
            f"wrapper {found['wrapper']}",
            *([f"{found['operators']} operators"] if "operators" in found else []),
            *([f"worst {found['rooted']} of its tolerance"] if "rooted" in found else []),
        ]
    )


def _read() -> dict[str, dict[str, Any]]:
    if not KEPT.exists():
        return {}
    try:
        found: dict[str, dict[str, Any]] = json.loads(KEPT.read_text("utf-8"))["rows"]
        known = {row.key for row in rows()}
        return {key: each for key, each in found.items() if key in known}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{KEPT} is not a file of this script ({error}): delete it") from error


def _write(kept: Mapping[str, Mapping[str, Any]]) -> None:
    write_json(KEPT, {"rows": {key: kept[key] for key in sorted(kept)}})
    write_between(PAGE, BEGIN, END, "\n".join(_lines(kept)))


def _lines(kept: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    words = Counter(_word(kept[row.key]) for row in rows() if row.key in kept)
    yield f"{len(kept)} of {len(rows())} were tried: " + ", ".join(
        f"{number} {word}" for word, number in words.most_common()
    )
    for part, title in (("others", "class"), ("unusual", "family, setting")):
        yield ""
        yield f"| {title} | kind | what came | wrapper | operators | rooted |"
        yield "|---|---|---|---|---|---|"
        for row in rows():
            found = kept.get(row.key)
            if row.part != part or found is None:
                continue
            columns = ("wrapper", "operators", "rooted")
            numbers = [str(found.get(each, "")) for each in columns]
            # A kernel that cannot be made leaves its operator on the reference.
            numbers[1] += f", {found['moved']} moved" if "moved" in found else ""
            name = f"`{row.name}`" + (f", {row.about}" if row.about else "")
            kind = row.kind if part == "others" else "family"
            yield f"| {name} | {kind} | {_word(found)} | {' | '.join(numbers)} |"
    ended = [row for row in rows() if _word(kept.get(row.key, {})) in _ENDED]
    if ended:
        yield ""
    for row in ended:
        word = _word(kept[row.key])
        yield f"- `{row.key}` is {word}: {_reason(kept[row.key][word])}"


_ENDED: Final = ("refused", "wrong", "broken")


def _word(found: Mapping[str, Any]) -> str:
    ended = [each for each in _ENDED if each in found]
    passed = {WRAPPER: "loads", IMPORT: "imports", ROOT: "passes", MOVE: "moves"}
    return ended[0] if ended else passed.get(str(found.get("stage")), "")


def _reason(text: str, most: int = 230) -> str:
    """A refusal without the words that all have."""
    begin = "was tried as it is: "
    line = text.partition(begin)[2].partition("; write the family's file")[0] or text
    return line if len(line) <= most else line[: most - 3] + "..."


if __name__ == "__main__":
    sys.exit(main())
