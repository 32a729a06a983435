"""Takes every class of transformers' automatic lists from a tiny folder to an imported plan.

Configurations are their classes' defaults with small sizes (tests/models/shrunk.py). Each class
runs in a process of its own with a deadline. What came of it is kept in docs/every_class.json, and
the section between the marks in docs/models.md is written from that, so run it again to continue.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.environment import ROOT as HOME
from scripts.every_class_job import TRY
from scripts.kept_study import found_by_stages, run_kept
from scripts.marked_section import write_between
from scripts.other_models_job import IMPORT, MOVE, STAGES
from tapml.cli.model_arguments import positive
from tapml.durable.files import write_json
from tapml_targets.errors import InputError

PAGE: Final = HOME / "docs" / "models.md"
KEPT: Final = HOME / "docs" / "every_class.json"
BEGIN: Final = "<!-- every class: written by scripts/every_class.py -->"
END: Final = "<!-- every class ends -->"
# The last is of scripts/other_models.py alone.
_STAGES: Final = tuple(each for each in STAGES if each != MOVE)
_ENDS: Final = ("refused", "wrong", "broken", "sample")
EXAMPLES: Final = """\
examples:
  python scripts/every_class.py --stage wrapper         load and compare with the class, in seconds
  python scripts/every_class.py --minutes 14            what is missing, to an imported plan
  python scripts/every_class.py --only CAUSAL_LM 'VIDEO*' --stage root
  python scripts/every_class.py --again refused         those that were refused, once more
  python scripts/every_class.py --show                  only write the section

exit codes: 0; 1 a class is wrong or ends in an error that no user may see; 2 input; 130
interrupted, and what was done is kept.
"""


def classes() -> dict[str, str]:
    """Every class of an automatic list, with the first list that has it."""
    from transformers.models.auto import modeling_auto

    found: dict[str, str] = {}
    lists = {
        re.sub("^MODEL_FOR_|^MODEL_|_MAPPING_NAMES$|MAPPING_NAMES$", "", name): names
        for name, names in vars(modeling_auto).items()
        if name.startswith("MODEL") and name.endswith("MAPPING_NAMES")
    }
    # A class of a task is that task's, and a base model is one where no task has it.
    general = {"", "PRETRAINING", "IMAGE", "TEXT_ENCODING", "WITH_LM_HEAD", "MULTIMODAL_LM"}
    for kind in sorted(lists, key=lambda each: (each in general, each)):
        for value in lists[kind].values():
            for name in [value] if isinstance(value, str) else value:
                found.setdefault(name, kind or "MODEL")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what is missing and write the section."""
    options = _parse(arguments)
    return run_kept("every_class", lambda: _try(options))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/every_class.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--stage", choices=_STAGES, default=IMPORT, help=f"the last one ({IMPORT})")
    parser.add_argument(
        "--only", metavar="PATTERN", nargs="+", default=["*"], help="names or lists like these"
    )
    parser.add_argument(
        "--again", metavar="WORD", default="", help="try those whose result has the word once more"
    )
    parser.add_argument("--show", action="store_true", help="try nothing")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin none after so many")
    parser.add_argument("--workers", type=positive, default=1, metavar="N", help="(1)")
    parser.add_argument("--deadline", type=float, default=60.0, metavar="SECONDS", help="(60)")
    return parser.parse_args(arguments)


def _try(options: argparse.Namespace) -> int:
    known, kept = classes(), _read()
    kept = {name: found for name, found in kept.items() if name in known}
    wanted = {
        name: kind
        for pattern in options.only
        for name, kind in known.items()
        if fnmatchcase(name, pattern) or fnmatchcase(kind, pattern)
    }
    if not wanted:
        raise InputError(f"--only {' '.join(options.only)}: no class or list is like it")
    left = [
        name
        for name in wanted
        if not _done(kept.get(name), options.stage)
        or (options.again and options.again in json.dumps(kept[name]))
    ]
    cases = {name: {"name": name, "stage": options.stage} for name in left if not options.show}
    for number, name, found in found_by_stages(
        TRY,
        cases,
        options.stage,
        workers=options.workers,
        deadline=options.deadline,
        minutes=options.minutes,
    ):
        kept[name] = {"kind": known[name], **found}
        print(f"[{number}/{len(left)}] {name}: {_outcome(found)}"[:300], flush=True)
        _write(kept)
    _write(kept)
    print("; ".join(f"{count} {word}" for word, count in _words(kept.values()).most_common()))
    found_now = [kept.get(name) or {} for name in wanted]
    return int(any("wrong" in each or "broken" in each for each in found_now))


def _done(found: Mapping[str, Any] | None, stage: str) -> bool:
    """Whether a class went as far as is asked, or ended before."""
    if found is None:
        return False
    ended = any(each in found for each in _ENDS)
    return ended or STAGES.index(found["stage"]) >= STAGES.index(stage)


def _outcome(found: Mapping[str, Any]) -> str:
    for word in _ENDS:
        if word in found:
            return f"{word}: {found[word]}"
    more = [f"{found['operators']} operators"] if "operators" in found else []
    rooted = [f"worst {found['rooted']} of its tolerance"] if "rooted" in found else []
    return ", ".join([_word(found), f"wrapper {found['wrapper']}", *more, *rooted])


def _word(found: Mapping[str, Any]) -> str:
    for word in _ENDS:
        if word in found:
            return "no sample" if word == "sample" else word
    return "passes" if "rooted" in found else "imports" if "operators" in found else "loads"


def _words(found: Any) -> Counter[str]:
    return Counter(map(_word, found))


def _read() -> dict[str, dict[str, Any]]:
    if not KEPT.exists():
        return {}
    try:
        found: dict[str, dict[str, Any]] = json.loads(KEPT.read_text("utf-8"))["classes"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{KEPT} is not a file of this script ({error}): delete it") from error
    return found


def _write(kept: Mapping[str, Mapping[str, Any]]) -> None:
    write_json(KEPT, {"classes": {key: kept[key] for key in sorted(kept)}})
    write_between(PAGE, BEGIN, END, "\n".join(_lines(kept)))


_COLUMNS: Final = ("passes", "imports", "loads", "refused", "wrong", "broken", "no sample")


def _lines(kept: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    by_kind: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for found in kept.values():
        by_kind[found["kind"]].append(found)
    columns = [each for each in _COLUMNS if _words(kept.values())[each]]
    yield f"| list of classes | {' | '.join(columns)} |"
    yield "|---|" + "---|" * len(columns)
    rows = [*sorted(by_kind.items(), key=lambda each: -len(each[1])), ("all", [*kept.values()])]
    for kind, of_kind in rows:
        counts = _words(of_kind)
        yield f"| {kind} | {' | '.join(str(counts[each] or '') for each in columns)} |"
    yield ""
    yield from _reasons(kept)


def _reasons(kept: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Why classes are refused: one line for each reason, with its classes."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, found in kept.items():
        for word in ("wrong", "broken", "refused"):
            if word in found:
                reasons[f"{word}: {_short(found[word], name)}"].append(name)
    single = sum(len(names) == 1 for names in reasons.values())
    for reason, names in sorted(reasons.items(), key=lambda each: -len(each[1])):
        if len(names) == 1:
            continue
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        yield f"- {reason} ({len(names)}: {shown})"
    yield f"- {single} classes have a reason of their own, in {KEPT.relative_to(HOME)}."


def _short(reason: str, name: str) -> str:
    text = reason.rpartition("tried as it is: ")[2].partition("; write the family's file")[0]
    return re.sub(r"\d+", "N", text.replace(name, "it"))[:160]


if __name__ == "__main__":
    raise SystemExit(main())
