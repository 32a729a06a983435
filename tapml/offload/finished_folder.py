"""Where a session keeps the finished plan, and whether it has one: needs neither TVM nor torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tapml.offload.session import OffloadSession
from tapml_targets.errors import InputError

FINISHED: Final = "finished"
PLAN: Final = "plan.msgpack"
LIBRARY: Final = "library.msgpack"
CONSTANTS: Final = "constants.npz"
MODEL: Final = "model.json"


def check_finished(folder: Path) -> OffloadSession:
    """The session in `folder`.

    Raises
    ------
    InputError
        If there is none, or it has not ended with every operator on the target.
    """
    session = OffloadSession.open(folder)
    if not (folder / FINISHED / LIBRARY).is_file():
        raise InputError(
            f"the session in {folder} has not finished: not every operator is on the target, or "
            f"the whole model did not pass there; go on with `tapml offload --session {folder}`"
        )
    return session
