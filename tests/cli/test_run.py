"""``tapml run`` on a package: streams, JSON, prompts from elsewhere, Ctrl-C, what it is not."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tapml.cli import converse
from tapml.cli.run import add_parser, check_no_text
from tapml.package.load import open_package
from tapml_targets.errors import InputError
from tests.offload.commands import Ended, run_here, run_process, started
from tests.offload.sessions import FinishedSession
from tests.package.packages import Packages, add_tokenizer, manifest_of, pack


@pytest.fixture(scope="module")
def package(finished: FinishedSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package that takes text."""
    packages: Packages = pack(finished, tmp_path_factory.mktemp("packages"))
    add_tokenizer(packages.folder)
    return packages.folder


@pytest.fixture(scope="module")
def cache(finished: FinishedSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the session compiled is not compiled again."""
    return finished.copy_cache(tmp_path_factory.mktemp("compiled") / "cache")


def test_what_only_a_text_has_is_refused_for_a_model_that_writes_none() -> None:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    given = parser.parse_args(["run", "PACKAGE", "--stop", "x", "--seed", "3", "--chat"])
    with pytest.raises(
        InputError, match=r"^net continues no text: leave --chat, --seed, --stop out"
    ):
        check_no_text("net", given, writes=False)
    check_no_text("net", parser.parse_args(["run", "PACKAGE", "--input", "x.npy"]), writes=False)
    counted = parser.parse_args(["run", "PACKAGE", "--max-new-tokens", "3"])
    with pytest.raises(InputError, match="leave --max-new-tokens out"):
        check_no_text("net", counted, writes=False)
    check_no_text("translator", counted, writes=True)


def said(ended: Ended) -> str:
    assert ended.exit_code == 2
    assert ended.output == ""
    (line,) = ended.error_lines
    return line


def test_the_text_streams_and_the_speed_goes_to_standard_error(package: Path, cache: Path) -> None:
    ended = run_here("run", package, "--prompt", "Ab c", "--max-new-tokens", "5", cache=cache)
    assert ended.exit_code == 0, ended.errors
    assert ended.output.startswith("Ab c")
    assert ended.output.endswith("\n")
    assert "5 tokens in " in ended.errors
    assert "the first after " in ended.errors


def test_the_packages_own_script_writes_what_the_command_writes(package: Path, cache: Path) -> None:
    script = subprocess.run(
        [sys.executable, str(package / "run.py"), "Ab c"],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert script.stdout.startswith("Ab c")
    assert run_here("run", package, "--prompt", "Ab c", cache=cache).output == script.stdout


def test_json_has_text_tokens_and_times(package: Path, cache: Path) -> None:
    arguments = ("run", package, "--max-new-tokens", "5")
    plain = run_here(*arguments, "--prompt", "Ab c", cache=cache)
    ended = run_here(*arguments, "--prompt", "Ab c", "--json", cache=cache)
    assert (ended.exit_code, ended.errors) == (0, "")
    result = json.loads(ended.output)
    assert result["prompt"] == "Ab c"
    assert result["prompt_ids"] == [33, 66, 0, 67]
    assert len(result["tokens"]) == 5
    assert plain.output == f"Ab c{result['text']}\n"
    assert 0 < result["first_token_seconds"] < 60
    assert result["tokens_per_second"] > 0
    assert result["prefill_tokens_per_second"] == pytest.approx(4 / result["first_token_seconds"])
    assert result["device_bytes"] > sum(
        each.bytes for name, each in manifest_of(package).files.items() if "weights" in name
    )
    again = run_here(*arguments, "--tokens", "33 66, 0 67", "--json", cache=cache)
    assert json.loads(again.output)["tokens"] == result["tokens"]


def test_a_seed_repeats_a_drawn_text(package: Path, cache: Path) -> None:
    drawn = ("run", package, "--prompt", "Ab c", "--max-new-tokens", "20", "--temperature", "5")
    first, again, other = (
        run_here(*drawn, "--seed", seed, cache=cache).output for seed in ("3", "3", "4")
    )
    assert first == again != other
    line = said(run_here("run", package, "--prompt", "A", "--seed", "3", cache=cache))
    assert "at temperature 0 none is: give --temperature 1" in line
    line = run_here("run", package, "--prompt", "A", "--top-p", "0", cache=cache).errors
    assert "expected a number above 0 and up to 1, got '0'" in line


def test_a_stop_ends_the_text_and_a_conversation_goes_on_by_lines(
    package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("run", package, "--max-new-tokens", "6")
    whole = json.loads(run_here(*arguments, "--prompt", "Ab c", "--json", cache=cache).output)
    stop = whole["text"][3:5]
    cut = run_here(*arguments, "--prompt", "Ab c", "--stop", stop, cache=cache)
    assert cut.output == f"Ab c{whole['text'][: whole['text'].index(stop)]}\n"
    line = said(run_here(*arguments, "--prompt", "A", "--stop", "", cache=cache))
    assert "--stop: expected a text that is not empty" in line
    line = said(run_here(*arguments, "--prompt", "A", "--interactive", cache=cache))
    assert "--interactive reads prompts from standard input" in line
    lines = f"Hi\n{'x' * 300}\n/new\nHi\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    talked = run_here(*arguments, "--interactive", "--chat", cache=cache)
    first, second = talked.output.splitlines()
    assert (talked.exit_code, first) == (0, second)
    assert "(/new begins a conversation)" in talked.errors

    texts, ended = converse.texts_of, []

    def pressed(*given: Any) -> Iterator[str]:
        yield next(pieces := texts(*given))
        # Nothing is raised in the middle of a command.
        signal.raise_signal(signal.SIGINT)
        ended.append(True)
        yield from pieces

    monkeypatch.setattr(converse, "texts_of", pressed)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hi\nHi\n")))
    talked = run_here(*arguments, "--interactive", "--chat", cache=cache)
    short = talked.output.splitlines()
    assert (talked.exit_code, ended, len(short)) == (0, [True, True], 2)
    assert first.startswith(short[0])
    assert len(short[0]) < len(first)


def test_a_chats_prompt_is_written_by_the_models_template(package: Path, cache: Path) -> None:
    arguments = ("run", package, "--max-new-tokens", "3", "--json")
    chat = run_here(*arguments, "--chat", "--system", "Hm", "--prompt", "Hi", cache=cache)
    plain = run_here(*arguments, "--prompt", "s: Hm/u: Hi/a:", cache=cache)
    assert chat.exit_code == 0, chat.errors
    found, expected = json.loads(chat.output), json.loads(plain.output)
    for key in ("prompt_ids", "tokens"):
        assert found[key] == expected[key]
    streamed = run_here(*arguments[:-1], "--chat", "--prompt", "Hi", cache=cache)
    assert not streamed.output.startswith("u: Hi")
    line = said(run_here(*arguments, "--chat", "--tokens", "1 2", cache=cache))
    assert "--chat takes a --prompt" in line
    line = said(run_here(*arguments, "--system", "A", "--prompt", "A", cache=cache))
    assert "--system goes with --chat" in line


def test_a_profile_has_every_operator_of_every_run(
    package: Path, tmp_path: Path, cache: Path
) -> None:
    arguments = ("run", package, "--prompt", "Ab c", "--max-new-tokens", "5")
    trace = tmp_path / "trace.json"
    ended = run_here(*arguments, "--profile", trace, cache=cache)
    # Timing changes nothing of what is written.
    assert ended.output == run_here(*arguments, cache=cache).output
    library = open_package(package).library
    events = [each for each in json.loads(trace.read_text())["traceEvents"] if each["ph"] == "X"]
    runs = [each for each in events if each["tid"] == 1]
    assert [each["name"] for each in runs] == ["prefill", *["decode"] * 4]
    for number, run in enumerate(runs):
        inside = [each for each in events if each["tid"] == 2 and each["args"]["run"] == number]
        calls = [each.operator for each in library.entries[run["name"]].calls]
        assert [each["name"] for each in inside] == calls
        assert sum(each["dur"] for each in inside) > 0
    for operator in {each.operator for each in library.entries["decode"].calls}:
        assert operator in ended.errors
    assert "decode: " in ended.errors
    assert f"trace: {trace}" in ended.errors


def test_ctrl_c_in_a_text_ends_cleanly(package: Path, cache: Path) -> None:
    command = ("run", package, "--prompt", "Ab c", "--max-new-tokens", "60")
    with started(*command, cache=cache) as process:
        # The prompt is there, so the device is open and the text has begun.
        assert process.stdout.read(1) == "A"
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    # What is said next begins a line.
    assert output.endswith("\n")
    assert "tapml: interrupted" in errors
    assert "Traceback" not in errors


def test_a_prompt_that_is_no_text_is_refused(package: Path, cache: Path) -> None:
    ended = run_process("run", package, "--prompt", "a\udcff", cache=cache)
    assert "is half of a surrogate pair" in said(ended)
    ended = run_here("run", package, "--tokens", "1 x", cache=cache)
    assert "tokens '1 x': expected whole numbers" in said(ended)


def test_a_path_with_a_slip_names_its_neighbour(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "my-package").mkdir()
    line = said(run_here("run", tmp_path / "my-pakage", "--tokens", "1", cache=cache))
    assert f"does not exist; did you mean {tmp_path / 'my-package'}?" in line


def test_what_is_neither_package_nor_session_is_said(tmp_path: Path, cache: Path) -> None:
    line = said(run_here("run", tmp_path, "--tokens", "1", cache=cache))
    assert "is neither a package nor a session" in line
    (tmp_path / "notes.txt").write_text("...")
    line = said(run_here("run", tmp_path / "notes.txt", "--tokens", "1", cache=cache))
    assert "is not a package: expected a zip archive or a folder" in line


def test_packaging_what_is_no_session_is_refused(tmp_path: Path, cache: Path) -> None:
    assert "is not a session" in said(run_here("package", tmp_path, cache=cache))
