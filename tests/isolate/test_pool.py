"""A child that dies takes nothing along, and leaves a report."""

from __future__ import annotations

import doctest
import os
import signal
import socket
from pathlib import Path

import numpy as np
import pytest

import tapml.isolate.pool
from tapml.isolate import child
from tapml.isolate.death import ChildDiedError
from tapml.isolate.environment import Environment
from tapml.isolate.frame import Channel, encode
from tapml.isolate.pool import Pool
from tapml_targets.errors import InputError, LimitExceededError, ProtocolError, TapmlError
from tests.isolate.jobs import name, names
from tests.isolate.processes import PATIENCE_SECONDS, alive, descriptors, servers, wait_until


def test_the_example_runs() -> None:
    failed, attempted = doctest.testmod(tapml.isolate.pool)
    assert attempted
    assert not failed


def test_a_job_gets_its_payload_and_gives_its_result_back(pool: Pool) -> None:
    payload = {"text": "ü", "bytes": b"\x00\xff" * 1_000_000, "numbers": [1, 2.5, None]}
    assert pool.submit(name("echo"), payload).result() == payload


def test_arrays_travel_both_ways_and_leave_no_descriptor_behind(pool: Pool) -> None:
    large, small = np.ones(16 << 20, np.float32), np.arange(3)
    arrays = {"large": large, "small": small}
    pool.submit(name("doubled"), arrays).result()
    before = descriptors()
    kept = [pool.submit(name("doubled"), arrays).result() for _ in range(3)]
    for found in kept:
        assert found["large"].nbytes == 64 << 20
        np.testing.assert_array_equal(found["large"], large * 2, strict=True)
        np.testing.assert_array_equal(found["small"], small * 2, strict=True)
    wait_until(lambda: descriptors() <= before)


def test_preloaded_modules_are_there_before_the_job_runs(pool: Pool) -> None:
    assert pool.submit(name("loaded"), "wave").result() is True


def test_every_job_is_a_fork_of_one_server(pool: Pool) -> None:
    found = [pool.submit(name("processes")).result() for _ in range(3)]
    assert len({parent for parent, _ in found}) == 1
    assert len({own for _, own in found}) == 3


def test_an_error_of_the_tree_keeps_its_class_and_message(pool: Pool) -> None:
    with pytest.raises(LimitExceededError, match=r"^needs 512 threads$"):
        pool.submit(name("refuse"), "needs 512 threads").result()


def test_any_other_error_arrives_with_its_traceback_and_output(pool: Pool) -> None:
    with pytest.raises(TapmlError, match="KeyError: 'lost'") as caught:
        pool.submit(name("fail"), "lost").result()
    trace, printed = caught.value.__notes__
    assert "raise KeyError(message)" in trace
    assert printed == "failing"


def test_a_result_that_cannot_be_sent_is_the_jobs_error(pool: Pool) -> None:
    with pytest.raises(InputError, match=r"the message\['result'\] is a object"):
        pool.submit(name("nothing_that_can_be_sent")).result()


def test_a_crash_is_reported_with_its_signal_and_last_words(pool: Pool) -> None:
    with pytest.raises(ChildDiedError, match="was killed by SIGSEGV") as caught:
        pool.submit(name("crash")).result()
    assert caught.value.report.signal_number == signal.SIGSEGV
    assert "about to read address zero" in caught.value.report.stderr_tail


def test_an_exit_without_a_result_is_reported_with_its_code(pool: Pool) -> None:
    with pytest.raises(ChildDiedError, match="exited with code 7") as caught:
        pool.submit(name("leave"), 7).result()
    assert caught.value.report.stderr_tail == "leaving"


def test_a_job_that_hangs_is_ended_at_its_deadline_and_others_go_on(pool: Pool) -> None:
    hanging = pool.submit(name("hang"), deadline_seconds=0.3)
    assert pool.submit(name("echo"), 1).result() == 1
    with pytest.raises(ChildDiedError, match=r"did not finish within 0\.3 s"):
        hanging.result(PATIENCE_SECONDS)
    assert pool.submit(name("echo"), 2).result() == 2


