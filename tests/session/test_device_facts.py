"""A session keeps what its device was measured to do; where that changes, verdicts are new."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tapml.runs import events
from tapml.session.device_facts import SELF_TEST, record_self_test
from tapml.session.keys import operator_key
from tapml.verdicts.policy import Policy
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.description import fingerprint
from tapml_targets.self_test.facts import SelfTest
from tapml_targets.self_test.known import self_test
from tests.conftest import RequireDevice
from tests.session.test_keys import OPERATOR


@pytest.fixture
def session(require_device: RequireDevice) -> Iterator[Session]:
    device, *_ = require_device("opencl")
    with open_local(device) as opened:
        yield opened


@pytest.fixture
def measured(session: Session) -> SelfTest:
    found = self_test(session.device)
    assert found is not None
    return found


def changed(measured: SelfTest) -> SelfTest:
    """The same device, were it to flush denormals today."""
    facts = tuple(
        replace(fact, value="flushed", sound=False)
        if fact.name == "float32_denormal_results"
        else fact
        for fact in measured.facts
    )
    return SelfTest(facts)


def key(session: Session) -> str:
    return operator_key(OPERATOR, "kernel", "tests", Policy(), session.device).hash


def test_the_first_measurement_leaves_every_key_as_it_was(
    tmp_path: Path, session: Session, measured: SelfTest
) -> None:
    before, known = fingerprint(session.device), key(session)
    assert record_self_test(tmp_path, session, measured, events.ignore) == measured
    assert (fingerprint(session.device), key(session)) == (before, known)
    kept = json.loads((tmp_path / SELF_TEST).read_text())
    assert kept["first"]["digest"] == kept["latest"]["digest"] == measured.digest


def test_a_resumed_session_writes_nothing_and_keeps_its_keys(
    tmp_path: Path, session: Session, measured: SelfTest
) -> None:
    record_self_test(tmp_path, session, measured, events.ignore)
    known, written = key(session), (tmp_path / SELF_TEST).stat()
    record_self_test(tmp_path, session, replace(measured, seconds=99.0), events.ignore)
    assert key(session) == known
    assert (tmp_path / SELF_TEST).stat() == written


def test_one_fact_more_is_no_change(tmp_path: Path, session: Session, measured: SelfTest) -> None:
    known = key(session)
    record_self_test(tmp_path, session, SelfTest(measured.facts[:-5]), events.ignore)
    record_self_test(tmp_path, session, measured, events.ignore)
    assert key(session) == known


def test_a_device_that_measures_otherwise_gets_new_verdicts_and_its_old_ones_back(
    tmp_path: Path, session: Session, measured: SelfTest
) -> None:
    plain, known = session.device, key(session)
    told: list[events.Event] = []
    record_self_test(tmp_path, session, measured, events.ignore)
    record_self_test(tmp_path, session, changed(measured), told.append)
    other = key(session)
    assert other != known
    (note,) = told
    assert isinstance(note, events.Note)
    assert "float32_denormal_results is flushed, was kept" in note.text
    # A later run, whose server describes the device as ever.
    session.device = plain
    record_self_test(tmp_path, session, changed(measured), events.ignore)
    assert key(session) == other
    session.device = plain
    record_self_test(tmp_path, session, measured, events.ignore)
    assert key(session) == known


def test_what_could_not_be_measured_changes_nothing(
    tmp_path: Path, session: Session, measured: SelfTest
) -> None:
    known = key(session)
    record_self_test(tmp_path, session, SelfTest((), ("it hung",)), events.ignore)
    record_self_test(tmp_path, session, measured, events.ignore)
    record_self_test(tmp_path, session, SelfTest((), ("it hung",)), events.ignore)
    assert record_self_test(tmp_path, session, None, events.ignore) == SelfTest((), ("it hung",))
    assert key(session) == known


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "tapml-self-test/1"}', "null"])
def test_a_damaged_file_is_written_again(
    tmp_path: Path, session: Session, measured: SelfTest, text: str
) -> None:
    (tmp_path / SELF_TEST).write_text(text)
    known = key(session)
    assert record_self_test(tmp_path, session, measured, events.ignore) == measured
    assert key(session) == known
    assert json.loads((tmp_path / SELF_TEST).read_text())["latest"]["digest"] == measured.digest


def test_another_device_is_measured_again(
    tmp_path: Path, session: Session, measured: SelfTest
) -> None:
    record_self_test(tmp_path, session, measured, events.ignore)
    session.device = replace(session.device, driver_version="another")
    known = key(session)
    record_self_test(tmp_path, session, changed(measured), events.ignore)
    assert key(session) == known
