"""Versions and remedies come from one place."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from tapml_targets import installed
from tapml_targets.installed import (
    BASE_PACKAGES,
    compiler_versions,
    install_hint,
    package_hint,
    package_version,
    versions_text,
)


def test_an_installed_package_has_its_version_and_another_has_none() -> None:
    assert package_version("numpy") == version("numpy")
    assert package_version("tapml-does-not-have-this") is None


def test_a_package_without_metadata_is_still_part_of_a_key() -> None:
    assert versions_text("tapml-does-not-have-this") == "tapml-does-not-have-this built here"
    assert version("apache-tvm") in compiler_versions()
    assert version("apache-tvm-ffi") in compiler_versions()


def test_a_remedy_names_the_extras_and_installs_by_path() -> None:
    assert install_hint("host", "opencl").startswith('pip install -e ".[host,opencl]" ')
    assert install_hint().startswith('pip install -e "." ')


def test_the_remedy_names_the_wheel_a_board_was_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Wheel:
        def read_text(self, name: str) -> str:
            assert name == "direct_url.json"
            return json.dumps({"url": f"file://{tmp_path}/tapml-0.1.0-py3-none-any.whl"})

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Wheel())
    installed._own_wheel.cache_clear()
    try:
        said = 'pip install "tapml-0.1.0-py3-none-any.whl[opencl]", the wheel'
        assert install_hint("opencl").startswith(said)
    finally:
        installed._own_wheel.cache_clear()


@pytest.mark.parametrize("package", BASE_PACKAGES)
def test_each_package_of_the_base_install_has_its_own_remedy(package: str) -> None:
    hint = package_hint(package)
    assert hint.startswith(f'pip install "{package}')
    assert ">=" in hint
