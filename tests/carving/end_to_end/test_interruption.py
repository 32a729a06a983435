"""A carve that is killed, interrupted, or finds the disk full."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from tapml.carving.record import carve
from tapml.plan import format as plan_format
from tapml.suite.suite import Suite
from tapml_targets.errors import EXIT_INTERRUPTED, EXIT_USAGE, InputError, SetupError
from tests.conftest import SEED
from tests.offload.commands import Started
from tests.small_llama import PROMPTS, SmallLlama

SECONDS = 120


@pytest.fixture(scope="module")
def files(llama: SmallLlama, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "plan").write_bytes(plan_format.pack(llama.plan))
    np.savez(folder / "weights.npz", allow_pickle=False, **llama.weights)
    return [str(folder / "plan"), str(folder / "weights.npz")]


@contextmanager
def carving(files: list[str], suite: Path, *more: str) -> Iterator[Started]:
    arguments = [*files, str(suite), *more]
    process = Started(arguments, dict(os.environ), "tests.carving.interrupted_carve:main")
    try:
        yield process
    finally:
        process.kill()
        process.communicate(SECONDS)


def wait_for_carving(process: Started) -> None:
    assert process.stdout.readline() == "carving\n", process.communicate(SECONDS)[1]


def test_a_killed_carve_leaves_a_suite_that_opens_and_is_replaced_by_the_next(
    files: list[str], llama: SmallLlama, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    with carving(files, path) as process:
        wait_for_carving(process)
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS)
    partial = tmp_path / "s.partial"
    with pytest.raises(InputError, match=r"there is no suite.*s\.partial, which can be opened"):
        Suite.open(path)
    suite = wait_until_stored(partial)
    assert not suite.complete
    for test in list(suite.tests())[::7]:
        written = [np.empty_like(expected) for expected in test.read_outputs(verify=True)]
        llama.reference[test.operator](*test.read_inputs(verify=True), *written)
        for got, expected in zip(written, test.read_outputs(), strict=True):
            assert got.tobytes() == expected.tobytes()
    suite.close()
    carve(llama.model, llama.executor(), PROMPTS[:1], path, max_new_tokens=1).close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("both", [False, True], ids=["the carve", "its storing process too"])
def test_killed_at_any_moment_what_opens_is_whole(
    files: list[str], llama: SmallLlama, tmp_path: Path, both: bool
) -> None:
    moments = random.Random(SEED + both)
    tests = number = 0
    # Both may die before anything was committed.
    while not tests and number < 20:
        number += 1
        path = tmp_path / str(number)
        with carving(files, path) as process:
            wait_for_carving(process)
            time.sleep(moments.uniform(0.0, 1.5))
            children = storing_processes(process.pid)
            assert children
            # With both gone nobody is left to commit what was stored since the last second.
            for victim in (process.pid, *(children if both else ())):
                os.kill(victim, signal.SIGKILL)
            process.wait(SECONDS)
        wait_until_gone(children)
        with Suite.open(path.with_name(f"{number}.partial")) as suite:
            assert not suite.complete
            suite.verify()
            found = list(suite.tests())
            tests += len(found)
            for test in found[:: max(1, len(found) // 40)]:
                written = [np.empty_like(expected) for expected in test.read_outputs(verify=True)]
                llama.reference[test.operator](*test.read_inputs(verify=True), *written)
                for got, expected in zip(written, test.read_outputs(), strict=True):
                    assert got.tobytes() == expected.tobytes()
    assert tests


def storing_processes(carve: int) -> list[int]:
    found = []
    for child in Path(f"/proc/{carve}/task/{carve}/children").read_text().split():
        # One that has ended meanwhile has no command line.
        with suppress(OSError):
            if b"storing_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def wait_until_gone(processes: list[int]) -> None:
    """A storing process commits what it has and ends when it notices that the carve is gone."""
    for process in processes:
        for _ in range(SECONDS * 100):
            if not is_running(process):
                break
            time.sleep(0.01)
        else:
            raise AssertionError("a storing process outlives its carve")


def is_running(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def wait_until_stored(partial: Path) -> Suite:
    """The storing process commits what it has when it notices that the carve is gone."""
    for _ in range(SECONDS * 10):
        suite = Suite.open(partial)
        if suite.count():
            return suite
        suite.close()
        time.sleep(0.1)
    raise AssertionError("nothing was committed")


def test_an_interrupted_carve_leaves_nothing(files: list[str], tmp_path: Path) -> None:
    with carving(files, tmp_path / "s") as process:
        wait_for_carving(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == EXIT_INTERRUPTED
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(
    files: list[str], tmp_path: Path
) -> None:
    with carving(files, tmp_path / "s", str(6 << 20)) as process:
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == EXIT_USAGE
    assert "the suite cannot be written" in errors
    assert "free some space" in errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_a_storing_process_that_dies_is_one_clear_error(llama: SmallLlama, tmp_path: Path) -> None:
    def kill(_: object) -> None:
        for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"storing_process" in command:
                os.kill(int(child), signal.SIGKILL)

    with pytest.raises(SetupError, match="the process that stores the suite ended"):
        carve(
            llama.model,
            llama.executor(),
            PROMPTS,
            tmp_path / "s",
            max_new_tokens=30,
            progress=kill,
        )
    assert list(tmp_path.iterdir()) == []
    carve(llama.model, llama.executor(), PROMPTS, tmp_path / "s", max_new_tokens=2).close()
