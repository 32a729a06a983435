"""Reads a failing test of an operator from a repro folder or a bundle."""

from __future__ import annotations

from pathlib import Path

from tapml.bundle.bundle import is_bundle, read_bundle
from tapml.repro.folder import Repro, is_repro, read_repro
from tapml_targets.errors import InputError


def read_failure(path: Path) -> Repro | None:
    """The test in a repro folder or a bundle; None if `path` is something else.

    Raises
    ------
    InputError
        If it is damaged.
    """
    if is_bundle(path):
        return read_bundle(path)
    return read_repro(path) if is_repro(path) else None


def read_failing_test(path: Path) -> Repro:
    """The test in a repro folder or a bundle.

    Raises
    ------
    InputError
        If `path` is neither, or is damaged.
    """
    repro = read_failure(path)
    if repro is None:
        raise InputError(
            f"{path} is neither a repro folder nor a bundle: expected a folder that `tapml "
            "offload` or `tapml replay --repro` wrote, or a .tapml.zip"
        )
    return repro
