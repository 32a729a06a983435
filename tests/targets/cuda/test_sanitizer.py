"""compute-sanitizer's reports become messages; where it cannot run, what is missing is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tapml_targets.check_messages import Message, Place
from tapml_targets.checker import checker_of, command_prefix
from tapml_targets.cuda import sanitizer
from tapml_targets.driver_discovery import driver_discovery
from tapml_targets.errors import InputError, SetupError

# As NVIDIA's manual prints them.
MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at out_of_bounds_kernel()+0x30 in kernels.cu:39
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x87654320 is out of bounds
=========
========= Invalid __shared__ read of size 4 bytes
=========     at 0x110 in kernels.cu:27:unaligned_kernel(int *)
=========     by thread (3,0,0) in block (1,0,0)
=========     Address 0x400100001 is misaligned
=========
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sumKernel(int *, int *)+0x90 in kernels.cu:40
=========     and Read access at sumKernel(int *, int *)+0x270 in kernels.cu:44 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
OTHERS = """\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at vectorAdd(int *, int *)+0x70 in kernels.cu:7
=========     by thread (31,0,0) in block (0,0,0)
=========     Address 0x7f0000000010
=========
========= Barrier error detected. Divergent thread(s) in block.
=========     at divergent_kernel(int *)+0xc0 in kernels.cu:19
=========     by thread (32,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 2 errors
"""


def test_accesses_are_read_with_kernel_line_and_thread() -> None:
    first, second = sanitizer.read_messages(MEMCHECK)
    assert first == Message(
        "out-of-bounds write",
        "Invalid __global__ write of size 4 bytes",
        "out_of_bounds_kernel",
        (Place(39, 0, "write", "(0,0,0)", "(0,0,0)"),),
        "global",
        0x87654320,
        4,
    )
    assert (second.kind, second.kernel, second.address_space) == (
        "unaligned access", "unaligned_kernel", "local",
    )  # fmt: skip
    assert second.places == (Place(27, 0, "read", "(3,0,0)", "(1,0,0)"),)


def test_a_race_has_both_its_lines() -> None:
    (race,) = sanitizer.read_messages(RACECHECK)
    assert (race.kind, race.kernel) == ("data race", "sumKernel")
    assert [(place.access, place.line) for place in race.places] == [("write", 40), ("read", 44)]


def test_unwritten_memory_and_divergent_barriers_are_read() -> None:
    unwritten, barrier = sanitizer.read_messages(OTHERS)
    assert (unwritten.kind, unwritten.places[0].line) == ("uninitialised value", 7)
    assert (barrier.kind, barrier.places[0].access, barrier.kernel) == (
        "barrier divergence", "barrier", "divergent_kernel",
    )  # fmt: skip


def test_it_stands_before_the_command_with_its_log_and_one_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, log = tmp_path / "compute-sanitizer", tmp_path / "log"
    monkeypatch.setenv(sanitizer.TOOL_VARIABLE, "racecheck")
    words = sanitizer.prefix(program, log)
    assert words[:3] == (str(program), "--tool", "racecheck")
    assert words[-2:] == ("--log-file", str(log))
    monkeypatch.setenv(sanitizer.TOOL_VARIABLE, "leakcheck")
    with pytest.raises(InputError, match="is one of memcheck, racecheck"):
        sanitizer.prefix(program, log)


def test_what_is_missing_is_named_and_the_simulator_checks_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sanitizer, "_gpus", lambda: 0)
    assert checker_of("cuda").NAME == "tapml's simulator"
    assert command_prefix(checker_of("cuda"), Path("x"), Path("log")) == ()
    monkeypatch.setenv("TAPML_CUDA_CHECKER", "compute-sanitizer")
    with pytest.raises(SetupError, match="this machine has none with a driver"):
        checker_of("cuda").find_checker()
    monkeypatch.setattr(sanitizer, "_gpus", lambda: 1)
    monkeypatch.setattr(sanitizer, "_program", lambda: None)
    with pytest.raises(SetupError, match="install the package cuda-sanitizer"):
        checker_of("cuda").find_checker()
    monkeypatch.setattr(sanitizer, "_program", lambda: Path("/bin/compute-sanitizer"))
    monkeypatch.delenv("TAPML_CUDA_CHECKER")
    assert checker_of("cuda").NAME == "compute-sanitizer"


def test_a_process_that_is_watched_does_not_believe_the_devices_of_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwatched = driver_discovery("cuda").drivers_state()
    monkeypatch.setenv(sanitizer.LOG_VARIABLE, str(tmp_path / "log"))
    assert driver_discovery("cuda").drivers_state() != unwatched
