"""The environment of a child process that uses a platform."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import tapml_rpc
import tapml_targets
from tapml_targets.driver_discovery import driver_discovery

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def prepared_environment(platform: str, additions: Mapping[str, str] = NOTHING) -> dict[str, str]:
    """A child's environment: the path to our packages, and what the platform's loader needs."""
    roots = [str(Path(path).parent) for path in (*tapml_rpc.__path__, *tapml_targets.__path__)]
    environment = dict(os.environ) | dict(additions)
    known = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join([*roots, known] if known else roots)
    # A loader reads its paths once, at the start of a process: platforms set them beforehand.
    return driver_discovery(platform).prepare_environment(environment)
