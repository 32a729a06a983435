"""Finds engines, and says what an engine is."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, Protocol, cast

from tapml.distributed import engines
from tapml.distributed.results import Setting
from tapml_targets.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tapml.distributed.job_file import Job

GROUP: Final = "tapml.engines"
"""The entry points of engines in other packages."""
OWN: Final = "own"
"""The engine that calls the job's ``distribute``."""


@dataclass(frozen=True)
class Rule:
    """A named reason why settings are invalid.

    Attributes
    ----------
    name
        Such as ``dense-is-data-parallel``.
    reason
        What the library says, or why the values contradict each other.
    prunes
        Whether a setting is invalid.
    """

    name: str
    reason: str
    prunes: Callable[[Setting], bool]


@dataclass(frozen=True)
class Traits:
    """What settings may depend on in a job.

    Attributes
    ----------
    has_distribute
        Whether it defines ``distribute``.
    modules
        Names of the classes of all its modules, by path.
    functions
        Optional functions that it defines.
    """

    has_distribute: bool
    modules: Mapping[str, str]
    functions: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Published:
    """A setting of the paper, in its words; `missing` says why it cannot run here, or is empty."""

    name: str
    missing: str


@dataclass(frozen=True)
class Served:
    """A setting that serves the model which one device has trained, and trains nothing.

    Attributes
    ----------
    formats
        Options that one device serves with as well: what it then predicts is the reference.
    roundoff
        Unit roundoff of the format in which each rank's part of a sum is rounded.
    package
        The engine's, which :meth:`Engine.served` fills in.
    """

    formats: tuple[tuple[str, str], ...]
    roundoff: float
    package: str = ""


class EngineSettings(Protocol):
    """The module ``settings`` of an engine.

    It may also have

    - ``usual(traits) -> Mapping[str, tuple[str, ...]]``: values of parameters that a check was not
      asked for; no values for the library's default;
    - ``serves(setting) -> Served | None``: how a setting serves a trained model; None if it trains;
    - ``COMMON_FOLDER``: parameters with which the ranks need one, unless their value is ``none``;
    - ``FRAMEWORK``, which says how jobs are run that are not PyTorch's
      (:class:`~tapml.distributed.frameworks.Framework`).

    Attributes
    ----------
    TITLE
        What it distributes with, for the user.
    PRELOAD
        Modules that its ranks import.
    SPLITS
        Whether each rank gets its own samples; else all get the whole batch.
    FLOAT64
        Whether it runs in float64.
    OPTIONS
        Its own parameters of a setting and their values.
    RULES
        Prune the combinations that are invalid; the first that applies counts.
    """

    TITLE: str
    PRELOAD: tuple[str, ...]
    SPLITS: bool
    FLOAT64: bool
    OPTIONS: Mapping[str, tuple[str, ...]]
    RULES: tuple[Rule, ...]

    def missing(self, setting: Setting) -> str:
        """What this machine lacks to run a setting, and how to get it; empty if nothing."""

    def refuse(self, setting: Setting, traits: Traits) -> str:
        """Why a job cannot run under a setting; empty if it can."""

    def published(self) -> list[Published]:
        """The settings of the paper that this engine stands for."""


@dataclass(frozen=True)
class Held:
    """A parameter whose shards a library keeps in its own way.

    Attributes
    ----------
    name, shape
        Of the whole parameter.
    blocks
        The local shards, and where each begins in the whole.
    rate
        Learning rate of plain SGD, if the library takes the step during backward: the gradient is
        then the update over it. Zero if the gradient is not known.
    """

    name: str
    shape: tuple[int, ...]
    blocks: tuple[tuple[tuple[int, ...], torch.Tensor], ...]
    rate: float = 0.0


class EngineRanks(Protocol):
    """The module ``ranks`` of an engine.

    It may also have

    - ``step(job, model, batch, optimizer, **options)``, which is called in place of the job's step;
    - ``APART``, whether ranks hold whole parameters that no other rank has;
    - ``held(model) -> tuple[frozenset[str], list[Held]]``: the names of all parameters that the
      library keeps in its own way, and this rank's shards of them;
    - ``shard_optimizer(optimizer, model) -> tuple[Any, Any]``: what steps in place of the job's
      optimizer, and what holds its state;
    - ``serve(model, world, **options) -> nn.Module``: the trained model as one process serves it
      from `world` shards, or from one device where that is 0.
    """

    def distribute(
        self, model: nn.Module, job: Job, rank: int, world: int, **options: str
    ) -> nn.Module:
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

    def served(self, setting: Setting) -> Served | None:
        """How a setting serves a trained model; None if it trains."""
        serves = getattr(self.settings, "serves", None)
        found: Served | None = None if serves is None else serves(setting)
        return None if found is None else replace(found, package=self.package)


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
