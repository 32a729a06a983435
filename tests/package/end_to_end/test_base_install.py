"""A package where neither TVM nor PyTorch nor a tokenizer library is: the session's tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.base_environment import BaseInstall
from tests.package.packages import Packages, add_tokenizer

THREE_LINES = """\
import tapml as tml
model = tml.load_package({package!r})
print(*model.generate_tokens({prompt}, max_new_tokens={count}))
"""


@pytest.mark.parametrize("form", ["folder", "archive", "session"])
def test_tapml_run_gives_the_tokens_of_the_sessions_end(
    base_install: BaseInstall, packages: Packages, form: str
) -> None:
    model = packages.session.folder if form == "session" else getattr(packages, form)
    prompt = " ".join(map(str, packages.prompt))
    ended = base_install.run(
        "tapml", "run", str(model), "--tokens", prompt,
        "--max-new-tokens", str(len(packages.tokens)), "--json",
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
    result = json.loads(ended.stdout)
    assert result["tokens"] == packages.tokens
    assert result["notes"] == []


def test_three_lines_of_python_give_the_same_tokens(
    base_install: BaseInstall, packages: Packages
) -> None:
    lines = THREE_LINES.format(
        package=str(packages.archive), prompt=packages.prompt, count=len(packages.tokens)
    )
    ended = base_install.run("python", "-c", lines)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == list(map(str, packages.tokens))


def test_text_takes_one_more_library_which_is_named(
    base_install: BaseInstall, packages: Packages, tmp_path: Path
) -> None:
    package = packages.copy(tmp_path / "p")
    add_tokenizer(package)
    refused = base_install.run("python", str(package / "run.py"), "Ab c")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "install tapml[run] (pip install" in refused.stderr
    ended = base_install.run("tapml", "run", str(package), "--tokens", "33 66 0 67", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["tokens"]
