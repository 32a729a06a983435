"""The float64 twins of a session's operators: as an earlier run compiled them, else compiled.

Finding out that they are compiled already takes TVM and the rewriting of every function. So the
session remembers where the code is; a resumed one has it in milliseconds, when a step asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tapml.compiler.cache import joint_hash
from tapml.compiler.stored_reference import StoredReference
from tapml.compiler.twin import compile_twins, load_twins
from tapml.durable.files import write_json
from tapml.offload.kept_model import made_by
from tapml_targets.errors import InputError, SetupError

if TYPE_CHECKING:
    from tapml.compiler.reference import ReferenceModule
    from tapml.graph.plan import Operator

TWINS: Final = "twins.json"
_LARGEST: Final = 64 << 20


class KeptTwins:
    """What :class:`~tapml.compare.oracle.Oracle` calls for its twins.

    Parameters
    ----------
    folder
        The session's.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / TWINS

    def __call__(self, operators: Iterable[Operator]) -> ReferenceModule:
        """The twins of `operators`.

        Raises
        ------
        SetupError
            If they have to be compiled and TVM is not installed.
        """
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
            data = json.loads(self._path.read_bytes())
            if not isinstance(data, dict) or data.get("made_from") != made_from:
                return None
            return StoredReference.from_json(data.get("code"))
        except (OSError, ValueError, InputError):
            return None

    def _write(self, made_from: str, stored: StoredReference) -> None:
        try:
            write_json(self._path, {"made_from": made_from, "code": stored.to_json()})
        except SetupError:
            # The next run compiles them, or looks for them, with TVM.
            return


def _made_from(operators: Sequence[Operator]) -> str:
    """Hash of the operators' functions and of what compiles them."""
    functions = (text for each in operators for text in (each.name, each.function_for("cpu")))
    return joint_hash((*(f"{name} {version}" for name, version in made_by().items()), *functions))
