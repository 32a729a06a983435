"""Tries a board: compiles an operator here, runs it there and checks the result.

    python scripts/try_board.py --address tcp://127.0.0.1:9190     # a board that serves already
    sudo python scripts/try_board.py --emulate /var/tmp/board      # one that is made here

The second makes an aarch64 root file system of Debian in a folder (kept, so that another run is
quick), installs the base install and PoCL in it, serves from it under qemu-user as an account
without rights, and runs the same check. It takes root, and the packages mmdebstrap, arch-test and
qemu-user-static with binfmt_misc mounted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import torch

from tapml import Module
from tapml.compiler.compiler import Compiler
from tapml.compiler.link import link_entries
from tapml.execute.plan_runner import PlanRunner
from tapml_rpc.client import connect
from tapml_targets.library import Library
from tapml_targets.target import Target

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = "ca-certificates,ocl-icd-libopencl1,pocl-opencl-icd,python3,python3-venv"
PLATFORMS: Final = ("manylinux2014", "manylinux_2_17", "manylinux_2_26", "manylinux_2_28")
# Tags for the board's Debian: Python 3.11 and glibc 2.36.
PYTHON: Final = "311"
PORT: Final = 9190
# Emulated, the first kernel takes a minute to compile.
DEADLINE_SECONDS: Final = 600.0


def check(address: str) -> float:
    """Run a softmax compiled here on the device; return the largest absolute error.

    Raises
    ------
    TapmlError
        If the device cannot be reached or does not run it.
    """
    given = np.random.default_rng(1).standard_normal((4, 33)).astype(np.float32)
    module = Module(torch.nn.Softmax(dim=-1), "softmax", inputs=[given])
    with connect(address, timeout=60, kernel_deadline=DEADLINE_SECONDS) as session:
        device = session.device
        print(f"{address}: {device.name}, {device.driver_version}", flush=True)
        target = Target(device.platform, limits=device.limits)
        with Compiler() as compiler:
            compiled = list(compiler.compile_all(module.plan.operators.values(), target))
        libraries = {o.name: each for o, each in compiled if isinstance(each, Library)}
        library = link_entries(module.plan, libraries)
        begun = time.perf_counter()
        with PlanRunner(module.plan, module.weights, library, session) as runner:
            result = runner.run("softmax", {module.inputs[0].name: given})
        seconds = time.perf_counter() - begun
    expected = torch.softmax(torch.from_numpy(given), -1).numpy()
    error = float(np.abs(result[module.output[0].name] - expected).max())
    print(f"softmax: largest error {error:.3g}, {seconds:.1f} s with upload and build", flush=True)
    return error


def call(*command: str | Path) -> None:
    """Run a command and check its exit code."""
    subprocess.run([str(word) for word in command], check=True)


def make_board(folder: Path) -> Path:
    """Make a root file system in `folder` if missing, and install tapml in it."""
    board, wheels = folder / "root", folder / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    if not (board / "usr/bin/python3").exists():
        shutil.rmtree(board, ignore_errors=True)
        options = ("--mode=root", "--variant=minbase", "--architectures=arm64")
        call("mmdebstrap", *options, f"--include={PACKAGES}", "bookworm", board)
    shutil.rmtree(wheels, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    call(*pip, "wheel", "--no-deps", "-w", wheels, ROOT)
    tags = [word for name in PLATFORMS for word in ("--platform", f"{name}_aarch64")]
    here = next(wheels.glob("tapml-*.whl"))
    chosen = ["--only-binary=:all:", "--python-version", PYTHON, *tags]
    call(*pip, "download", *chosen, "-d", wheels, f"{here}[opencl]")
    shutil.rmtree(board / "wheels", ignore_errors=True)
    shutil.copytree(wheels, board / "wheels")
    with mounted(board):
        inside(board, "useradd", "--system", "--create-home", "tapml", may_fail=True)
        inside(board, "python3", "-m", "venv", "/opt/tapml")
        install = ("/opt/tapml/bin/pip", "--quiet", "install", "--no-index", "--find-links=/wheels")
        inside(board, *install, "tapml[opencl]")
        # pip would keep another wheel of the same version.
        inside(board, *install, "--force-reinstall", "--no-deps", "tapml")
    return board


@contextmanager
def mounted(board: Path) -> Iterator[None]:
    """Mount the system folders: PoCL finds no processors without /sys."""
    places = [board / "proc", board / "sys", board / "dev"]
    call("mount", "-t", "proc", "proc", places[0])
    try:
        for place in places[1:]:
            call("mount", "--bind", f"/{place.name}", place)
        yield
    finally:
        for place in reversed(places):
            # Lazily, because a worker may still be ending and this machine's /dev must not stay
            # mounted.
            subprocess.run(["umount", "--lazy", str(place)], check=False, stderr=subprocess.DEVNULL)


def guest(board: Path, command: Sequence[str], *, user: str) -> tuple[list[str], dict[str, str]]:
    """A command line in the root file system, and its environment."""
    path = "/opt/tapml/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    home = "/root" if user == "root" else "/home/tapml"
    # Emulated, the probe takes longer than on a board.
    environ = {"PATH": path, "HOME": home, "TAPML_PROBE_SECONDS": "300"}
    return ["chroot", f"--userspec={user}", str(board), *command], environ


def inside(board: Path, *command: str, may_fail: bool = False, user: str = "root") -> None:
    """Run a command in the root file system."""
    words, environ = guest(board, command, user=user)
    subprocess.run(words, check=not may_fail, env=environ)


@contextmanager
def served(board: Path) -> Iterator[str]:
    """Address of a server in the root file system."""
    options = ["--device", "opencl:0", "--bind", f"tcp://127.0.0.1:{PORT}"]
    options += ["--kernel-deadline", str(DEADLINE_SECONDS)]
    words, environ = guest(board, ["tapml", "rpc", "serve", *options], user="tapml")
    with subprocess.Popen(
        words, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            if not line:
                raise SystemExit("the server in the emulated board ended before it served")
            yield str(json.loads(line)["address"])
        finally:
            server.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("--address", help="of a board that serves")
    way.add_argument("--emulate", type=Path, metavar="FOLDER", help="make a board here")
    arguments = parser.parse_args()
    if arguments.address:
        return int(check(arguments.address) > 1e-6)
    if os.geteuid() != 0:
        parser.error("--emulate takes root: it mounts and changes root directories")
    board = make_board(arguments.emulate.resolve())
    with mounted(board):
        inside(board, "tapml", "doctor", "opencl", may_fail=True, user="tapml")
        with served(board) as address:
            return int(check(address) > 1e-6)


if __name__ == "__main__":
    sys.exit(main())
