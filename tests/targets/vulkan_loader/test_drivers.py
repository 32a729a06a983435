"""Which Vulkan drivers a process sees: the system's, the browser's, and none that is faulty."""

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
from tapml_targets.errors import NoSuchDeviceError, SetupError
from tapml_targets.vulkan_loader import drivers, manifests
from tests.conftest import RequireDevice

PLATFORMS = ("vulkan", "webgpu")
each_platform = pytest.mark.parametrize("platform", PLATFORMS)
CHOSEN = manifests.CHOSEN_VARIABLES[0]


@pytest.fixture
def folder(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is looked up in the place of the system's and the browsers'."""
    for name in (*manifests.CHOSEN_VARIABLES, manifests.ADDED_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    made = tmp_path / "icd.d"
    made.mkdir()
    monkeypatch.setattr(drivers, "system_manifests", lambda: sorted(made.glob("*.json")))
    monkeypatch.setattr(drivers, "browser_manifests", list)
    return made


def manifest(folder: Path, name: str, library: Path) -> Path:
    """Write a manifest that names `library`."""
    file = folder / f"{name}.json"
    icd = {"library_path": str(library), "api_version": "1.1.0"}
    file.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    return file


@pytest.mark.parametrize("name", manifests.CHOSEN_VARIABLES)
def test_drivers_the_user_chose_stay(own_cache: Path, name: str) -> None:
    found = drivers.prepare_environment({name: "/some/where.json", "OTHER": "1"})
    assert found.pop("NODEVICE_SELECT") == "1"
    assert found == {name: "/some/where.json", "OTHER": "1"}


def test_the_browsers_driver_is_added_to_what_is_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browsers = [Path("/opt/browser/vk_swiftshader_icd.json")]
    monkeypatch.setattr(drivers, "browser_manifests", lambda: browsers)
    found = drivers.prepare_environment({manifests.ADDED_VARIABLE: "/own.json"})
    assert found[manifests.ADDED_VARIABLE] == f"/own.json:{browsers[0]}"
    assert CHOSEN not in found
    assert drivers.prepare_environment(found) == found, "twice is once"


def test_a_browser_is_given_no_driver_of_another_browser(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Firefox took SwiftShader, which Chromium brings, for this machine's driver."""
    browsers = [Path("/opt/browser/vk_swiftshader_icd.json")]
    monkeypatch.setattr(drivers, "browser_manifests", lambda: browsers)
    used = drivers.prepare_environment({manifests.ADDED_VARIABLE: "/own.json", "OTHER": "1"})
    found = drivers.browser_environment(used)
    assert (found[manifests.ADDED_VARIABLE], found["OTHER"]) == ("/own.json", "1")
    none = drivers.browser_environment(drivers.prepare_environment({}))
    assert manifests.ADDED_VARIABLE not in none


def test_a_manifest_without_its_driver_is_passed_over(tmp_path: Path) -> None:
    library = tmp_path / "libdriver.so"
    named = manifest(tmp_path, "one", library)
    assert manifests.library_of(named) is None
    library.write_bytes(b"")
    assert manifests.library_of(named) == library
    named.write_text("{")
    assert manifests.library_of(named) is None


def test_the_state_follows_the_drivers(folder: Path, tmp_path: Path) -> None:
    before = drivers.state_of("wgpu")
    assert drivers.state_of("wgpu") == before
    library = tmp_path / "libnew.so"
    library.write_bytes(b"one")
    manifest(folder, "new", library)
    installed = drivers.state_of("wgpu")
    library.write_bytes(b"a newer one")
    assert len({before, installed, drivers.state_of("wgpu")}) == 3


@pytest.mark.parametrize("name", manifests.CHOSEN_VARIABLES)
def test_a_variable_of_no_text_chooses_no_driver(own_cache: Path, name: str) -> None:
    """The Vulkan loader takes one for a choice of none."""
    assert name not in drivers.prepare_environment({name: ""})


def test_a_manifest_that_is_no_json_does_not_cost_the_others(
    require_device: RequireDevice, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Vulkan loader says that it is out of memory, and has no driver at all."""
    require_device("vulkan")
    for each in manifests.system_manifests():
        if "lvp" in each.name:
            shutil.copy(each, folder)
    broken = folder / "broken.json"
    broken.write_text("{ broken")
    assert drivers.left_out() == {str(broken): drivers.NO_JSON}
    environ = drivers.prepare_environment(os.environ)
    assert environ[CHOSEN] == os.pathsep.join(map(str, sorted(folder.glob("lvp*"))))
    answer, problem = child_probe.ask_child(["list", "vulkan"], 60.0, environ)
    assert answer is not None and answer["devices"], problem
    # Who names it gets exactly that.
    monkeypatch.setenv(CHOSEN, str(broken))
    assert drivers.left_out() == {}
    with pytest.raises(SetupError, match=f"{broken}: {drivers.NO_JSON}"):
        ranking.list_devices("vulkan", refresh=True)


def test_a_faulty_driver_does_not_cost_the_others(
    require_device: RequireDevice, folder: Path, tmp_path: Path
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
    faulty = manifest(folder, "faulty", library)
    for each in manifests.system_manifests():
        if "lvp" in each.name:
            shutil.copy(each, folder)

    def ask(environ: Mapping[str, str]) -> str:
        return child_probe.ask_child(["list", "webgpu"], 60.0, environ)[1]

    aside = drivers.set_faulty_drivers_aside(ask)
    assert list(aside) == [str(faulty)]
    assert "SIGABRT" in aside[str(faulty)]
    assert drivers.left_out() == aside
    assert drivers.left_out(dict(os.environ) | {"MESA_DEBUG": "1"}) == {}, "another case"
    # What tapml has set is no user's choice, in this process and in those it starts.
    assert drivers.left_out(drivers.prepare_environment(os.environ)) == aside
    left = drivers.prepare_environment(os.environ)[CHOSEN]
    assert left == os.pathsep.join(map(str, sorted(folder.glob("lvp*"))))
    drivers.forget_faulty_drivers()
    assert CHOSEN not in drivers.prepare_environment(os.environ)


@each_platform
def test_both_software_devices_are_listed_as_processors_in_a_settled_order(
    platform: str, require_device: RequireDevice
) -> None:
    require_device(platform)
    found = ranking.list_devices(platform)
    assert [device.index for device in found] == list(range(len(found)))
    software = [device for device in found if "llvmpipe" in device.name or "Swift" in device.name]
    assert all(device.device_type == "cpu" for device in software)
    kinds = [device.device_type for device in found]
    assert kinds == sorted(kinds, key=lambda kind: kind == "cpu"), "hardware comes first"
    assert ["Swift" in device.name for device in software] == sorted(
        "Swift" in device.name for device in software
    )
    through = {"vulkan": "; vulkan ", "webgpu": "wgpu-native"}[platform]
    assert all(through in device.driver_version for device in found)
    assert len({device.driver_version for device in found}) == len(found)


def test_the_adapters_do_not_depend_on_the_import_order(require_device: RequireDevice) -> None:
    expected = len(require_device("webgpu"))
    code = (
        "import wgpu; from tapml_targets.webgpu.driver import list_devices; "
        "print(len(list_devices()))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    assert int(found.stdout) >= expected


@pytest.mark.parametrize(("platform", "package"), [("vulkan", "vulkan"), ("webgpu", "wgpu")])
def test_a_missing_package_is_named_with_its_extra(
    platform: str, package: str, tmp_path: Path
) -> None:
    code = (
        f"import sys; sys.modules['{package}'] = None\n"
        f"from tapml_targets.{platform}.driver import list_devices\n"
        "list_devices()\n"
    )
    environ = {"TAPML_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert f'pip install -e ".[{platform}]"' in done.stderr.splitlines()[-1]


@each_platform
def test_without_any_driver_there_is_no_device_and_a_remedy(
    platform: str,
    require_device: RequireDevice,
    own_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = require_device(platform)
    if platform == "webgpu" and any("(Vulkan" not in each.vendor_platform for each in found):
        pytest.skip("it has a driver that is no Vulkan manifest")
    monkeypatch.setenv(CHOSEN, str(tmp_path / "none.json"))
    with pytest.raises(
        NoSuchDeviceError,
        match=f"has no {platform} device; {CHOSEN} chooses the drivers: unset it, or install",
    ):
        ranking.default_device(platform)
