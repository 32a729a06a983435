"""What a session keeps of its model: a resume begins with it, or says why it does not."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tapml.models.huggingface import load_model
from tapml.runs.journal import JOURNAL
from tapml.runs.lock import LOCK, RunLock
from tapml.session import kept_model
from tapml.session.kept_model import FACTS, KEPT, LOGITS, PLAN, WEIGHTS, KeptModel, open_kept
from tapml.session.model_files import FileRecord
from tests.offload.commands import Ended, run_here
from tests.offload.sessions import FinishedSession, states

ANEW = "the model is imported and rooted again"
_RESUMING = """
import sys
from tapml.session.events import OperatorChanged
from tapml.offload.session import OffloadSession

def watch(event):
    if isinstance(event, OperatorChanged) and event.state == "replaying":
        heavy = sorted({"torch", "transformers", "tvm"} & set(sys.modules))
        print(event.operator, heavy, flush=True)

OffloadSession.open(sys.argv[1]).run(watch)
"""


@pytest.fixture
def session(finished: FinishedSession, tmp_path: Path) -> Path:
    """A finished session of one's own."""
    return finished.copy(tmp_path / "session")


@pytest.fixture
def kept(finished: FinishedSession) -> KeptModel:
    found = open_kept(finished.folder)
    assert found is not None
    return found


def take_back(session: Path, operator: str = "") -> str:
    """Take an operator's verdict back, by default that of the last; its name."""
    journal = sqlite3.connect(session / JOURNAL)
    with journal:
        (last,) = journal.execute(
            "SELECT subject FROM result WHERE stage = 'operator' ORDER BY id DESC LIMIT 1"
        ).fetchone()
        journal.execute(
            "DELETE FROM result WHERE stage = 'operator' AND subject = ?", (operator or last,)
        )
    journal.close()
    return operator or str(last)


def reasons(session: Path, tell: list[str]) -> KeptModel | None:
    return open_kept(session, tell.append)


def resume(session: Path, finished: FinishedSession) -> Ended:
    ended = run_here("offload", "--session", session, cache=finished.cache)
    assert ended.exit_code == 0, ended.errors
    return ended


def test_what_is_kept_is_what_the_loader_and_the_importer_gave(
    finished: FinishedSession, kept: KeptModel
) -> None:
    model = load_model(finished.model)
    assert kept.model == model.stored
    assert kept.notes == model.notes
    assert kept.model_folder == finished.model
    parameters = {name: value.numpy() for name, value in model.module.named_parameters()}
    assert parameters.keys() <= kept.weights.keys()
    for name, array in parameters.items():
        np.testing.assert_array_equal(kept.weights[name], array)
    assert [each.case.token_ids for each in kept.trace.cases] == [(1, 2, 3, 4)]
    assert not kept.outdated


def test_weights_are_mapped_from_the_models_own_files(finished: FinishedSession) -> None:
    """Only what does not lie there, the plan's constants, is written a second time."""
    facts = json.loads((finished.folder / KEPT / FACTS).read_bytes().partition(b"\n")[2])
    own = {name for name, (file, _) in facts["weights"].items() if not file}
    assert own
    assert all(name.startswith("constants.") for name in own)


