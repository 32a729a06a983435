"""Which WebGPU adapters a process sees: the system's, the browser's, and none that is faulty."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tapml_targets import child_probe, ranking
from tapml_targets.errors import NoSuchDeviceError
from tapml_targets.webgpu import discovery, vendors
from tests.conftest import RequireDevice

CHOSEN = vendors.CHOSEN_VARIABLES[0]


@pytest.fixture
def manifests(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is looked up in the place of the system's and the browsers'."""
    for name in (*vendors.CHOSEN_VARIABLES, vendors.ADDED_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "icd.d"
    folder.mkdir()
    monkeypatch.setattr(discovery, "system_manifests", lambda: sorted(folder.glob("*.json")))
    monkeypatch.setattr(discovery, "browser_manifests", list)
    return folder


def manifest(folder: Path, name: str, library: Path) -> Path:
    """Write a manifest that names `library`."""
    file = folder / f"{name}.json"
    icd = {"library_path": str(library), "api_version": "1.1.0"}
    file.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    return file


@pytest.mark.parametrize("name", vendors.CHOSEN_VARIABLES)
def test_drivers_the_user_chose_stay(own_cache: Path, name: str) -> None:
    found = discovery.prepare_environment({name: "/some/where.json", "OTHER": "1"})
    assert found.pop("NODEVICE_SELECT") == "1"
    assert found == {name: "/some/where.json", "OTHER": "1"}


def test_the_browsers_driver_is_added_to_what_is_there(
    manifests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browsers = [Path("/opt/browser/vk_swiftshader_icd.json")]
    monkeypatch.setattr(discovery, "browser_manifests", lambda: browsers)
    found = discovery.prepare_environment({vendors.ADDED_VARIABLE: "/own.json"})
    assert found[vendors.ADDED_VARIABLE] == f"/own.json:{browsers[0]}"
    assert CHOSEN not in found
    assert discovery.prepare_environment(found) == found, "twice is once"


def test_a_browser_is_given_no_driver_of_another_browser(
    manifests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Firefox took SwiftShader, which Chromium brings, for this machine's driver."""
    browsers = [Path("/opt/browser/vk_swiftshader_icd.json")]
    monkeypatch.setattr(discovery, "browser_manifests", lambda: browsers)
    used = discovery.prepare_environment({vendors.ADDED_VARIABLE: "/own.json", "OTHER": "1"})
    found = discovery.browser_environment(used)
    assert (found[vendors.ADDED_VARIABLE], found["OTHER"]) == ("/own.json", "1")
    none = discovery.browser_environment(discovery.prepare_environment({}))
    assert vendors.ADDED_VARIABLE not in none


def test_a_manifest_without_its_driver_is_passed_over(tmp_path: Path) -> None:
    library = tmp_path / "libdriver.so"
    named = manifest(tmp_path, "one", library)
    assert vendors.library_of(named) is None
    library.write_bytes(b"")
    assert vendors.library_of(named) == library
    named.write_text("{")
    assert vendors.library_of(named) is None


def test_the_state_follows_the_drivers(manifests: Path, tmp_path: Path) -> None:
    before = discovery.drivers_state()
    assert discovery.drivers_state() == before
    library = tmp_path / "libnew.so"
    library.write_bytes(b"one")
    manifest(manifests, "new", library)
    installed = discovery.drivers_state()
    library.write_bytes(b"a newer one")
    assert len({before, installed, discovery.drivers_state()}) == 3


def test_a_faulty_driver_does_not_cost_the_others(
    require_device: RequireDevice, manifests: Path, tmp_path: Path
) -> None:
    require_device("webgpu")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here to build a faulty driver with")
    source, library = tmp_path / "crash.c", tmp_path / "libcrash.so"
    source.write_text(
        "#include <stdlib.h>\n__attribute__((constructor)) void start(void) { abort(); }"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    faulty = manifest(manifests, "faulty", library)
    for each in vendors.system_manifests():
        if "lvp" in each.name:
            shutil.copy(each, manifests)

    def ask(environ: Mapping[str, str]) -> str:
        return child_probe.ask_child(["list", "webgpu"], 60.0, environ)[1]

    aside = discovery.set_faulty_drivers_aside(ask)
    assert list(aside) == [str(faulty)]
    assert "SIGABRT" in aside[str(faulty)]
    assert discovery.left_out() == aside
    assert discovery.left_out(dict(os.environ) | {"MESA_DEBUG": "1"}) == {}, "another case"
    # What tapml has set is no user's choice, in this process and in those it starts.
    assert discovery.left_out(discovery.prepare_environment(os.environ)) == aside
    left = discovery.prepare_environment(os.environ)[CHOSEN]
    assert left == os.pathsep.join(map(str, sorted(manifests.glob("lvp*"))))
    discovery.forget_faulty_drivers()
    assert CHOSEN not in discovery.prepare_environment(os.environ)


def test_both_software_adapters_are_listed_as_processors_in_a_settled_order(
    require_device: RequireDevice,
) -> None:
    require_device("webgpu")
    found = ranking.list_devices("webgpu")
    assert [device.index for device in found] == list(range(len(found)))
    software = [device for device in found if "llvmpipe" in device.name or "Swift" in device.name]
    assert all(device.device_type == "cpu" for device in software)
    kinds = [device.device_type for device in found]
    assert kinds == sorted(kinds, key=lambda kind: kind == "cpu"), "hardware comes first"
    assert ["Swift" in device.name for device in software] == sorted(
        "Swift" in device.name for device in software
    )
    assert all("wgpu-native" in device.driver_version for device in found)
    assert len({device.driver_version for device in found}) == len(found)


def test_who_imports_wgpu_first_sees_the_same_adapters(require_device: RequireDevice) -> None:
    expected = len(require_device("webgpu"))
    code = (
        "import wgpu; from tapml_targets.webgpu.driver import list_devices; "
        "print(len(list_devices()))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    assert int(found.stdout) >= expected


def test_a_missing_wgpu_is_named_with_its_extra(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['wgpu'] = None\n"
        "from tapml_targets.webgpu.driver import list_devices\n"
        "list_devices()\n"
    )
    environ = {"TAPML_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert 'pip install -e ".[webgpu]"' in done.stderr


def test_without_any_driver_there_is_no_device_and_a_remedy(
    require_device: RequireDevice,
    own_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if any("(Vulkan" not in device.vendor_platform for device in require_device("webgpu")):
        pytest.skip("it has a driver that is no Vulkan manifest")
    monkeypatch.setenv(CHOSEN, str(tmp_path / "none.json"))
    with pytest.raises(NoSuchDeviceError, match="has no webgpu device; install a Vulkan driver"):
        ranking.default_device("webgpu")
