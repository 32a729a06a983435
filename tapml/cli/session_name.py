"""A session's folder that is written nearly as one beside it: going on with that was meant."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

from tapml.offload.session import is_session
from tapml_targets.errors import InputError

_NEAR: Final = 0.8


def check_session_name(folder: Path, model: str) -> None:
    """See that a new session, of a model that nobody named, is no mistyped name of one there.

    Names that differ in their digits alone are a series, `run-1` and `run-2`.

    Raises
    ------
    InputError
        If it is; the message names that session, and how a new one is begun all the same.
    """
    if is_session(folder):
        return
    place = folder.absolute().parent
    try:
        beside = [each.name for each in place.iterdir() if is_session(each)]
    except OSError:
        return
    near = difflib.get_close_matches(folder.name, beside, n=1, cutoff=_NEAR)
    if near and _letters(near[0]) != _letters(folder.name):
        raise InputError(
            f"there is no session in {folder}; did you mean {folder.parent / near[0]}? "
            f"A new one of the shipped model begins there with --model {model}"
        )


def _letters(name: str) -> str:
    return "".join(each for each in name if not each.isdigit())
