"""Which backends there are, and the environment that one runs in.

A name is ``NAME`` or ``NAME:VARIANT``, for example an optimization level.
"""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Final

import tapml.backends
from tapml.backends.description import Description
from tapml_targets.errors import InputError
from tapml_targets.platforms import DEFAULT_PLATFORM

GROUP: Final = "tapml.backends"
_SPECIFICATION: Final = re.compile(r"(?P<name>[a-z0-9][a-z0-9-]*)(:(?P<variant>[a-z0-9-]+))?")


@dataclass(frozen=True)
class Backend:
    """A backend that was asked for.

    Attributes
    ----------
    text
        As it was asked for; its name everywhere.
    package
        The Python package with its ``runner`` module.
    description
        What it needs and understands.
    variant
        One of the description's, or empty.
    """

    text: str
    package: str
    description: Description
    variant: str = ""

    def missing(self) -> list[str]:
        """The requirements that this environment lacks."""
        return [
            requirement
            for module, requirement in self.description.packages.items()
            if find_spec(module) is None
        ]


@cache
def backends() -> dict[str, str]:
    """The package of every backend by its name, those of other distributions included."""
    own = {
        each.name.replace("_", "-"): f"{tapml.backends.__name__}.{each.name}"
        for each in pkgutil.iter_modules(tapml.backends.__path__)
        if each.ispkg
    }
    others = {each.name: each.value for each in entry_points(group=GROUP)}
    return dict(sorted((others | own).items()))


def describe(name: str) -> Description:
    """The description of a backend by its name, a key of :func:`backends`."""
    found = import_module(backends()[name]).DESCRIPTION
    if not isinstance(found, Description):
        raise InputError(f"the backend {name} has no DESCRIPTION of the type Description")
    return found


def find_backend(text: str) -> Backend:
    """The backend of a name such as ``onnxruntime:basic``.

    Raises
    ------
    InputError
        If there is no such backend or variant.

    Examples
    --------
    >>> find_backend("onnxruntime:basic").variant
    'basic'
    """
    match = _SPECIFICATION.fullmatch(text)
    name = match["name"] if match else text
    if match is None or name not in backends():
        for owner, package in backends().items():
            description = describe(owner)
            if description.claims is not None and description.claims(text):
                return Backend(text, package, description, text)
        raise InputError(
            f"no backend is named {name!r}; there are {', '.join(backends())}, and devices such as "
            f"{DEFAULT_PLATFORM}:0 and tcp://HOST:PORT"
        )
    description = describe(name)
    variant = match["variant"] or next(iter(description.variants), "")
    if variant and variant not in description.variants:
        known = ", ".join(f"{name}:{each}" for each in description.variants) or "no variants"
        raise InputError(f"{name} has no variant {variant!r}; there are {known}")
    return Backend(text, backends()[name], description, variant)
