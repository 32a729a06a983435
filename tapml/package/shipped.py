"""What ships of a model, whatever form it takes: read from a session or from a package."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy.typing as npt
from msgspec import structs

from tapml.models.chat_template import ChatTemplate, read_chat_template
from tapml.models.resolve import home_of
from tapml.models.stored import StoredModel, StoredModule
from tapml.package.codecs import packaged_tokenizer
from tapml.package.files import PackageFiles
from tapml.package.from_session import FinishedSession, open_finished
from tapml.package.load import open_package
from tapml.package.manifest import TokenizerNote, ValidatedDevice
from tapml.package.sample import Sample
from tapml.plan.graph_plan import CallStep, Entry, GraphPlan, Operator
from tapml.plan.plan_notes import BRANCHES
from tapml_targets.errors import InputError
from tapml_targets.installed import package_version
from tapml_targets.library import Library

Array: TypeAlias = npt.NDArray[Any]

_LICENCES: Final = ("LICENSE", "LICENCE", "COPYING", "NOTICE")
_MOST_LICENCES: Final = 8
_LARGEST_LICENCE: Final = 1 << 20
# What a manifest takes for a name has none of these.
_NO_NAME: Final = re.compile(r"[^\w.+-]", re.ASCII)
_LONGEST_STEM: Final = 100
_VERSIONS: Final = ("tapml", "apache-tvm", "apache-tvm-ffi", "torch", "transformers", "numpy")


@dataclass(frozen=True)
class Shipped:
    """A moved model with the contents of its package.

    The plan has no functions, bodies or origins; weights are read when they are used; `tokenizer`
    is the content of the tokenizer's file; `sample` is a text of the session for checks elsewhere.
    """

    model: StoredModel
    plan: GraphPlan
    library: Library
    weights: Mapping[str, Array]
    device: ValidatedDevice
    verdict: Mapping[str, Any]
    note: TokenizerNote
    tokenizer: bytes | None
    licences: Mapping[str, bytes]
    versions: Mapping[str, str]
    sample: Sample | None
    chat_template: ChatTemplate | None = None

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of each weight."""
        return {name: each.dtype for name, each in self.plan.weights.items()}


def open_passed(session: Path) -> FinishedSession:
    """Open a session that has ended with a pass, and knows where.

    Raises
    ------
    InputError
        If it has not.
    """
    finished = open_finished(session)
    if finished.validated is None or finished.verdict.get("status") != "pass":
        raise InputError(
            f"the report of the session in {session} is missing, damaged or not a pass, and a "
            f"package says what it was validated on: continue with "
            f"`tapml offload --session {session}`"
        )
    return finished


def of_session(finished: FinishedSession) -> Shipped:
    """What ships of a session.

    Raises
    ------
    InputError
        If the model's folder has a tokenizer that cannot be loaded.
    """
    assert finished.validated is not None  # noqa: S101 - open_passed has seen to it
    model = finished.model
    if isinstance(model, StoredModule):
        note, tokenizer = TokenizerNote("none", f"it takes arrays, {model.signature}"), None
    else:
        note, tokenizer = packaged_tokenizer(finished.model_folder, finished.texts)
    home = home_of(finished.model_folder)
    return Shipped(
        model=model,
        plan=_slim(finished.plan),
        library=finished.library,
        weights={name: finished.weights[name] for name in finished.plan.weights},
        device=finished.validated,
        verdict=finished.verdict,
        note=note,
        tokenizer=tokenizer,
        # Without a tokenizer it takes no text, and so no conversation.
        chat_template=None if tokenizer is None else read_chat_template(home),
        licences=licences_of(finished.model_folder),
        versions=_versions(),
        sample=finished.sample,
    )


def of_package(path: Path, progress: Callable[[int, int], None] | None = None) -> Shipped:
    """What ships of a package; all of it is checked against its hashes.

    Raises
    ------
    InputError
        If it is no package, is damaged or was edited.
    """
    runnable = open_package(path, verify=True, progress=progress)
    files = PackageFiles(path)
    contents = files.read_all()
    return Shipped(
        model=runnable.model,
        plan=runnable.plan,
        library=runnable.library,
        weights={name: runnable.weights[name] for name in runnable.plan.weights},
        device=files.manifest.device,
        verdict=files.manifest.verdict,
        note=files.manifest.tokenizer,
        tokenizer=contents.get(files.manifest.tokenizer.file),
        chat_template=runnable.chat_template,
        licences={name: each for name, each in contents.items() if is_licence(name)},
        versions=files.manifest.versions,
        sample=files.manifest.sample,
    )


def is_licence(name: str) -> bool:
    """Whether a file of this name holds a licence."""
    path = Path(name)
    return path.stem.upper().startswith(_LICENCES) and path.suffix in ("", ".txt", ".md")


def licences_of(folder: Path) -> dict[str, bytes]:
    """The licence files of a model's folder, each under a name that a manifest takes."""
    found: dict[str, bytes] = {}
    for path in sorted(home_of(folder).iterdir()):
        if is_licence(path.name) and path.is_file() and path.stat().st_size <= _LARGEST_LICENCE:
            stem = _NO_NAME.sub("-", path.stem)[:_LONGEST_STEM]
            while f"{stem}{path.suffix}" in found:
                stem += "+"
            found[f"{stem}{path.suffix}"] = path.read_bytes()
    return dict(list(found.items())[:_MOST_LICENCES])


def _versions() -> dict[str, str]:
    found = {name: package_version(name) for name in _VERSIONS}
    known = {name: version for name, version in found.items() if version is not None}
    return {"tapml": "source", **known, "python": platform.python_version()}


def _slim(plan: GraphPlan) -> GraphPlan:
    """`plan` without functions, bodies, torch forms and origins: the kernels are in the Library.

    What stays of an operator is its parameters, which give a device's limits at the longest input.
    It runs like `plan` where every operator is compiled, and nothing can be compiled from it. Of
    its metadata, that of :func:`tapml.plan.plan_notes.notes_of` stays.
    """
    return replace(
        plan,
        operators={name: _operator(each) for name, each in plan.operators.items()},
        entries={name: _entry(each) for name, each in plan.entries.items()},
        metadata={key: text for key, text in plan.metadata.items() if key == BRANCHES},
    )


def _operator(operator: Operator) -> Operator:
    return replace(operator, function="", script="", body=None, variants={}, torch_forms=())


def _entry(entry: Entry) -> Entry:
    steps = (
        structs.replace(step, origins=()) if isinstance(step, CallStep) else step
        for step in entry.steps
    )
    return replace(entry, steps=tuple(steps))
