"""The keys of all operators' tests from one pass over the suite, remembered while it stands."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tapml.session.journal import open_journal
from tapml.session.keys import tests_key as key_of_tests
from tapml.session.suite_keys import SETTING, SuiteKeys
from tapml.suite.index import INDEX_NAME
from tapml.suite.suite import Suite
from tests.offload.sessions import FinishedSession


def test_keys_are_those_of_each_operators_tests_and_are_remembered(
    finished: FinishedSession, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(finished.folder / "suite", tmp_path / "suite"))
    with Suite.open(folder) as suite, open_journal(tmp_path / "journal") as journal:
        keys = SuiteKeys(suite, journal)
        assert suite.operator_hashes
        for operator in suite.operator_hashes:
            assert keys.of(operator) == key_of_tests(suite.tests_of(operator))
        assert keys.of("no operator") == key_of_tests(())
        kept = journal.read_setting(SETTING)
        assert kept is not None
        # As they are remembered, not as they are computed.
        first = next(iter(suite.operator_hashes))
        journal.write_setting(SETTING, kept.replace(keys.of(first), "0" * 64))
        assert SuiteKeys(suite, journal).of(first) == "0" * 64
        # Another index is looked through again.
        os.utime(folder / INDEX_NAME, ns=(1, 1))
        assert SuiteKeys(suite, journal).of(first) == keys.of(first)


@pytest.mark.parametrize("text", ["{", "[]", '{"index": [], "keys": 1}'])
def test_what_is_remembered_wrong_is_computed_again(
    finished: FinishedSession, tmp_path: Path, text: str
) -> None:
    with (
        Suite.open(finished.folder / "suite") as suite,
        open_journal(tmp_path / "journal") as journal,
    ):
        journal.write_setting(SETTING, text)
        first = next(iter(suite.operator_hashes))
        assert SuiteKeys(suite, journal).of(first) == key_of_tests(suite.tests_of(first))
