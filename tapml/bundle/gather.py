"""Finds the repro folders for a command: a given one, a session's, or made from a suite."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from tapml.bundle.bundle import is_bundle, unpack_bundle
from tapml.repro.folder import is_repro
from tapml_targets.errors import InputError

SESSION_REPROS: Final = "repro"
SESSION_SUITE: Final = "suite"
_SHOWN: Final = 20


def gather(
    source: Path,
    scratch: Path,
    *,
    operators: tuple[str, ...] = (),
    test: str | None = None,
    device: str | None = None,
) -> list[Path]:
    """Repro folders of the failing tests in `source`.

    Parameters
    ----------
    source
        A repro folder, a bundle, a session or a suite.
    scratch
        Parent of newly written folders.
    operators
        Patterns of operator names, for sessions and suites.
    test
        For a suite: one test, failing or not.
    device
        For a suite: the device to replay on; the default OpenCL device if None.

    Raises
    ------
    InputError
        If `source` is not one of these, or has no matching test.
    """
    if is_bundle(source):
        return [unpack_bundle(source, scratch / "unpacked")]
    if is_repro(source):
        return [source]
    # A session may have a suite and no failure, so the arguments decide.
    session = source / SESSION_REPROS
    if test is None and session.is_dir():
        found = _of_session(session, operators)
        if found:
            return found
    suite = source / SESSION_SUITE if (source / SESSION_SUITE).is_dir() else source
    if operators or test is not None:
        from tapml.bundle.from_suite import replay_to_folders

        return replay_to_folders(suite, scratch / "replayed", operators, test, device)
    if not source.exists():
        raise InputError(
            f"there is nothing at {source}: expected a repro folder, a session or a suite"
        )
    raise InputError(
        f"{source} has no failing test: name an operator (--operator) or a test (--test) of its "
        "suite, to replay it"
    )


def _of_session(folder: Path, operators: tuple[str, ...]) -> list[Path]:
    found = [
        each
        for each in sorted(folder.iterdir())
        if not operators or any(fnmatchcase(each.name, pattern) for pattern in operators)
    ]
    complete = [each for each in found if is_repro(each)]
    if found and not complete:
        names = ", ".join(each.name for each in found[:_SHOWN])
        raise InputError(
            f"no test of {names} failed: they could not be compiled, do not fit the device, or the "
            "complete model differs from the reference; see failure.json in their folders"
        )
    return complete
