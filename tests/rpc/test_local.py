"""A worker of our own comes up while its parent does other things."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tapml_rpc.local import open_local, start_local
from tapml_targets.errors import CompileError, NoSuchDeviceError
from tapml_targets.webgpu.probe import probe_library
from tests.conftest import RequireDevice
from tests.rpc.faults.ground import wait_for


def test_a_device_is_opened_when_its_server_is_up(require_device: RequireDevice) -> None:
    index = min(each.index for each in require_device("opencl"))
    starting = start_local(f"opencl:{index}")
    with starting.open() as session:
        assert session.device.index == index
        buffer = session.allocate(4)
        session.write(buffer, b"abcd")
        assert bytes(session.read(buffer, 4)) == b"abcd"


def test_a_program_that_starts_what_it_watches_stands_before_the_server(tmp_path: Path) -> None:
    program, log = tmp_path / "watch", tmp_path / "log"
    program.write_text(f'#!/bin/sh\necho "$1" > {log}; shift; exec "$@"\n')
    program.chmod(0o755)
    with open_local("cpu", prefix=(str(program), "--tool")) as session:
        buffer = session.allocate(4)
        session.write(buffer, b"abcd")
        assert bytes(session.read(buffer, 4)) == b"abcd"
    assert log.read_text() == "--tool\n"


def test_a_server_that_is_not_up_yet_is_ended(require_device: RequireDevice) -> None:
    require_device("opencl")
    starting = start_local("opencl:0")
    wait_for(lambda: hasattr(starting, "process"))
    assert starting.process.alive()
    assert starting.close()
    assert not starting.process.alive()
    starting.close()


def test_a_device_that_is_not_there_is_told_when_it_is_opened(
    require_device: RequireDevice,
) -> None:
    require_device("opencl")
    starting = start_local("opencl:99")
    with pytest.raises(NoSuchDeviceError, match="there is no device"):
        starting.open()
    assert not starting.process.alive()


def test_a_device_that_is_opened_with_a_profile_refuses_by_itself(
    require_device: RequireDevice, tmp_path: Path
) -> None:
    """The Library does not say how many threads its kernel has: WebGPU finds out."""
    device, *_ = require_device("webgpu")
    profile = tmp_path / "tiny.toml"
    profile.write_text(
        'description = "tiny"\n[limits]\nmax_threads_per_block = 32\nmax_block = [32, 32, 32]\n'
    )
    silent = probe_library("float32")
    kernels = {
        name: msgspec.structs.replace(each, threads_per_block=0)
        for name, each in silent.kernels.items()
    }
    silent = replace(silent, kernels=kernels)
    with open_local(device) as whole:
        whole.upload(silent)
    with open_local(device, limits=str(profile)) as narrow:
        assert narrow.device.limits == device.limits, "it is announced as it is"
        with pytest.raises(CompileError, match="32"):
            narrow.upload(silent)
