"""A tiny model, one cache of compiled code, and one finished session that many tests look at."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tapml.plan import format as plan_format
from tapml.plan.graph_plan import GraphPlan
from tapml.runs.journal import JOURNAL
from tapml.session.device import SETTINGS
from tapml.session.journal import open_journal
from tapml.session.kept_model import FACTS, KEPT
from tapml.session.settings import Settings
from tapml_targets.target import Target
from tests.conftest import RequireDevice
from tests.offload.commands import Ended, run_process
from tests.offload.warm_cache import keep_compiled
from tests.shared_artifact import shared_artifact

TOKENS = "1 2 3 4"
NEW_TOKENS = "2"


@dataclass(frozen=True)
class FinishedSession:
    """A session whose every operator is on OpenCL; tests read it and copy it, never write it.

    All processes of the tests have it and its model in common: `with_own_model` is for a test that
    changes a model. The cache is this process's own.
    """

    folder: Path
    model: Path
    cache: Path
    device: str
    ended: Ended

    @property
    def report(self) -> dict[str, Any]:
        """What ``report.json`` holds."""
        return read_report(self.folder)

    def arguments(self, session: Path, model: Path | None = None) -> tuple[str, ...]:
        """``tapml offload`` of this model, or another, to the same device."""
        return offload_arguments(model or self.model, session, self.device)

    def copy(self, to: Path) -> Path:
        """A session of one's own."""
        # SQLite's files beside a database that another process reads come and go.
        unread = shutil.ignore_patterns("*-wal", "*-shm")
        return Path(shutil.copytree(self.folder, to, ignore=unread))

    def with_own_model(self, to: Path) -> FinishedSession:
        """A copy of the session and of its model, as if it had been made of that copy."""
        folder = self.copy(to / "session")
        model = Path(shutil.copytree(self.model, to / self.model.name))
        with open_journal(folder / JOURNAL) as journal:
            settings = Settings.from_json(journal.read_setting(SETTINGS) or "")
            own = msgspec.structs.replace(settings, model=str(model))
            journal.write_setting(SETTINGS, own.to_json())
        facts = folder / KEPT / FACTS
        _, _, text = facts.read_bytes().partition(b"\n")
        text = text.replace(str(self.model).encode(), str(model).encode())
        facts.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        return replace(self, folder=folder, model=model)

    def copy_cache(self, to: Path) -> Path:
        """A cache of one's own with everything compiled."""
        return Path(shutil.copytree(self.cache, to))


def read_report(session: Path) -> dict[str, Any]:
    """What a session's ``report.json`` holds."""
    report: dict[str, Any] = json.loads((session / "report.json").read_text(encoding="utf-8"))
    return report


def states(session: Path) -> dict[str, str]:
    """Each operator's state, in graph order."""
    return {each["name"]: each["state"] for each in read_report(session)["operators"]}


def assert_same_verdicts(session: Path, finished: FinishedSession) -> None:
    """Operator by operator the same state, numbers and kernels as a run nobody disturbed."""
    again, first = read_report(session), finished.report
    for operator, before in zip(again["operators"], first["operators"], strict=True):
        for key in ("name", "state", "tests", "worst_ratio", "source"):
            assert operator[key] == before[key], (operator["name"], key)
    assert again["outcome"] == first["outcome"]


def offload_arguments(model: Path, session: Path, device: str = "opencl") -> tuple[str, ...]:
    """``tapml offload`` of a tiny model, as short as it gets."""
    return (
        "offload", "--model", str(model), "--device", device, "--session", str(session),
        "--tokens", TOKENS, "--new-tokens", NEW_TOKENS,
    )  # fmt: skip


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama folder of one layer with random weights; its query projection is square."""
    from tests.models.folders import make_folder

    return shared_artifact(
        "tiny-llama", tmp_path_factory, lambda folder: make_folder(folder, "one_layer")
    )


@pytest.fixture(scope="session")
def finished(
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
    require_device: RequireDevice,
) -> FinishedSession:
    """The tiny model, moved by the real command."""
    # Not the best-ranked one: two devices of about the same speed may change places.
    index = min(each.index for each in require_device("opencl"))
    device = f"opencl:{index}"

    def run(folder: Path) -> None:
        folder.mkdir()
        arguments = offload_arguments(tiny_model, folder / "session", device)
        ended = run_process(*arguments, cache=folder / "cache")
        assert ended.exit_code == 0, ended.errors
        keep_compiled(folder / "cache")
        (folder / "ended.json").write_text(json.dumps(asdict(ended)), encoding="utf-8")

    made = shared_artifact("finished", tmp_path_factory, run)
    # What a process beside this one compiled is not compiled again.
    cache = tmp_path_factory.mktemp("compiled") / "cache"
    shutil.copytree(made / "cache", cache)
    ended = Ended(**json.loads((made / "ended.json").read_text(encoding="utf-8")))
    return FinishedSession(made / "session", tiny_model, cache, device, ended)


@pytest.fixture(scope="session")
def tiny_plan(finished: FinishedSession) -> GraphPlan:
    """What the tiny model became."""
    return plan_format.unpack((finished.folder / "finished" / "plan.msgpack").read_bytes())


@pytest.fixture(scope="session")
def tiny_target(finished: FinishedSession) -> Target:
    """What its kernels were compiled for."""
    from tapml_rpc.local import open_local

    with open_local(finished.device) as session:
        return Target("opencl", limits=session.device.limits)
