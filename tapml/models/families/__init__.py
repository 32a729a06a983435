"""Families of models: one file for each architecture, found by file.

A file defines ``FAMILY``, a :class:`~tapml.models.families.family.Family`; its class comes from
``transformers`` or from tapml, never from a model's folder. Importing a family imports neither
torch nor transformers.
"""

from __future__ import annotations

import difflib
import pkgutil
from functools import cache
from importlib import import_module

from tapml.models.families.family import Family


@cache
def families() -> dict[str, Family]:
    """Every family by the name of its file."""
    found = {}
    for file in pkgutil.iter_modules(__path__):
        family = getattr(import_module(f"{__name__}.{file.name}"), "FAMILY", None)
        if isinstance(family, Family):
            found[file.name] = family
    return found


@cache
def architectures() -> dict[str, Family]:
    """The family of every known class name."""
    return {name: family for family in families().values() for name in family.architectures}


def nearest(architecture: object) -> str:
    """The known class name that is most like an unknown one: a task follows the model's name."""
    wanted = str(architecture)

    def likeness(known: str) -> tuple[float, float]:
        names = (wanted.partition("For")[0], known.partition("For")[0])
        return _alike(*names), _alike(wanted, known)

    return max(sorted(architectures()), key=likeness)


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