def test_a_resumed_session_needs_neither_torch_nor_tvm_before_a_step_does(
    session: Path, finished: FinishedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = take_back(session)
    monkeypatch.setenv("TAPML_CACHE_DIR", str(finished.cache))
    ended = subprocess.run(
        [sys.executable, "-c", _RESUMING, str(session)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [f"{operator} []"]
    assert set(states(session).values()) == {"moved"}


def test_twins_and_probes_of_a_resumed_session_need_no_tvm(
    session: Path, finished: FinishedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator with exponentials is probed, which takes its twin and the reference."""
    operator = next(name for name in states(session) if "silu" in name)
    take_back(session, operator)
    monkeypatch.setenv("TAPML_CACHE_DIR", str(finished.cache))
    at_the_end = _RESUMING.replace('"replaying"', '"moved"')
    ended = subprocess.run(
        [sys.executable, "-c", at_the_end, str(session)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    said = dict(line.split(" ", 1) for line in ended.stdout.splitlines())
    assert "tvm" not in said[operator]


def test_a_fast_resume_says_what_it_begins_with_and_ends_as_a_slow_one(
    session: Path, finished: FinishedSession
) -> None:
    slow = Path(shutil.copytree(session, session.with_name("slow")))
    shutil.rmtree(slow / KEPT)
    for each in (session, slow):
        take_back(each)
    fast_errors = resume(session, finished).errors
    slow_errors = resume(slow, finished).errors
    assert "rooted on 20" in fast_errors
    assert "root in PyTorch" not in fast_errors
    assert "root in PyTorch" in slow_errors
    assert (slow / KEPT / FACTS).is_file()
    assert verdicts(session) == verdicts(slow)


def verdicts(session: Path) -> list[tuple[str, str, str, str]]:
    """Key, stage, subject and status of every verdict."""
    journal = sqlite3.connect(session / JOURNAL)
    rows = journal.execute("SELECT key, stage, subject, status FROM result ORDER BY 1, 2, 3")
    found = [(str(key), str(stage), str(who), str(how)) for key, stage, who, how in rows]
    journal.close()
    return found


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [FACTS, PLAN, LOGITS, WEIGHTS])
def test_a_damaged_file_is_found_and_named(session: Path, name: str) -> None:
    told: list[str] = []
    _flip(session / KEPT / name)
    assert reasons(session, told) is None
    (reason,) = told
    assert name in reason
    (session / KEPT / name).unlink()
    assert reasons(session, []) is None


def test_what_was_damaged_is_kept_again(session: Path, finished: FinishedSession) -> None:
    _flip(session / KEPT / PLAN)
    errors = resume(session, finished).errors
    assert f"{PLAN} is damaged: its content has changed: {ANEW}" in errors
    assert open_kept(session) is not None


def _touch(folder: Path) -> None:
    (folder / "config.json").touch()


def _rewrite(folder: Path) -> None:
    _flip(folder / "model.safetensors")


def _add(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")


def _remove(folder: Path) -> None:
    (folder / "generation_config.json").unlink()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_touch, ""),
        (_rewrite, "model.safetensors has changed"),
        (_add, "adapter_config.json is new"),
        (_remove, "generation_config.json is gone"),
    ],
)
def test_a_changed_model_folder_is_noticed_by_content(
    kept: KeptModel, tmp_path: Path, change: Callable[[Path], None], expected: str
) -> None:
    folder = Path(shutil.copytree(kept.model_folder, tmp_path / "model"))
    (folder / "generation_config.json").write_text("{}", encoding="utf-8")
    session = tmp_path / "session"
    session.mkdir()
    kept_model.keep_model(session, kept.settings, replace(_as_rooted(kept), model_folder=folder))
    assert open_kept(session) is not None
    change(folder)
    told: list[str] = []
    again = open_kept(session, told.append)
    assert (again is not None) == (not expected)
    assert not expected or expected in told[0]


@pytest.mark.parametrize("copied", ["model", "session"])
def test_files_that_were_copied_are_hashed_at_the_next_resume_and_not_again(
    kept: KeptModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: str
) -> None:
    folder = Path(shutil.copytree(kept.model_folder, tmp_path / "model"))
    session = tmp_path / "session"
    session.mkdir()
    kept_model.keep_model(session, kept.settings, replace(_as_rooted(kept), model_folder=folder))
    name = "model.safetensors" if copied == "model" else WEIGHTS
    place = folder if copied == "model" else session / KEPT
    content = (place / name).read_bytes()
    (place / name).unlink()
    (place / name).write_bytes(content)
    hashed: list[str] = []
    real = FileRecord.of

    def hashing(path: Path) -> FileRecord:
        hashed.append(path.name)
        return real(path)

    monkeypatch.setattr(FileRecord, "of", hashing)

    def opened(*, note: bool | Path) -> bool:
        """Whether the file was hashed."""
        hashed.clear()
        assert open_kept(session, pytest.fail, note=note) is not None
        return name in hashed

    lock = session / LOCK
    assert opened(note=False)
    assert opened(note=lock), "nothing was noted without being asked"
    with RunLock(lock).hold():
        assert opened(note=lock), "nor where there was no lock to look at"
        assert opened(note=lock), "nor while somebody holds the session"
    lock.write_text("a dead holder")
    assert opened(note=True if copied == "model" else lock)
    assert not opened(note=True)
    assert not opened(note=False)
    assert lock.read_text() == "a dead holder"
    (place / name).write_bytes(content[:-1] + bytes([255 - content[-1]]))
    assert open_kept(session, note=True) is None, "what is noted excuses no other content"


def test_what_another_tapml_kept_runs_and_packs_without_a_resume(
    session: Path, finished: FinishedSession, tmp_path: Path
) -> None:
    facts = session / KEPT / FACTS
    data = json.loads(facts.read_bytes().partition(b"\n")[2])
    data["made_by"] |= {"tapml's import": "0" * 12, "apache-tvm": "0.1"}
    text = json.dumps(data, separators=(",", ":")).encode()
    facts.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    found = open_kept(session)
    assert found is not None
    assert found.outdated, "a resume imports it again"
    ran = run_here("run", session, "--tokens", "1 2", "--max-new-tokens", "2", cache=finished.cache)
    assert ran.exit_code == 0, ran.errors
    packed = run_here("package", session, "--out", tmp_path / "out", cache=finished.cache)
    assert packed.exit_code == 0, packed.errors


def test_what_this_tapml_cannot_read_says_the_command_that_makes_it_again(
    session: Path, finished: FinishedSession
) -> None:
    again = f"`tapml offload --session {session}`"
    facts = session / KEPT / FACTS
    data = json.loads(facts.read_bytes().partition(b"\n")[2])
    text = json.dumps(data | {"format": "tapml kept model/9"}).encode()
    facts.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    ended = run_here("run", session, "--tokens", "1", cache=finished.cache)
    assert (ended.exit_code, again in ended.errors) == (2, True), ended.errors
    assert "has another format" in ended.errors
    library = session / "finished" / "library.msgpack"
    library.write_bytes(b"\x80" + library.read_bytes()[1:])
    ended = run_here("package", session, cache=finished.cache)
    assert (ended.exit_code, again in ended.errors) == (2, True), ended.errors


def _as_rooted(kept: KeptModel) -> kept_model.RootedModel:
    fields = kept_model.RootedModel.__dataclass_fields__
    return kept_model.RootedModel(**{name: getattr(kept, name) for name in fields})


def test_another_version_is_named_with_the_one_before(
    kept: KeptModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = kept_model.made_by()
    monkeypatch.setattr(
        kept_model, "made_by", lambda: versions | {"transformers": "99.1", "torch": ""}
    )
    before = versions["transformers"]
    # What is not installed here cannot make it again, and is not asked for.
    assert replace(kept).outdated == f"transformers {before} -> 99.1"


def test_a_model_folder_that_is_gone_is_named_with_what_to_do(
    finished: FinishedSession, tmp_path: Path
) -> None:
    own = finished.with_own_model(tmp_path)
    shutil.rmtree(own.model)
    ended = run_here("offload", "--session", own.folder, cache=finished.cache)
    assert ended.exit_code == 2
    assert str(own.model) in ended.error_lines[0]
    assert "the model of this session is gone" in ended.error_lines[0]
    assert "Put it back" in ended.error_lines[0]
