"""The wall clock jumps by an hour, forward and back: no deadline comes early, late or never.

A library that every process loads first adds to the wall clock what a file says; the monotonic one
it leaves alone, as the system does when somebody sets the time.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.processes import family
from scripts.wire_fuzz.bindings import SERVE_OPTIONS, address_of
from scripts.wire_fuzz.server import ServerUnderTest
from tests.conftest import RequireDevice
from tests.rpc.faults.ground import ClientProcess
from tests.rpc.tracker.trackers import TrackerProcess

HOUR = 3600
# Longer than a lease that nobody renews, a silent tracker or a silent device may last.
WATCHED_SECONDS = 20.0
KERNEL_SECONDS = 2.0

JUMPING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long long *ahead;

__attribute__((constructor)) static void begin(void) {
  int file = open(getenv("AHEAD"), O_RDONLY | O_CLOEXEC);
  ahead = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, now);
  if (ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *kept) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (kept) *kept = exact.tv_sec;
  return exact.tv_sec;
}
"""

CLIENT = f"""
import time
from tapml_rpc.tracker.request import request_device
from tapml_targets.errors import KernelTimeoutError
lease = request_device(sys.argv[2], name="jumping", timeout=60)
sessions = [
    connect(each, lease=lease.token, timeout=60, kernel_deadline={KERNEL_SECONDS})
    for each in sys.argv[3:]
]
for line in sys.stdin:
    if line == "work\\n":
        lease.check()
        for session in sessions:
            operator_test(session)
        print("works", time.time(), flush=True)
    else:
        session = sessions.pop()
        hang(session)
        began = time.monotonic()
        try:
            session.fence()
        except KernelTimeoutError:
            print("late", time.monotonic() - began, flush=True)
"""


class WallClock:
    """The clock of all processes that are started from here on."""

    def __init__(self, folder: Path) -> None:
        source, self.library, ahead = (folder / name for name in ("j.c", "jumping.so", "ahead"))
        source.write_text(JUMPING)
        command = ["cc", "-shared", "-fPIC", "-o", str(self.library), str(source), "-ldl"]
        subprocess.run(command, check=True)
        ahead.write_bytes(bytes(8))
        with ahead.open("r+b") as file:
            self._ahead = mmap.mmap(file.fileno(), 8)
        self.environ = {"LD_PRELOAD": str(self.library), "AHEAD": str(ahead)}

    def jump(self, seconds: int) -> None:
        """Have it differ from the system's by so much."""
        self._ahead[:] = struct.pack("q", seconds)


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WallClock]:
    if not sys.platform.startswith("linux") or shutil.which("cc") is None:
        pytest.skip("no C compiler makes a clock that jumps here")
    clock = WallClock(tmp_path)
    for name, value in clock.environ.items():
        monkeypatch.setenv(name, value)
    yield clock
    clock._ahead.close()


def ask(client: ClientProcess, what: str) -> None:
    """Have a client do something."""
    assert client.process.stdin is not None
    client.process.stdin.write(f"{what}\n")
    client.process.stdin.flush()


def answer(client: ClientProcess) -> float:
    """The number with which it answers, in seconds."""
    _, number = client.line().split()
    return float(number)


def test_a_wall_clock_that_jumps_changes_no_deadline(
    require_device: RequireDevice, clock: WallClock
) -> None:
    require_device("opencl")
    with TrackerProcess() as tracker:
        options = ("--tracker", tracker.address, "--name", "jumping")
        with ServerUnderTest("opencl:0", *SERVE_OPTIONS["websocket"], *options) as server:
            addresses = [address_of(binding, server.line) for binding in ("zmq", "websocket")]
            with ClientProcess(addresses[0], CLIENT, tracker.address, *addresses) as client:
                for ahead in (HOUR, -HOUR):
                    until = time.monotonic() + WATCHED_SECONDS
                    clock.jump(ahead)
                    while time.monotonic() < until:
                        ask(client, "work")
                        # It has the clock that jumps, and all that it works with.
                        assert abs(answer(client) - time.time() - ahead) < HOUR / 2
                        time.sleep(0.5)
                    for each in (*family(server.process.pid), tracker.process.pid):
                        maps = Path(f"/proc/{each}/maps").read_text("utf-8", "replace")
                        assert str(clock.library) in maps
                    # Over WebSocket, then over ZeroMQ.
                    ask(client, "hang")
                    time.sleep(KERNEL_SECONDS / 4)
                    clock.jump(-ahead)
                    assert KERNEL_SECONDS <= answer(client) < 5 * KERNEL_SECONDS
