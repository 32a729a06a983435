"""Opens the suite of a command's folder and checks that its filters match tests."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from tapml.suite.selection import Filters
    from tapml.suite.suite import Suite


def open_suite(path: Path, filters: Filters) -> Suite:
    """Open the suite at `path`, or the one in a session or a folder of exported tests.

    Raises
    ------
    InputError
        If there is none, or no test matches the filters.
    """
    from tapml.bundle.gather import SESSION_SUITE
    from tapml.export.cases import is_export
    from tapml.session.folder import is_session
    from tapml.suite.suite import Suite

    inside = is_session(path) or is_export(path)
    suite = Suite.open(path / SESSION_SUITE if inside else path)
    try:
        if not suite.tested_operators(filters):
            tested = suite.tested_operators()
            names = [name for name in suite.operators if name in tested]
            raise InputError(
                f"no test of {path} matches the filters{_meant(names, filters)}; it has tests of "
                f"{', '.join(names) or 'no operator'} (`tapml inspect {path}`)"
            )
    except BaseException:
        suite.close()
        raise
    return suite


def _meant(names: list[str], filters: Filters) -> str:
    """The names that are like a filter which matches none."""
    from tapml.session.selection import near_names

    unknown = [each for each in filters.operators if not fnmatch.filter(names, each)]
    near = [name for each in unknown for name in near_names(names, each.strip("*?"))[:2]]
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
