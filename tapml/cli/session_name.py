"""Catches mistyped names of session folders."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

from tapml.session.folder import is_session
from tapml_targets.errors import InputError

_NEAR: Final = 0.8


def check_session_name(folder: Path, model: str) -> None:
    """Refuse a new session whose name resembles that of an existing one, if no model is given.

    Names that differ only in digits, such as `run-1` and `run-2`, are a series.

    Raises
    ------
    InputError
        If the name looks mistyped.
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
            f"To start a new one with the shipped model, give --model {model}"
        )


def _letters(name: str) -> str:
    return "".join(each for each in name if not each.isdigit())
