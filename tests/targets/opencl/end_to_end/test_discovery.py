"""Which drivers a process sees: the system's, the Python environment's, and none that is faulty."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tapml_targets import child_probe, ranking
from tapml_targets.errors import NoSuchDeviceError
from tapml_targets.opencl import discovery, vendors

FAULTS = {
    "crash": "#include <stdlib.h>\n__attribute__((constructor)) void start(void) { abort(); }",
    "hang": "#include <unistd.h>\n__attribute__((constructor)) void start(void) { sleep(600); }",
    "exit": "#include <unistd.h>\n__attribute__((constructor)) void start(void) { _exit(3); }",
}


@pytest.fixture
def system_vendors(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the system's folder of drivers, in whose place it is looked up."""
    folder = tmp_path / "vendors"
    folder.mkdir()
    for file in vendors.SYSTEM_VENDORS.glob("*.icd"):
        shutil.copy(file, folder)
    monkeypatch.setattr(vendors, "SYSTEM_VENDORS", folder)
    monkeypatch.setattr(discovery, "SYSTEM_VENDORS", folder)
    monkeypatch.delenv(vendors.VENDORS_VARIABLE, raising=False)
    return folder


def faulty_driver(folder: Path, kind: str) -> Path:
    """Build a driver that misbehaves as soon as it is loaded."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here to build a faulty driver with")
    source, library = folder / f"{kind}.c", folder / f"lib{kind}.so"
    source.write_text(FAULTS[kind])
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def test_a_folder_the_user_chose_stays(own_cache: Path) -> None:
    chosen = {vendors.VENDORS_VARIABLE: "/some/where", "OTHER": "1"}
    assert discovery.prepare_environment(chosen) == chosen


def test_the_environment_keeps_everything_else(system_vendors: Path) -> None:
    found = discovery.prepare_environment({"OTHER": "1", "LD_LIBRARY_PATH": "/a"})
    assert found.pop(vendors.VENDORS_VARIABLE, "") == found.pop(vendors.OWN_VARIABLE, "")
    assert found == {"OTHER": "1", "LD_LIBRARY_PATH": "/a"}


def test_the_runtime_from_pypi_is_put_beside_the_systems_drivers(system_vendors: Path) -> None:
    driver = vendors.intel_driver()
    if driver is None:
        pytest.skip("intel-opencl-rt is not installed in this Python environment")
    (system_vendors / "other.icd").write_text("libother.so\n")
    folder = Path(discovery.prepare_environment({})[vendors.VENDORS_VARIABLE])
    contents = {file.name: file.read_text() for file in folder.iterdir()}
    assert contents["tapml-intel-cpu.icd"].strip() == str(driver)
    assert contents["other.icd"] == "libother.so\n"
    assert contents.keys() >= {file.name for file in system_vendors.iterdir()}


def test_the_drivers_of_a_caller_in_another_environment_are_not_loaded(own_cache: Path) -> None:
    """A caller that has loaded pyopencl hands on the folder that it made for its own drivers."""
    if vendors.intel_driver() is None:
        pytest.skip("intel-opencl-rt is not installed in this Python environment")
    callers = str(vendors.vendor_folder(vendors.icd_files()))
    code = (
        "from tapml_targets.opencl import vendors\n"
        "vendors.intel_driver = lambda: None\n"
        "from tapml_targets.opencl.description import every_device\n"
        "print(*(each.platform.name for each in every_device()), sep='\\n')"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {vendors.VENDORS_VARIABLE: callers, vendors.OWN_VARIABLE: callers},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "Intel" not in result.stdout


def test_a_vendor_folder_is_made_once_and_mended(own_cache: Path) -> None:
    contents = {"a.icd": b"liba.so", "b.icd": b"libb.so"}
    folder = vendors.vendor_folder(contents)
    (folder / "a.icd").write_text("changed")
    assert vendors.vendor_folder(contents) == folder
    assert {f.name: f.read_bytes() for f in folder.iterdir()} == contents
    assert vendors.vendor_folder({"a.icd": b"liba.so"}) != folder


def test_a_vendor_folder_is_made_elsewhere_where_there_is_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TAPML_CACHE_DIR", str(tmp_path / "file"))
    folder = vendors.vendor_folder({"a.icd": b"liba.so"})
    assert (folder / "a.icd").read_bytes() == b"liba.so"


def test_the_state_follows_the_drivers(system_vendors: Path) -> None:
    before = discovery.drivers_state()
    assert discovery.drivers_state() == before
    library = system_vendors / "libnew.so"
    (system_vendors / "new.icd").write_text(f"{library}\n")
    listed = discovery.drivers_state()
    library.write_bytes(b"one")
    installed = discovery.drivers_state()
    library.write_bytes(b"a newer one")
    assert len({before, listed, installed, discovery.drivers_state()}) == 4


@pytest.mark.parametrize("kind", FAULTS)
def test_a_faulty_driver_does_not_cost_the_others(
    system_vendors: Path, tmp_path: Path, kind: str
) -> None:
    library = faulty_driver(tmp_path, kind)
    (system_vendors / "0-faulty.icd").write_text(f"{library}\n")
    everything = vendors.vendor_folder(vendors.icd_files())

    def ask(environ: Mapping[str, str]) -> str:
        return child_probe.ask_child(["list", "opencl"], 5.0, environ)[1]

    assert ask(dict(os.environ) | {vendors.VENDORS_VARIABLE: str(everything)})
    faulty = discovery.set_faulty_drivers_aside(ask)
    assert list(faulty) == ["0-faulty.icd"]
    assert discovery.left_out() == faulty
    assert discovery.left_out(dict(os.environ) | {"POCL_DEBUG": "all"}) == {}, "another case"
    # What tapml has set is no user's choice, in this process and in those it starts.
    assert discovery.left_out(discovery.prepare_environment(os.environ)) == faulty
    assert ask(discovery.prepare_environment(os.environ)) == ""
    assert discovery.set_faulty_drivers_aside(ask) == {}
    discovery.forget_faulty_drivers()
    assert list(discovery.set_faulty_drivers_aside(ask)) == ["0-faulty.icd"], "it was let in again"


def test_a_missing_pyopencl_is_named_with_its_extra(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyopencl'] = None\n"
        "from tapml_targets.opencl.driver import list_devices\n"
        "list_devices()\n"
    )
    environ = {"TAPML_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert 'pip install -e ".[opencl]"' in done.stderr


def test_without_any_driver_there_is_no_device_and_a_remedy(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "none"
    empty.mkdir()
    # pyopencl's own loader always reads the folder where driver wheels put theirs. The simulator
    # that checks kernels is such a wheel; it is no device to move a model to.
    bundled = (file for folder in vendors.bundled_vendors() for file in folder.glob("*.icd"))
    if {file.name for file in bundled} - {"oclgrind.icd"}:
        pytest.skip("pyopencl's own loader has drivers of its own here")
    monkeypatch.setenv(vendors.VENDORS_VARIABLE, str(empty))
    assert all(each.device_type == "checker" for each in ranking.list_devices("opencl"))
    with pytest.raises(NoSuchDeviceError, match=r"\.\[opencl-cpu\]"):
        ranking.default_device("opencl")
