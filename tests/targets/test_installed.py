"""Versions and remedies come from one place."""

from __future__ import annotations

from importlib.metadata import version

from tapml_targets.installed import compiler_versions, install_hint, package_version, versions_text


def test_an_installed_package_has_its_version_and_another_has_none() -> None:
    assert package_version("numpy") == version("numpy")
    assert package_version("tapml-does-not-have-this") is None


def test_a_package_without_metadata_still_has_a_place_in_a_key() -> None:
    assert versions_text("tapml-does-not-have-this") == "tapml-does-not-have-this built here"
    assert version("apache-tvm") in compiler_versions()
    assert version("apache-tvm-ffi") in compiler_versions()


def test_a_remedy_names_the_extras_and_installs_by_path() -> None:
    assert install_hint("host", "opencl").startswith('pip install -e ".[host,opencl]" ')
    assert install_hint().startswith('pip install -e "." ')
