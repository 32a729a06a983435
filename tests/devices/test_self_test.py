"""The same self-test at the far end of a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tapml.devices import self_test as elsewhere
from tapml.devices.reach import open_device
from tapml.devices.self_test import self_test_over
from tapml_rpc.local import open_local
from tapml_rpc.session import Session
from tapml_targets.library import Library
from tapml_targets.opencl.self_test import self_test_library
from tapml_targets.self_test.facts import SelfTest, changed_facts
from tapml_targets.self_test.known import self_test
from tests.conftest import RequireDevice
from tests.rpc.peers import ServerProcess


def test_it_finds_over_a_session_what_it_finds_beside_the_driver(
    require_device: RequireDevice,
) -> None:
    for device in require_device("opencl"):
        near = self_test(device)
        assert near is not None
        with open_local(device) as session:
            held = session.held_bytes
            far = self_test_over(session)
            assert session.held_bytes == held
            session.fence()
        assert far.problems == ()
        assert changed_facts(near, far) == ()
        assert far.digest == near.digest


def edited(old: str, new: str) -> dict[str, Library]:
    library = self_test_library("core")
    (module,) = library.modules
    assert old.encode() in module.code
    code = module.code.replace(old.encode(), new.encode())
    return {"core": replace(library, modules=(replace(module, code=code),))}


def test_a_part_that_fails_leaves_the_session_usable(require_device: RequireDevice) -> None:
    device, *_ = require_device("opencl")
    with open_local(device) as session:
        library = edited("get_local_id", "no_such_function")
        found = self_test_over(session, libraries=library)
        assert [problem.partition(":")[0] for problem in found.problems] == ["core"]
        assert found.fact("float64_nan") is not None
        buffer = session.allocate(4)
        session.write(buffer, b"abcd")
        assert bytes(session.read(buffer)) == b"abcd"


def test_a_kernel_that_hangs_is_a_finding_and_the_session_is_gone(
    require_device: RequireDevice,
) -> None:
    device, *_ = require_device("opencl")
    with open_local(device, kernel_deadline=1.5) as session:
        endless = "for (volatile int k = 0; k < 1; k = 0) ; shared[i] = i + 1;"
        found = self_test_over(session, libraries=edited("shared[i] = i + 1;", endless))
    assert found.fact("loop_iterations") is not None
    assert found.problems[0].startswith("core: ")
    assert "deadline" in found.problems[0] or "lost" in found.problems[0]
    assert found.fact("float64_nan") is None


def test_of_two_equal_boards_each_is_measured_once(
    require_device: RequireDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_device("opencl")
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path))
    measured: list[str] = []

    def measure(session: Session) -> SelfTest:
        measured.append(board.address)
        return SelfTest((), (), float(len(measured)))

    monkeypatch.setattr(elsewhere, "self_test_over", measure)
    with ServerProcess() as one, ServerProcess() as two:
        found = []
        for board in (one, two, one, two):
            with open_device(board.address) as session:
                found.append(elsewhere.session_self_test(session))
    assert measured == [one.address, two.address]
    assert found[:2] == found[2:] and found[0] != found[1]
