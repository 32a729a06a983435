"""Where one failing test comes from: a repro folder, or a bundle."""

from __future__ import annotations

from pathlib import Path

from tapml.bundle.bundle import is_bundle, read_bundle
from tapml.carving.repro_folder import Repro, is_repro, read_repro
from tapml_targets.errors import InputError


def read_failing_test(source: Path) -> Repro:
    """The test in a repro folder or a bundle.

    Raises
    ------
    InputError
        If `source` is neither, or is damaged.
    """
    if is_bundle(source):
        return read_bundle(source)
    if is_repro(source):
        return read_repro(source)
    raise InputError(
        f"{source} is neither a repro folder nor a bundle: expected a folder that `tapml offload` "
        "or `tapml replay --repro` wrote, or a .tapml.zip"
    )


def read_failing_test(source: Path) -> Repro:
    """The test in a repro folder or a bundle, where nothing else will do.

    Raises
    ------
    InputError
        If `source` is neither, or is damaged.
    """
    repro = read_failure(source)
    if repro is None:
        raise InputError(
            f"{source} is neither a repro folder nor a bundle: expected a folder that `tapml "
            "offload` or `tapml replay --repro` wrote, or a .tapml.zip"
        )
    return repro
