"""What identifies the tests of each operator: looked up in one pass over the suite, and remembered.

A verdict depends on the tests it was made with. Asking the suite operator by operator reads its
index once for each of them; a session of hundreds of operators asks once and for all.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

from tapml.carving.index import INDEX_NAME
from tapml.offload.keys import tests_key

if TYPE_CHECKING:
    from tapml.carving.suite import Suite
    from tapml.offload.journal import Journal

SETTING: Final = "suite keys"
_NONE: Final = tests_key(())


class SuiteKeys:
    """The keys of a suite's tests by operator.

    Parameters
    ----------
    suite
        A suite that is whole: it does not change any more.
    journal
        Remembers the keys for as long as the suite's index is the same file.
    """

    def __init__(self, suite: Suite, journal: Journal) -> None:
        state = (suite.path / INDEX_NAME).stat()
        index = [suite.plan_hash, suite.weights_hash, state.st_size, state.st_mtime_ns]
        known = _read(journal.read_setting(SETTING), index)
        if known is None:
            known = _keys(suite)
            journal.write_setting(SETTING, json.dumps({"index": index, "keys": known}))
        self._keys = known

    def of(self, operator: str) -> str:
        """The same as :func:`tapml.offload.keys.tests_key` of the operator's tests."""
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


def _read(text: str | None, index: list[object]) -> dict[str, str] | None:
    """The remembered keys, where they are of this index."""
    try:
        data = json.loads(text or "null")
    except ValueError:
        return None
    match data:
        case {"index": found, "keys": dict(keys)} if found == index:
            return {str(name): str(key) for name, key in keys.items()}
    return None
