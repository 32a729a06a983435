"""What ships of a model, whatever form it takes: read from a session or from a package."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy.typing as npt

from tapml.graph.plan import GraphPlan
from tapml.models.stored import StoredDecoder
from tapml.offload.finished import FinishedSession, open_finished
from tapml.package.codecs import packaged_tokenizer
from tapml.package.files import PackageFiles
from tapml.package.load import open_package
from tapml.package.manifest import TOKENIZER, TokenizerNote, ValidatedDevice
from tapml.package.sample import Sample
from tapml.package.slim_plan import slim
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
    """A moved model with all that goes with it.

    Attributes
    ----------
    decoder
        The model's sizes.
    plan
        The plan without functions, bodies and origins.
    library
        Its linked Library.
    weights
        The plan's weights by name; read when they are used.
    device
        Where it was validated.
    verdict
        Status, one line and numbers of the session's end.
    note, tokenizer
        How text becomes tokens, and the content of ``tokenizer.json`` where there is one.
    licences
        Licence files of the model's folder by name.
    versions
        Of what made it.
    sample
        A text of the session, to be generated again elsewhere.
    """

    decoder: StoredDecoder
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
            f"package says what it was validated on: go on with `tapml offload --session {session}`"
        )
    return finished


def of_session(finished: FinishedSession) -> Shipped:
    """What ships of a session; its tokenizer is compared with the model's own here.

    Raises
    ------
    InputError
        If the model's folder has a tokenizer that cannot be loaded.
    """
    assert finished.validated is not None  # noqa: S101 - open_passed has seen to it
    note, tokenizer = packaged_tokenizer(finished.model_folder, finished.texts)
    return Shipped(
        decoder=finished.decoder,
        plan=slim(finished.plan),
        library=finished.library,
        weights={name: finished.weights[name] for name in finished.plan.weights},
        device=finished.validated,
        verdict=finished.verdict,
        note=note,
        tokenizer=tokenizer,
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
        decoder=runnable.decoder,
        plan=runnable.plan,
        library=runnable.library,
        weights={name: runnable.weights[name] for name in runnable.plan.weights},
        device=files.manifest.device,
        verdict=files.manifest.verdict,
        note=files.manifest.tokenizer,
        tokenizer=contents.get(TOKENIZER),
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
    for path in sorted(folder.iterdir()):
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
