"""The float64 twins of a session's operators, compiled once.

Looking them up in the compiler's cache needs TVM and rewrites every function. So the session
stores where the code is, and a resumed session finds it in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tapml.compiler import widening
from tapml.compiler.cache import joint_hash
from tapml.compiler.reference_module import StoredReference
from tapml.compiler.twin import compile_twins, load_twins
from tapml.durable.files import write_bytes
from tapml.session.kept_model import made_by
from tapml_targets.errors import SetupError

if TYPE_CHECKING:
    from tapml.compiler.reference_module import ReferenceModule
    from tapml.plan.graph_plan import Operator

TWINS: Final = "twins.json"
_LARGEST: Final = 64 << 20


class _Kept(msgspec.Struct):
    """Where the twins' code is, and a hash of its sources."""

    made_from: str
    code: StoredReference


class KeptTwins:
    """The twins for :class:`~tapml.oracles.oracle.Oracle`; `folder` is the session's."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TWINS

    def __call__(self, operators: Iterable[Operator]) -> ReferenceModule:
        """The twins of `operators`. Raises SetupError if compiling needs a missing TVM."""
        chosen = list(operators)
        made_from = _made_from(chosen)
        stored = self._read(made_from)
        loaded = None if stored is None else load_twins(chosen, stored)
        if loaded is not None:
            return loaded
        twins = compile_twins(chosen)
        if twins.stored is not None:
            self._write(made_from, twins.stored)
        return twins

    def _read(self, made_from: str) -> StoredReference | None:
        try:
            if self._path.stat().st_size > _LARGEST:
                return None
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except (OSError, ValueError, RecursionError):
            return None
        return kept.code if kept.made_from == made_from else None

    def _write(self, made_from: str, stored: StoredReference) -> None:
        try:
            write_bytes(self._path, msgspec.json.encode(_Kept(made_from, stored)))
        except SetupError:
            return  # The next run compiles them again.


def _made_from(operators: Sequence[Operator]) -> str:
    """Hash of the operators' functions, of the compiler and of what makes twins of functions."""
    functions = (text for each in operators for text in (each.name, each.function_for("cpu")))
    versions = (f"{name} {version}" for name, version in made_by().items())
    return joint_hash((*versions, Path(widening.__file__).read_text("utf-8"), *functions))