def test_a_deadline_also_ends_what_the_job_started(pool: Pool, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    # Until it was long enough to have written the note.
    for seconds in (2, 10, 50):
        job = pool.submit(name("announce"), str(note), deadline_seconds=seconds)
        with pytest.raises(ChildDiedError):
            job.result(2 * PATIENCE_SECONDS)
        if note.exists():
            break
    wait_until(lambda: not any(map(alive, map(int, note.read_text().split()))))


def test_what_a_job_leaves_running_ends_with_it(pool: Pool, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(ChildDiedError, match="exited with code 0 and no result"):
        pool.submit(name("leave_a_process"), str(note)).result()
    wait_until(lambda: not alive(int(note.read_text())))


def test_a_program_that_a_job_starts_gets_none_of_the_pools_sockets(pool: Pool) -> None:
    assert pool.submit(name("descriptors_of_a_program")).result() == []


def test_jobs_run_side_by_side(pool: Pool, tmp_path: Path) -> None:
    marks = [str(tmp_path / "one"), str(tmp_path / "other")]
    jobs = [
        pool.submit(name("meet"), order, deadline_seconds=PATIENCE_SECONDS)
        for order in (marks, marks[::-1])
    ]
    assert [job.result(2 * PATIENCE_SECONDS) for job in jobs] == [True, True]


def test_an_unknown_job_is_refused_with_the_known_ones(pool: Pool) -> None:
    with pytest.raises(InputError, match=r"unknown job 'os:system'; known: .*jobs:announce, "):
        pool.submit("os:system")


def test_a_child_refuses_a_job_that_is_not_registered() -> None:
    near, far = socket.socketpair()
    ours, theirs = Channel(near), Channel(far)
    ours.send(encode({"job": "os:getpid", "payload": None, "create": False}))
    ours.send(encode({"job": name("echo"), "payload": 5, "create": False}))
    near.shutdown(socket.SHUT_WR)
    child.serve(theirs, {name("echo")})
    (refused, _), (done, _) = ours.receive(wait=True)
    ours.close()
    theirs.close()
    assert refused["error"] == ProtocolError.__name__
    assert "'os:getpid' is not registered" in refused["message"]
    assert done == {"result": 5}


@pytest.mark.parametrize("wrong", ["compile", "a.b", "a:b.c", "a b:c", ":c", "a:"])
def test_a_job_must_be_named_by_module_and_function(wrong: str) -> None:
    with pytest.raises(InputError, match=r"package\.module:function"):
        Pool([wrong])


def test_a_pool_survives_the_death_of_its_server(tmp_path: Path) -> None:
    before = servers()
    with Pool(names(), workers=1) as pool:
        note = tmp_path / "pids"
        hanging = pool.submit(name("announce"), str(note))
        waiting = pool.submit(name("echo"), 2)
        wait_until(lambda: note.exists() and note.read_text().endswith("\n"))
        for pid in set(servers()) - set(before):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(ChildDiedError, match="was killed by SIGKILL"):
            hanging.result(PATIENCE_SECONDS)
        assert waiting.result(PATIENCE_SECONDS) == 2
        wait_until(lambda: not any(map(alive, map(int, note.read_text().split()))))


def test_a_server_that_cannot_start_fails_every_job_that_waits_for_it() -> None:
    with Pool(names(), workers=1, environment=Environment(preload=("no_such_module",))) as pool:
        jobs = [pool.submit(name("echo"), number) for number in range(3)]
        for job in jobs:
            with pytest.raises(ChildDiedError, match="No module named 'no_such_module'"):
                job.result(PATIENCE_SECONDS)


def test_a_child_that_writes_to_its_socket_fails_alone(pool: Pool) -> None:
    babbling = pool.submit(name("babble"))
    with pytest.raises(ProtocolError, match="a message"):
        babbling.result(PATIENCE_SECONDS)
    assert pool.submit(name("echo"), 3).result(PATIENCE_SECONDS) == 3


def test_jobs_are_answered_after_a_server_broke_the_protocol() -> None:
    garbling = Environment(preload=("tests.isolate.garbling",))
    with Pool(names(), workers=1) as pool:
        # Jobs that answer nothing: an answer may come before the pool reads what is no message.
        before = pool.submit(name("hang"), environment=garbling)
        with pytest.raises(ChildDiedError, match="a message"):
            before.result(PATIENCE_SECONDS)
        after = pool.submit(name("hang"), environment=garbling)
        with pytest.raises(ChildDiedError, match="a message"):
            after.result(PATIENCE_SECONDS)
        assert pool.submit(name("echo"), 1).result(PATIENCE_SECONDS) == 1


def test_closing_ends_running_jobs_and_refuses_new_ones() -> None:
    pool = Pool(names(), workers=1)
    jobs = [pool.submit(name("hang")) for _ in range(2)]
    pool.close()
    for job in jobs:
        with pytest.raises(ChildDiedError, match="its pool or worker was closed"):
            job.result(PATIENCE_SECONDS)
    with pytest.raises(InputError, match="the pool is closed"):
        pool.submit(name("echo"), 1)
    pool.close()
