"""The wheel in an environment of its own: what a device gets that has neither TVM nor PyTorch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tapml import Module
from tapml.bundle.bundle import write_bundle
from tapml.compiler.compiler import Compiler
from tapml.compiler.link import link_entries
from tapml.execute.plan_runner import PlanRunner
from tapml.reduce.device import ReopeningDevice
from tapml.repro.folder import read_repro
from tapml_rpc.client import connect
from tapml_rpc.local import open_local
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import Library
from tapml_targets.target import Target
from tests.base_environment import ROOT, BaseInstall
from tests.conftest import RequireDevice
from tests.reduce.planted import failing_folder

PACKAGES = {
    "tapml": ROOT / "tapml",
    "tapml_rpc": ROOT / "rpc_server" / "tapml_rpc",
    "tapml_targets": ROOT / "targets" / "tapml_targets",
}


def test_the_base_install_takes_at_most_110_megabytes(base_install: BaseInstall) -> None:
    (site,) = base_install.folder.glob("lib/python*/site-packages")
    # What the extra `opencl` adds.
    driver = {"pyopencl", "pytools", "platformdirs", "siphash24", "typing_extensions"}
    sizes = {
        path.name: sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())
        for path in site.iterdir()
        if re.split(r"[-.]", path.name)[0] not in driver
    }
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:6]
    assert sum(sizes.values()) <= 110e6, largest


def test_the_wheel_holds_the_three_packages_without_the_zoo(base_install: BaseInstall) -> None:
    with zipfile.ZipFile(base_install.wheel) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    listing = subprocess.run(
        ["git", "ls-files", "-z", *PACKAGES.values()],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout: what belongs to the packages is not known")
    expected = {
        f"{package}/{(ROOT / name).relative_to(folder).as_posix()}"
        for name in listing.stdout.split("\0")
        for package, folder in PACKAGES.items()
        if name and (ROOT / name).is_file() and (ROOT / name).is_relative_to(folder)
    }
    zoo = {name for name in expected if name.startswith("tapml/models/zoo/")}
    assert zoo
    assert not zoo & held
    assert expected - zoo - held == set()
    assert {name.split("/")[0] for name in held} == set(PACKAGES)


def test_the_zoo_has_a_wheel_of_its_own(base_install: BaseInstall, tmp_path: Path) -> None:
    zoo = ROOT / "tapml" / "models" / "zoo"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel"]
    subprocess.run([*pip, "--no-deps", "-w", str(tmp_path), str(zoo)], check=True)
    for wheel in (base_install.wheel, next(tmp_path.glob("tapml_zoo-*.whl"))):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tmp_path / "site")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import tapml.models as m; "
        "print(*(m.resolve_model(name) / 'model.safetensors' for name in m.zoo_names()))"
    )
    shipped = base_install.run("python", "-c", code).stdout.split()
    for weights, name in zip(shipped, ("digits-cnn", "pydoc-llama"), strict=True):
        assert Path(weights).read_bytes() == (zoo / name / "model.safetensors").read_bytes()


def test_neither_tvm_nor_pytorch_is_there(base_install: BaseInstall) -> None:
    names = "import importlib.metadata as m; print(*(each.name for each in m.distributions()))"
    installed = set(base_install.run("python", "-c", names).stdout.lower().split())
    assert {"tapml", "numpy", "pyopencl"} <= installed
    assert not installed & {"apache-tvm", "apache-tvm-ffi", "torch", "transformers"}


def test_the_command_explains_itself(base_install: BaseInstall) -> None:
    result = base_install.run("tapml", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "offload" in result.stdout
    assert base_install.run("tapml", "--version").stdout == "tapml 0.1.0\n"


def test_the_devices_are_listed(base_install: BaseInstall, require_device: RequireDevice) -> None:
    require_device("opencl", vendor="Portable Computing Language")
    result = base_install.run("tapml", "devices", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    listing = json.loads(result.stdout)
    assert "Portable Computing Language" in {d["vendor_platform"] for d in listing["devices"]}
    assert "apache-tvm-ffi" in listing["problems"]["cpu"]


def test_the_doctor_serves_a_device_without_the_toolkit(
    base_install: BaseInstall, require_device: RequireDevice
) -> None:
    require_device("opencl", vendor="Portable Computing Language")
    result = base_install.run("tapml", "doctor")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.search(r"^opencl +server +ok", result.stdout, re.MULTILINE)


def best_of_both(base_install: BaseInstall, require_device: RequireDevice) -> DeviceDescription:
    """A device of this environment and of the other, which may lack a driver that is installed."""
    listing = base_install.run("tapml", "devices", "--platform", "opencl", "--json").stdout
    there = {(each["name"], each["vendor_platform"]) for each in json.loads(listing)["devices"]}
    return next(
        each for each in require_device("opencl") if (each.name, each.vendor_platform) in there
    )


@pytest.fixture
def served(base_install: BaseInstall, require_device: RequireDevice) -> Iterator[str]:
    """Address of a server that runs from the base install, for the best OpenCL device."""
    require_device("opencl")
    with subprocess.Popen(
        [str(base_install.folder / "bin" / "tapml"), "rpc", "serve", "--device", "opencl"],
        cwd=base_install.folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            yield str(json.loads(server.stdout.readline())["address"])
        finally:
            server.terminate()


def test_a_library_compiled_here_runs_on_a_server_without_the_toolkit(served: str) -> None:
    inputs = [np.random.default_rng(1).standard_normal((4, 33)).astype(np.float32)]
    module = Module(torch.nn.Softmax(dim=-1), "softmax", inputs=inputs)
    with connect(served) as session:
        target = Target("opencl", limits=session.device.limits)
        with Compiler() as compiler:
            compiled = list(compiler.compile_all(module.plan.operators.values(), target))
        libraries = {o.name: each for o, each in compiled if isinstance(each, Library)}
        library = link_entries(module.plan, libraries)
        with PlanRunner(module.plan, module.weights, library, session) as runner:
            result = runner.run("softmax", {module.inputs[0].name: inputs[0]})
    expected = torch.softmax(torch.from_numpy(inputs[0]), -1).numpy()
    np.testing.assert_allclose(result[module.output[0].name], expected, rtol=1e-6)


def test_a_bundle_replays_to_the_same_verdict_and_an_edited_kernel_mends_it(
    base_install: BaseInstall, require_device: RequireDevice, tmp_path: Path
) -> None:
    best = best_of_both(base_install, require_device)
    with ReopeningDevice(lambda: open_local(best)) as device:
        folder = failing_folder(tmp_path / "matmul", device, "first term missing")
    written = read_repro(folder)
    archive = write_bundle(tmp_path / "matmul.tapml.zip", folder)
    replayed = base_install.run("tapml", "replay", str(archive))
    assert (replayed.returncode, replayed.stderr) == (1, "")
    assert replayed.stdout.startswith(f"fail: {written.case.id} on {best.name}: {written.reason}")
    source = folder / "kernels" / "00.cl"
    source.write_text(source.read_text().replace("sum -= ", "sum -= 0.0f * "))
    mended = tmp_path / "mended.tapml.zip"
    assert base_install.run("tapml", "bundle", str(folder), "-o", str(mended)).returncode == 0
    replayed = base_install.run("tapml", "replay", str(mended))
    assert (replayed.returncode, replayed.stderr) == (0, "")
    assert "kernels edited since: 00.cl" in replayed.stdout


def test_the_script_of_a_repro_folder_needs_the_base_install_alone(
    base_install: BaseInstall, require_device: RequireDevice, tmp_path: Path
) -> None:
    best = best_of_both(base_install, require_device)
    with ReopeningDevice(lambda: open_local(best)) as device:
        folder = failing_folder(tmp_path / "matmul", device, "first term missing")
    written = read_repro(folder)
    replayed = base_install.run("python", str(folder / "repro.py"))
    assert (replayed.returncode, replayed.stderr) == (1, "")
    assert replayed.stdout.splitlines() == [
        f"fail: {written.case.id} on {best.name}: {written.reason}",
        "the same as when it was written",
    ]


@pytest.mark.parametrize("command", [["reduce"], ["bundle", "--synthetic"]])
def test_what_needs_the_toolkit_says_so(
    command: list[str], base_install: BaseInstall, require_device: RequireDevice, tmp_path: Path
) -> None:
    best = best_of_both(base_install, require_device)
    with ReopeningDevice(lambda: open_local(best)) as device:
        folder = failing_folder(tmp_path / "matmul", device, "first term missing")
    result = base_install.run("tapml", *command, str(folder))
    assert result.returncode == 2
    assert '.whl[host,opencl]", the wheel that tapml came in' in result.stderr


def test_a_command_of_the_toolkit_names_what_to_install(base_install: BaseInstall) -> None:
    result = base_install.run("tapml", "offload", "--target", "opencl")
    assert result.returncode == 2
    assert ".whl[host" in result.stderr
