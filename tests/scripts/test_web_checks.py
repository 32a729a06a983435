"""The checks of web/ are not passed over where they are asked for."""

from __future__ import annotations

import json
import re

import pytest

from scripts import web_checks


@pytest.mark.parametrize(("required", "status"), [("", web_checks.NOT_RUN), ("1", 1)])
def test_without_node_nothing_is_checked_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    required: str,
    status: int,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TAPML_REQUIRE_DEVICES", required)
    assert web_checks.main() == status
    assert "needs node and npm" in capfd.readouterr().out


def test_the_lock_file_names_no_host_and_pins_every_package() -> None:
    lock = json.loads((web_checks.WEB / "package-lock.json").read_text("utf-8"))
    packages = {name: each for name, each in lock["packages"].items() if name}
    assert not [name for name, each in packages.items() if "resolved" in each]
    assert all(re.match("sha512-", each["integrity"]) for each in packages.values())


def test_two_packages_are_part_of_the_pages() -> None:
    package = json.loads((web_checks.WEB / "package.json").read_text("utf-8"))
    assert list(package["dependencies"]) == ["@huggingface/tokenizers", "@msgpack/msgpack"]
