"""Finds engines, and says what an engine is."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, Protocol, cast

from tapml.distributed import engines
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from tapml.distributed.job_file import Job

GROUP: Final = "tapml.engines"
"""The entry points of engines in other packages."""
OWN: Final = "own"
"""The engine that calls the job's ``distribute``."""


class EngineSettings(Protocol):
    """The module ``settings`` of an engine.

    Attributes
    ----------
    TITLE
        What it distributes with, for the user.
    PRELOAD
        Modules that its ranks import.
    """

    TITLE: str
    PRELOAD: tuple[str, ...]

    def refuse(self, world: int, *, has_distribute: bool) -> str:
        """Why a world cannot be run, from the library's documentation; empty if it can."""


class EngineRanks(Protocol):
    """The module ``ranks`` of an engine."""

    def distribute(self, model: nn.Module, job: Job, rank: int, world: int) -> nn.Module:
        """Wrap the model. The default process group exists, and all ranks call this."""


@dataclass(frozen=True)
class Engine:
    """An engine by its name; `package` is the module that holds it."""

    name: str
    package: str

    @property
    def settings(self) -> EngineSettings:
        """Its module ``settings``."""
        return cast(EngineSettings, import_module(f"{self.package}.settings"))


def engine_packages() -> dict[str, str]:
    """The packages of all engines by name, ours first."""
    modules = pkgutil.iter_modules(engines.__path__)
    ours = {each.name: f"{engines.__name__}.{each.name}" for each in modules}
    others = {each.name: each.value for each in entry_points(group=GROUP)}
    return ours | {name: value for name, value in others.items() if name not in ours}


def find_engine(name: str) -> Engine:
    """The engine of that name. Raises InputError if it does not exist."""
    packages = engine_packages()
    if name not in packages:
        near = get_close_matches(name, packages, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"unknown engine {name!r}{hint}; known: {', '.join(sorted(packages))}")
    return Engine(name, packages[name])


def ranks_of(package: str) -> EngineRanks:
    """The module ``ranks`` of an engine's package."""
    return cast(EngineRanks, import_module(f"{package}.ranks"))
