"""Which backends there are, and the environment that one runs in.

A name is ``NAME`` or ``NAME:VARIANT``, for example an optimization level. ``NAME@VERSION`` runs
another version of the library than the one that is installed.
"""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points
from importlib.metadata import version as distribution_version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import tapml.backends
from tapml.backends.description import Description
from tapml_targets.errors import InputError
from tapml_targets.platforms import DEFAULT_PLATFORM

GROUP: Final = "tapml.backends"
_SPECIFICATION: Final = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9-]*)(@(?P<version>[^:@]*))?(:(?P<variant>[a-z0-9-]+))?"
)
_VERSION: Final = re.compile(r"(?P<numbers>\d+(\.\d+)*)(?P<any>\.x)?(?P<other>[a-z0-9.+]*)")

_NEAR: Final = 0.5
"""How alike a name must be, so that ``jax`` is near to ``keras-jax``."""


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
    version
        Of the description's first package; empty for what is installed here.
    """

    text: str
    package: str
    description: Description
    variant: str = ""
    version: str = ""

    def missing(self) -> list[str]:
        """The requirements that this environment lacks; another version has its own."""
        if self.version:
            return []
        return [
            requirement
            for module, requirement in self.description.packages.items()
            if find_spec(module) is None
        ]

    def installed(self) -> list[str]:
        """The releases of its packages here, with the version that was asked for."""
        return [self.text, *map(_installed, self.description.packages.values())]

    def requirements(self) -> list[str]:
        """What an environment of its own must have, for pip.

        Of the other packages it is the release that is installed here, so that one library differs.
        """
        own, *others = self.description.packages.values()
        return [f"{_project(own)}{_release(self.version)}",
                *map(_installed, others), *self.description.needs]  # fmt: skip


def _project(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _release(version: str) -> str:
    """``1.20`` and ``1.20.x`` are the newest 1.20; what is more than numbers is that release."""
    match = _VERSION.fullmatch(version)
    if match is None or (match["any"] and match["other"]):
        raise InputError(f"{version!r} is no version; expected one such as 1.20 or 1.20.1")
    return f"=={match['numbers']}{match['other'] or '.*'}"


def _installed(requirement: str) -> str:
    try:
        return f"{_project(requirement)}=={distribution_version(_project(requirement))}"
    except PackageNotFoundError:
        return requirement


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


def readers_of(model: Path) -> list[str]:
    """The names of the backends that read a model file or folder."""
    return [name for name in backends() if describe(name).reads(model)]


def find_backend(text: str) -> Backend:
    """The backend of a name such as ``onnxruntime:basic`` or ``onnxruntime@1.20:basic``.

    Raises
    ------
    InputError
        If the backend or variant does not exist, or the version is not a valid one.

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
            if match and match["version"] is not None and description.claims is not None and (
                description.claims(name)
            ):  # fmt: skip
                raise InputError(f"{name} is a device, which has no version: write {name}")
        near = get_close_matches(name, backends(), 2, _NEAR)
        meant = f"; did you mean {' or '.join(near)}" if near else ""
        raise InputError(
            f"no backend is named {name!r}{meant}; there are {', '.join(backends())}, and devices "
            f"such as {DEFAULT_PLATFORM}:0 and tcp://HOST:PORT"
        )
    description = describe(name)
    variant = match["variant"] or next(iter(description.variants), "")
    if variant and variant not in description.variants:
        known = ", ".join(f"{name}:{each}" for each in description.variants) or "no variants"
        raise InputError(f"{name} has no variant {variant!r}; there are {known}")
    version = match["version"]
    if version is not None:
        _release(version)
    return Backend(text, backends()[name], description, variant, version or "")
