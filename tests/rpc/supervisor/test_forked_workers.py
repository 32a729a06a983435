"""Workers are forked from a process that has all imported, and end as programs do."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tapml_rpc.supervisor.worker_process import PROGRAM, WorkerProcess
from tapml_targets import template as module
from tapml_targets.ranking import find_device
from tapml_targets.template import ForkedProcess, Template
from tests.rpc.faults.ground import wait_for


@pytest.fixture(scope="module")
def shared() -> Iterator[Template]:
    template = Template(PROGRAM, "cpu")
    yield template
    template.close()


def start(template: Template) -> WorkerProcess:
    worker = WorkerProcess(find_device("cpu"), allow_native=False, template=template)
    worker.wait_until_open()
    return worker


def is_forked(worker: WorkerProcess) -> bool:
    return isinstance(worker._process, ForkedProcess)


def test_how_each_child_ends_is_told(shared: Template) -> None:
    crashed, killed, ended = (start(shared) for _ in range(3))
    assert all(map(is_forked, (crashed, killed, ended)))
    os.kill(crashed.pid, signal.SIGABRT)
    wait_for(lambda: not crashed.alive())
    assert crashed.end() == "signal SIGABRT"
    assert crashed.stack().startswith("Fatal Python error: Aborted")
    assert killed.end(kill=True) == "signal SIGKILL"
    ended.let_go().join()
    assert ended.end() == "exit code 0"
    # It has no child left, and none of a child's descriptors: standard ones and its socket.
    assert shared._process is not None
    template = Path(f"/proc/{shared._process.pid}")
    wait_for(lambda: len(list((template / "fd").iterdir())) == 4)
    assert not (template / f"task/{shared._process.pid}/children").read_text()


def test_a_child_has_its_own_group_and_only_its_own_descriptors(shared: Template) -> None:
    first = start(shared)
    # Some send it to all processes of a service.
    assert shared._process is not None
    os.kill(shared._process.pid, signal.SIGINT)
    second = start(shared)
    assert is_forked(second) and os.getpgid(second.pid) == second.pid
    assert Path(f"/proc/{second.pid}/oom_score_adj").read_text() == "700\n"
    held = [len(list(Path(f"/proc/{each.pid}/fd").iterdir())) for each in (first, second)]
    assert held[0] == held[1]
    for each in (first, second):
        each.let_go().join()


def test_its_children_end_with_it_and_the_next_are_a_programs_then_a_new_ones() -> None:
    template = Template(PROGRAM, "cpu")
    worker = start(template)
    assert template._process is not None
    template._process.kill()
    wait_for(lambda: not worker.alive())
    assert worker.end() == "signal SIGKILL"
    after, later = start(template), start(template)
    assert (is_forked(after), is_forked(later)) == (False, True)
    template.close()
    wait_for(lambda: not later.alive())
    after.end(kill=True)
    for each in (worker, after, later):
        each.let_go().join()


def test_a_request_that_fails_costs_none_of_its_other_children() -> None:
    template = Template(PROGRAM, "cpu")
    worker = start(template)
    assert template._process is not None and template._requests is not None
    number = template._process.pid
    limits = resource.prlimit(number, resource.RLIMIT_NOFILE)
    resource.prlimit(number, resource.RLIMIT_NOFILE, (8, limits[1]))
    with pytest.raises(OSError, match="no process was forked: Too many open files"):
        start(template)
    resource.prlimit(number, resource.RLIMIT_NOFILE, limits)
    # It stands still for longer than is waited for, and goes on: nobody wants that child any more.
    template._requests.settimeout(0.1)
    os.kill(number, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        start(template)
    os.kill(number, signal.SIGCONT)
    # Standard ones and its child's two: it has seen the request, then the end of the socket.
    wait_for(lambda: len(list(Path(f"/proc/{number}/fd").iterdir())) == 5)
    children = Path(f"/proc/{number}/task/{number}/children")
    assert children.read_text().split() == [str(worker.pid)]
    worker.let_go().join()
    assert worker.end() == "exit code 0"
    template.close()


def test_where_it_does_not_answer_workers_are_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IMPORT_SECONDS", 0.1)
    stopped, ended = Template(PROGRAM, "cpu"), Template(PROGRAM, "cpu")
    stopped._requests = stopped._begin()
    assert stopped._process is not None
    stopped._process.send_signal(signal.SIGSTOP)
    # It may take the request yet: nobody else gets these channels.
    with pytest.raises(TimeoutError):
        start(stopped)
    # It cannot be started, or ends where its imports have started threads.
    with monkeypatch.context() as patched:
        patched.setattr(module, "_command", lambda module: ["true"])
        ended._requests = ended._begin()
    for template in (stopped, ended):
        worker = start(template)
        assert not is_forked(worker) and not template._is_usable
        worker.let_go().join()
        template.close()


def test_one_that_has_ended_and_is_not_told_yet_is_killed_without_an_error() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    status, telling = os.pipe()
    process = ForkedProcess(ended.pid, status)
    process.kill()
    assert process.poll() is None
    os.close(telling)
    assert process.wait() == -signal.SIGKILL
