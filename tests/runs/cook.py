"""A small piece of long work: cook dishes, one after the other; what is cooked stays cooked.

python -m tests.runs.cook FOLDER SALT
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from tapml.runs.events import Event, Note
from tapml.runs.folder import RunFolder
from tapml.runs.kind import RunKind
from tapml.runs.result_key import Part, ResultKey, what_changed

DISHES = ("soup", "fish", "cake")


class Cooked(msgspec.Struct):
    """What a result holds."""

    minutes: int


KIND = RunKind("tapml-cooking/1", results={"cook": Cooked})
PARTS = {"salt": Part("the salt", shown=True)}


def cook(folder: Path, salt: str) -> list[str]:
    """Cook what is not cooked yet; return what the watcher heard."""
    heard: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, Note):
            heard.append(event.text)

    with (
        RunFolder(folder, KIND).run(watcher=watch, salt=salt) as run,
        run.phases.phase("cook", total=len(DISHES), stove="gas") as phase,
    ):
        for number, dish in enumerate(DISHES):
            # Cakes take no salt.
            key = ResultKey.of(dish=dish, salt="" if dish == "cake" else salt)
            if run.journal.result(key) is None:
                before = run.journal.latest("cook", dish)
                if before is not None:
                    why = "; ".join(what_changed(before.parts, key, PARTS))
                    run.watcher(Note(f"{dish} again: {why}"))
                run.journal.append("step", dish=dish)
                run.journal.record(key, "cook", dish, "pass", {"minutes": 10 * number})
            phase.progress(number + 1, len(DISHES), dish)
    return heard


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if not RunFolder(place, KIND).exists:
        RunFolder(place, KIND).begin(menu=",".join(DISHES))
    print(*cook(place, sys.argv[2]), sep="\n")
