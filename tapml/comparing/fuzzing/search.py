"""The search: cases until the budget is spent, each new cause shrunk by Hypothesis and kept once.

A cause is a verdict, the type of the first guilty layer and who is blamed. Every case is journaled,
so that the search with the same seed goes on where it stopped: it draws the same cases again and
finds their results.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from tapml.backends.child import JOBS
from tapml.comparing.data import Data
from tapml.comparing.fuzzing.mutants import KINDS
from tapml.comparing.fuzzing.sources import MAKING, STACK, Source, check_model, source_of
from tapml.comparing.fuzzing.stacks import LAYERS
from tapml.comparing.layer_script import write_script
from tapml.comparing.result import NOT_FAULTS, Comparison, PairResult
from tapml.comparing.run import DEADLINE_SECONDS, choose, compare, own_code
from tapml.comparing.verdicts import Thresholds
from tapml.durable.files import remove_file, remove_folder, replace_folder
from tapml.isolate.pool import Pool
from tapml.runs.events import Watcher, ignore
from tapml.runs.folder import Run, RunFolder
from tapml.runs.kind import RunKind
from tapml.runs.result_key import ResultKey
from tapml_targets.errors import InputError, SetupError

CASES: Final = 500
MINUTES: Final = 10.0
_LONGEST: Final = 5


class CaseResult(msgspec.Struct, frozen=True):
    """A case: the causes it shows, or why no model could be made of it."""

    causes: tuple[str, ...] = ()
    invalid: str = ""


KIND: Final = RunKind("tapml-fuzz/1", results={"case": CaseResult})


@dataclass(frozen=True)
class Cause:
    """A cause, and the smallest case that shows it.

    Attributes
    ----------
    cause
        ``inconsistent at AveragePool by openvino``.
    case
        Layers or edits, as :mod:`~tapml.comparing.fuzzing.stacks` and
        :mod:`~tapml.comparing.fuzzing.mutants` read them.
    folder
        Has the model, its data and ``show.py``.
    """

    cause: str
    case: list[Any]
    folder: str


@dataclass
class FuzzResult:
    """What a search found.

    Attributes
    ----------
    cases
        Cases that were tried, those of earlier runs included.
    invalid
        Of these, those that were no valid model.
    """

    backends: tuple[str, ...]
    seed: int
    cases: int = 0
    invalid: int = 0
    causes: list[Cause] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"format": KIND.format, **asdict(self)}


def fuzz(
    folder: str | Path,
    backends: Sequence[str],
    *,
    model: str | Path | None = None,
    data: Data | None = None,
    code: str | Path | None = None,
    cases: int = CASES,
    minutes: float = MINUTES,
    seed: int = 0,
    limits: Thresholds | None = None,
    deadline_seconds: float = DEADLINE_SECONDS,
    watcher: Watcher = ignore,
) -> FuzzResult:
    """Search for models on which backends part.

    Parameters
    ----------
    folder
        Keeps the journal, and ``causes/`` with a folder for each cause.
    backends
        At least two that read the model; ``.onnx`` files without one.
    model, data
        An ONNX or Keras file or the folder of a torch module to mutate, and instances for it; None
        for stacks of layers.
    code
        As of :func:`~tapml.comparing.run.compare`.
    cases, minutes
        The budget; what is over first ends the search.
    seed
        The same seed draws the same cases.
    limits
        As of :func:`~tapml.comparing.run.compare`.
    deadline_seconds
        Time limit of every call of a backend.

    Raises
    ------
    InputError
        If the model cannot be mutated or is too large, or the folder belongs to something else.
    SetupError
        If Hypothesis or a backend is not installed, or the folder is in use.
    """
    if find_spec("hypothesis") is None:
        raise SetupError('the search needs Hypothesis: pip install "hypothesis>=6.150"')
    chosen = choose(Path(STACK) if model is None else check_model(model, data), backends)
    names = tuple(each.text for each in chosen)
    classes = own_code(Path(model or "absent"), code)
    run_folder = RunFolder(Path(folder), KIND)
    if not run_folder.exists:
        run_folder.begin()
    found = FuzzResult(names, seed)
    with ExitStack() as opened:
        run = opened.enter_context(run_folder.run(watcher=watcher))
        pool = opened.enter_context(Pool((*JOBS, *MAKING)))
        source = source_of(model, data, chosen, pool, deadline_seconds, classes)

        def look(path: Path) -> Comparison:
            return compare(path, names, source.arrays, limits=limits, code=classes,
                           deadline_seconds=deadline_seconds, pool=pool)  # fmt: skip

        digest = f"{source.digest} {limits} {[each.installed() for each in chosen]}"
        search = _Search(run, Path(folder), digest, source, look, found, cases,
                         time.monotonic() + 60 * minutes)  # fmt: skip
        with run.phases.phase("search", total=cases) as phase:
            search.progress = lambda: phase.progress(
                found.cases, cases, f"{len(found.causes)} causes"
            )
            search.run(mutants=model is not None)
            phase.detail = f"{found.cases} cases, {len(found.causes)} causes"
        for each in found.causes:
            _write(Path(each.folder), each, source, names, classes)
    return found


@dataclass
class _Search:
    run_of: Run
    folder: Path
    digest: str
    source: Source
    look: Callable[[Path], Comparison]
    found: FuzzResult
    cases: int
    until: float
    progress: Callable[[], None] = lambda: None
    seen: dict[str, CaseResult] = field(default_factory=dict)

    def run(self, *, mutants: bool) -> None:
        """Find causes until the budget is spent."""
        import hypothesis
        from hypothesis import HealthCheck, Phase, settings
        from hypothesis import strategies as st
        from hypothesis.errors import NoSuchExample

        number = st.integers(0, 255)
        one = (
            st.tuples(st.sampled_from(KINDS), number, number)
            if mutants
            else st.tuples(st.sampled_from(sorted(LAYERS)), number)
        )
        strategy = st.lists(one, min_size=1, max_size=_LONGEST)
        known: set[str] = set()
        while not self._is_spent():
            target: list[str] = []

            def shows(case: Sequence[Any], target: list[str] = target) -> bool:
                new = [each for each in self._try(case).causes if each not in known]
                if new and not target:
                    target.append(new[0])
                return bool(target) and target[0] in new

            options = settings(
                max_examples=max(1, self.cases - self.found.cases),
                database=None,
                deadline=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=list(HealthCheck),
            )
            random = Random(self.found.seed + len(known))  # noqa: S311  (the user's seed)
            try:
                smallest = hypothesis.find(strategy, shows, settings=options, random=random)
            except NoSuchExample:
                return
            known.add(target[0])
            number_of = len(self.found.causes) + 1
            place = self.folder / "causes" / f"{number_of:02}-{_plain(target[0])}"
            self.found.causes.append(Cause(target[0], [list(e) for e in smallest], str(place)))
            self.progress()

    def _is_spent(self) -> bool:
        return self.found.cases >= self.cases or time.monotonic() > self.until

    def _try(self, case: Sequence[Any]) -> CaseResult:
        """The result of a case; none, and none that is kept, once the budget is spent."""
        text = json.dumps(case)
        if text in self.seen:
            return self.seen[text]
        key = ResultKey.of(case=text, source=self.digest)
        kept = self.run_of.journal.result(key)
        if kept is not None:
            result = msgspec.convert(kept.data, CaseResult)
        elif self._is_spent():
            return self.seen.setdefault(text, CaseResult())
        else:
            result = self._look_at(case)
            status = "fail" if result.causes else "pass"
            self.run_of.journal.record(key, "case", text, status, msgspec.to_builtins(result))
        self.seen[text] = result
        self.found.cases += 1
        self.found.invalid += bool(result.invalid)
        self.progress()
        return result

    def _look_at(self, case: Sequence[Any]) -> CaseResult:
        path = self.folder / self.source.name
        try:
            if reason := self.source.make(case, path):
                return CaseResult(invalid=reason)
            return CaseResult(causes_of(self.look(path)))
        except InputError as error:
            return CaseResult(invalid=str(error)[:200])
        finally:
            (remove_folder if path.is_dir() else remove_file)(path)


def causes_of(comparison: Comparison) -> tuple[str, ...]:
    """The causes of a comparison.

    A pair without a layer counts only if a backend failed: values that a chaotic model amplifies
    have none. What all backends refuse is no valid model.
    """
    failed = [each for each in comparison.backends if each.failure is not None]
    if len(failed) == len(comparison.backends):
        return ()
    causes = [
        _cause(pair)
        for pair in comparison.pairs
        if pair.status not in NOT_FAULTS
        and (pair.layer or any(each.name == pair.blamed for each in failed))
    ]
    return tuple(dict.fromkeys(causes))


def _cause(pair: PairResult) -> str:
    layer = f" at {pair.layer_kind}" if pair.layer_kind else ""
    who = f" by {pair.blamed}" if pair.blamed else f" of {' and '.join(pair.backends)}"
    return f"{pair.status}{layer}{who}"


def _plain(cause: str) -> str:
    return "".join(each if each.isalnum() else "-" for each in cause)[:80]


def _write(
    folder: Path, cause: Cause, source: Source, backends: Sequence[str], code: Path | None
) -> None:
    folder.parent.mkdir(exist_ok=True)
    with replace_folder(folder) as made:
        source.make(cause.case, made / source.name)
        write_script(made, cause.cause, source.name, backends, source.arrays, code)
