from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.environment import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
REQUIREMENTS = PROJECT["dependencies"] + [text for texts in EXTRAS.values() for text in texts]

# PyTorch's CUDA build, which pip takes where its index for processors cannot be reached, brings an
# NVRTC of its own version.
UNPINNED = {"nvidia-cuda-nvrtc"}


def pins() -> dict[str, str]:
    """Versions in the constraints file, by canonical name."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    parts = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in parts}


def test_what_pytorch_brings_in_a_version_of_its_own_is_not_pinned() -> None:
    assert not UNPINNED & pins().keys()


@pytest.mark.parametrize(
    "text", sorted({text for text in REQUIREMENTS if Requirement(text).name not in UNPINNED})
)
def test_every_requirement_is_pinned_within_its_range(text: str) -> None:
    requirement = Requirement(text)
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])
