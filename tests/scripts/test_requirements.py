from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.environment.location import ROOT
from scripts.environment.setup import NEEDED_MB, WHAT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
REQUIREMENTS = PROJECT["dependencies"] + [text for texts in EXTRAS.values() for text in texts]


def pins() -> dict[str, str]:
    """Versions in the constraints file, by canonical name."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    parts = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in parts}


@pytest.mark.parametrize("text", sorted(set(REQUIREMENTS)))
def test_every_requirement_is_pinned_within_its_range(text: str) -> None:
    requirement = Requirement(text)
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


def test_the_setup_names_extras_that_exist() -> None:
    assert set(WHAT) | set(NEEDED_MB) <= set(EXTRAS)
