"""What cannot work is said in one clear line, with the right exit code, and leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tapml.runs.lock import LOCK, RunLock
from tests.cli.small_disk import small_disk
from tests.offload.commands import Ended, run_here
from tests.offload.forked import run_forked
from tests.offload.processes import half_written
from tests.offload.sessions import FinishedSession, offload_arguments


def said_in_one_line(ended: Ended, exit_code: int = 2) -> str:
    """The one line of a command that failed."""
    assert ended.exit_code == exit_code, ended
    assert "Traceback" not in ended.errors
    (line,) = ended.error_lines
    assert ended.errors.splitlines()[-1] == line
    assert ended.output == ""
    return line


@pytest.mark.parametrize("command", ["offload", "validate", "carve"])
def test_a_folder_that_is_no_model(tmp_path: Path, command: str) -> None:
    folder, session = tmp_path / "photos", tmp_path / "made"
    folder.mkdir()
    (folder / "cat.jpg").write_bytes(b"\xff\xd8")
    option = {"offload": "--session", "carve": "--out"}.get(command)
    where = (option, session) if option else ()
    ended = run_here(command, "--model", folder, *where, cache=tmp_path / "cache")
    line = said_in_one_line(ended)
    assert str(folder) in line
    assert "config.json" in line
    assert "is not a model" in line


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    ended = run_here("offload", "--model", "pydoc-lama", cache=tmp_path)
    line = said_in_one_line(ended)
    assert "no model 'pydoc-lama'" in line
    assert "pydoc-llama" in line


def test_an_unknown_target_lists_the_known_ones(tmp_path: Path) -> None:
    session = tmp_path / "session"
    ended = run_here("offload", "--target", "opencll", "--session", session, cache=tmp_path)
    line = said_in_one_line(ended)
    assert "opencll" in line
    assert "cpu" in line
    assert "opencl" in line.replace("opencll", "")
    assert not session.exists()


def test_a_device_of_another_platform_than_the_target(tmp_path: Path) -> None:
    session = tmp_path / "session"
    ended = run_here(
        "offload", "--target", "opencl", "--device", "cpu:0", "--session", session, cache=tmp_path
    )
    line = said_in_one_line(ended)
    assert "--device cpu:0 is not a device of opencl" in line
    assert not session.exists()


def test_a_browser_for_another_target_is_not_opened(tmp_path: Path) -> None:
    session = tmp_path / "session"
    words = ("--target", "opencl", "--device", "browser", "--session", session)
    line = said_in_one_line(run_here("offload", *words, cache=tmp_path))
    assert "--device browser is a webgpu device, not one of opencl; leave out --target" in line
    assert not session.exists()


def test_a_mistyped_device_of_several_is_named_before_anything_is_opened(tmp_path: Path) -> None:
    words = ("--device", "webgpu:0", "--device", "browsr")
    line = said_in_one_line(run_here("validate", *words, cache=tmp_path))
    assert "unknown target 'browsr'" in line and "browser:chromium or browser:firefox" in line


def test_a_device_that_is_not_there(finished: FinishedSession, tmp_path: Path) -> None:
    arguments = offload_arguments(finished.model, tmp_path / "session", "opencl:77")
    ended = run_here(*arguments, cache=finished.cache)
    assert "opencl:77" in said_in_one_line(ended, exit_code=3)


def test_a_prompt_longer_than_the_context(finished: FinishedSession, tmp_path: Path) -> None:
    """And the second try, with a prompt that fits, may use the same folder."""
    session = tmp_path / "session"
    arguments = (
        "offload", "--model", finished.model, "--device", finished.device, "--session", session,
        "--new-tokens", "2",
    )  # fmt: skip
    long = " ".join(["5"] * 70)
    ended = run_here(*arguments, "--tokens", long, "--quiet", cache=finished.cache)
    line = said_in_one_line(ended)
    assert "70" in line
    assert "64" in line
    assert half_written(session) == []
    ended = run_here(*arguments, "--tokens", "1 2 3 4", "--quiet", cache=finished.cache)
    assert ended.exit_code == 0, ended.errors


@pytest.mark.parametrize(
    ("tokens", "words"),
    [("1 2 three", "three"), ("1 2 500", "500"), ("-1", "-1"), ("", "token")],
    ids=["a word", "outside the vocabulary", "negative", "none"],
)
def test_tokens_that_are_none(
    finished: FinishedSession, tmp_path: Path, tokens: str, words: str
) -> None:
    ended = run_here(
        "offload", "--model", finished.model, "--session", tmp_path / "session",
        f"--tokens={tokens}", "--quiet", cache=finished.cache,
    )  # fmt: skip
    assert words in said_in_one_line(ended)


def test_text_for_a_model_without_a_tokenizer(finished: FinishedSession, tmp_path: Path) -> None:
    ended = run_here(
        "offload", "--model", finished.model, "--session", tmp_path / "session",
        "--prompt", "hello", "--quiet", cache=finished.cache,
    )  # fmt: skip
    assert "--tokens" in said_in_one_line(ended)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ofload"], "Did you mean 'offload'?"),
        (["offload", "--modle", "x"], "Did you mean '--model'? See `tapml offload --help`"),
        (["replay", "suite", "--devcie=opencl"], "unknown option '--devcie'"),
        (["report", "session", "another"], "unexpected 'another'"),
        (
            ["run", "session", "--tokens", "1", "2", "3"],
            "unexpected '2' '3'; one value with spaces takes quotes: --tokens '1 2 3'",
        ),
        (["reduce", "repro", "--seconds", "few"], "expected seconds above 0, got 'few'"),
        (["offload", "--prompts", "0"], "expected a whole number of at least 1, got '0'"),
        (["offload", "--new-tokens", "few"], "expected a whole number of at least 1, got 'few'"),
        (["offload", "--budget", "much"], "expected a size like 512M or 4G, got 'much'"),
        (["offload", "--budget=-1K"], "at least 1 byte, got '-1K'"),
        (["offload", "--dtype", "flaot16"], "Did you mean 'float16'?"),
        (["rpc", "tracker", "--relay-port", "999999"], "expected a port from 0 to 65535"),
        (["rpc", "tracker", "--browser-patience", "nan"], "expected seconds above 0, got 'nan'"),
        (["rpc", "serve", "--kernel-deadline", "0"], "expected seconds above 0, got '0'"),
        (["rpc", "serve", "--data-port", "-1"], "expected a port from 0 to 65535, got '-1'"),
        (["run"], "PACKAGE_OR_SESSION"),
        ([], "COMMAND"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistyped_command_line(tmp_path: Path, arguments: list[str], words: str) -> None:
    line = said_in_one_line(run_here(*arguments, cache=tmp_path))
    assert words in line
    assert "--help" in line


@pytest.mark.parametrize("name", ["nothing.tapml.zip", "nothing"])
def test_inspecting_what_is_not_there(tmp_path: Path, name: str) -> None:
    line = said_in_one_line(run_here("inspect", tmp_path / name, cache=tmp_path))
    assert f"{tmp_path / name} does not exist: expected a suite, a session" in line


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("run", "nowhere", "--tokens", "1"), "does not exist: expected a package"),
        (("replay", "nowhere"), "expected a folder that `tapml carve --out` wrote"),
        (("bundle", "nowhere"), "expected a repro folder, a session or a suite"),
    ],
)
def test_a_folder_that_is_not_there_is_met_with_what_was_expected(
    tmp_path: Path, command: tuple[str, ...], expected: str
) -> None:
    assert expected in said_in_one_line(run_here(*command, cache=tmp_path))


def test_inspecting_what_tapml_did_not_write(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("notes")
    line = said_in_one_line(run_here("inspect", file, cache=tmp_path))
    assert f"{file} cannot be inspected" in line
    torn = tmp_path / "torn.tapml.zip"
    torn.write_bytes(b"PK\x03\x04")
    assert "a bundle has" in said_in_one_line(run_here("inspect", torn, cache=tmp_path))


@pytest.mark.parametrize("option", ["--out", "--export"])
def test_what_is_in_the_way_of_a_carve_is_said_before_it(tmp_path: Path, option: str) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    kind = ["pytest"] if option == "--export" else []
    for extra in ([], ["--overwrite"]):
        where = [option, *kind, str(taken), *extra]
        ended = run_here("carve", "--model", "no-such-model", *where, cache=tmp_path)
        assert str(taken) in said_in_one_line(ended)
    assert list(taken.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "report", "replay"])
def test_a_folder_that_is_no_session(tmp_path: Path, command: str) -> None:
    extra = ["--tokens", "1"] if command == "run" else []
    ended = run_here(command, tmp_path, *extra, cache=tmp_path)
    assert str(tmp_path) in said_in_one_line(ended)


def test_a_folder_with_other_files_is_not_taken_for_a_session(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    ended = run_here("offload", "--session", tmp_path, cache=tmp_path / "cache")
    assert "other files" in said_in_one_line(ended)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_session_of_another_model_is_not_continued(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    ended = run_here(
        "offload", "--model", "pydoc-llama", "--session", session, cache=finished.cache
    )
    line = said_in_one_line(ended)
    assert f"model = '{finished.model}'" in line
    assert "'pydoc-llama'" in line
    assert "--restart" in line


def test_a_session_that_another_process_holds_is_left_alone(
    finished: FinishedSession, tmp_path: Path
) -> None:
    session = finished.copy(tmp_path / "session")
    with RunLock(session / LOCK).hold():
        ended = run_here("offload", "--session", session, cache=finished.cache)
        restarted = run_here("offload", "--session", session, "--restart", cache=finished.cache)
    for each in (ended, restarted):
        assert f"is held by process {os.getpid()}" in said_in_one_line(each)
    assert (session / "report.html").is_file()


def test_a_session_whose_weights_changed_is_not_run(
    finished: FinishedSession, tmp_path: Path
) -> None:
    own = finished.with_own_model(tmp_path)
    weights = own.model / "model.safetensors"
    content, times = weights.read_bytes(), weights.stat()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    # As an archive or a copy leaves it.
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    ended = run_here("run", own.folder, "--tokens", "1 2", cache=finished.cache)
    line = said_in_one_line(ended)
    assert "model.safetensors" in line
    assert f"tapml offload --session {own.folder}" in line


@pytest.mark.parametrize(
    "name", ["finished/plan.msgpack", "finished/library.msgpack", "model/plan.msgpack"]
)
def test_a_damaged_finished_plan_is_not_run(
    finished: FinishedSession, tmp_path: Path, name: str
) -> None:
    session = finished.copy(tmp_path / "session")
    file = session / name
    file.write_bytes(file.read_bytes()[:-20])
    ended = run_here("run", session, "--tokens", "1 2", cache=finished.cache)
    assert "is damaged" in said_in_one_line(ended)


def test_a_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = run_here("offload", "--session", tmp_path / "file" / "session", cache=tmp_path)
    line = said_in_one_line(ended)
    assert str(tmp_path / "file" / "session") in line
    assert "choose another folder" in line


def test_a_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    with small_disk(folder, "ro") as disk:
        ended = run_forked(
            "offload", "--session", folder / "session",
            cache=tmp_path, errors=tmp_path / "errors", inside=disk.place,
        )  # fmt: skip
    line = said_in_one_line(ended)
    assert "Read-only file system" in line
    assert "choose another folder" in line


@pytest.mark.parametrize("size", ["4k", "3m"])
def test_a_full_disk(finished: FinishedSession, tmp_path: Path, size: str) -> None:
    """Full at the first write, and while operators move; then there is room."""
    folder, errors = tmp_path / "small", tmp_path / "errors"
    session = folder / "session"
    arguments = (*finished.arguments(session), "--quiet")
    with small_disk(folder, f"size={size}") as disk:
        ended = run_forked(*arguments, cache=finished.cache, errors=errors, inside=disk.place)
        left = disk.hidden(session)
        disk.grow("64m")
        again = run_forked(*arguments, cache=finished.cache, errors=errors, inside=disk.place)
    assert ended.exit_code == 2, ended
    assert "Traceback" not in ended.errors
    (line,) = ended.error_lines
    assert "disk" in line or "No space left" in line
    assert "free some space" in line
    assert not any(name.startswith(".report") for name in left)
    assert again.exit_code == 0, again
    assert "pass: all" in again.errors, "with room, the same session finishes"
