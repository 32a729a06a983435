"""A package where neither TVM nor PyTorch nor a tokenizer library is: the session's tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.base_environment import BaseInstall
from tests.package.packages import Packages, add_tokenizer

pytestmark = pytest.mark.slow

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


def test_the_packages_own_script_streams_text(
    base_install: BaseInstall, packages: Packages, tmp_path: Path
) -> None:
    package = packages.copy(tmp_path / "p")
    add_tokenizer(package)
    ended = base_install.run("python", str(package / "run.py"), "Ab c")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("Ab c")
    assert "tokens in" in ended.stderr
    piped = base_install.run("tapml", "run", str(package), "--prompt", "-", text="Ab c\n")
    assert piped.stdout == ended.stdout
