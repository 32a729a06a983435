"""Hashes of the tests of each operator, computed in one pass over the suite and stored.

A verdict depends on its tests. Querying the suite for each of hundreds of operators would read its
index each time.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from tapml.session.keys import tests_key
from tapml.suite.index import INDEX_NAME

if TYPE_CHECKING:
    from tapml.runs.journal import Journal
    from tapml.suite.suite import Suite

SETTING: Final = "suite keys"
_NONE: Final = tests_key(())


class _Known(msgspec.Struct):
    """The keys by operator, and the index file that they were read from."""

    index: list[str | int]
    keys: dict[str, str]


class SuiteKeys:
    """The keys of a suite's tests by operator.

    Parameters
    ----------
    suite
        A finished suite, which does not change any more.
    journal
        Stores the keys; they are valid until the suite's index changes.
    """

    def __init__(self, suite: Suite, journal: Journal) -> None:
        state = (suite.path / INDEX_NAME).stat()
        index: list[str | int] = [
            suite.plan_hash,
            suite.weights_hash,
            state.st_size,
            state.st_mtime_ns,
        ]
        known = _read(journal.read_setting(SETTING), index)
        if known is None:
            known = _keys(suite)
            journal.write_setting(SETTING, msgspec.json.encode(_Known(index, known)).decode())
        self._keys = known

    def of(self, operator: str) -> str:
        """:func:`tapml.session.keys.tests_key` of the operator's tests."""
        return self._keys.get(operator, _NONE)


def _keys(suite: Suite) -> dict[str, str]:
    digests: dict[str, hashlib._Hash] = {}
    for test in suite.tests():
        line = f"{test.id} {test.stored_key}"
        known = digests.get(test.operator)
        if known is None:
            digests[test.operator] = hashlib.sha256(line.encode())
        else:
            known.update(f"\n{line}".encode())
    return {operator: digest.hexdigest() for operator, digest in digests.items()}


def _read(text: str | None, index: list[str | int]) -> dict[str, str] | None:
    """The stored keys, if they belong to this index."""
    try:
        known = msgspec.json.decode(text or "null", type=_Known | None)
    except (ValueError, RecursionError):
        return None
    return known.keys if known is not None and known.index == index else None
