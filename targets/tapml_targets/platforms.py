"""The platforms that exist: one folder each, with the same file names inside.

The folders beside this file are tapml's own. Any other distribution adds one by an entry point of
the group ``tapml.platforms``, whose name is the platform's and whose value is an import package
with the same file names. Generic code asks here for a platform's parts and never by its name.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Final

from tapml_targets.errors import InputError, SetupError
from tapml_targets.kernel_language import KernelLanguage

ENTRY_POINTS: Final = "tapml.platforms"
"""The group of entry points by which other distributions add platforms."""

DEFAULT_PLATFORM: Final = "opencl"
"""Used if no device is named: every machine can have one, since a driver for processors is a wheel;
other OpenCL devices are preferred to it."""

_HERE: Final = Path(__file__).parent
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
_ADDRESS: Final = "an address begins with tcp://, ws:// or wss://"
_BROWSER: Final = (
    "a browser is a device: --device browser, browser:chromium or browser:firefox, and its target "
    "is {browsers}"
)
# Names that users give in place of a platform, and the option that takes each.
_NO_PLATFORMS: Final = MappingProxyType(
    {
        **dict.fromkeys(("tcp", "ws", "wss"), _ADDRESS),
        **dict.fromkeys(("browser", "chrome", "chromium", "firefox"), _BROWSER),
        "tracker": "a tracker's device is --device tracker:NAME, and its target is its platform",
    }
)


@cache
def own_platforms() -> tuple[str, ...]:
    """Names of the platforms that are part of tapml, sorted."""
    folders = (each.parent for each in _HERE.glob("*/driver.py"))
    # A folder that compiles nothing serves platforms and is none: the simulator.
    return tuple(sorted(each.name for each in folders if any(each.glob("codegen*"))))


@cache
def _offers() -> tuple[Mapping[str, EntryPoint], Mapping[str, str]]:
    """The entry points of other distributions by name, and what is wrong with unusable ones."""
    found: dict[str, EntryPoint] = {}
    wrong: dict[str, str] = {}
    for offer in entry_points(group=ENTRY_POINTS):
        problem = ""
        if not _NAME.fullmatch(offer.name) or offer.name in _NO_PLATFORMS:
            problem = "expected a name of lower-case letters, digits and _ that means nothing else"
        elif offer.name in own_platforms():
            problem = "tapml itself has a platform of this name"
        elif offer.attr or not all(map(str.isidentifier, offer.module.split("."))):
            problem = f"expected the name of an import package, got {offer.value[:80]!r}"
        elif found.setdefault(offer.name, offer).value != offer.value:
            problem = f"{_origin(found[offer.name])} has a platform of this name as well"
        if problem:
            wrong[offer.name[:40]] = f"the platform of {_origin(offer)} is left out: {problem}"
    return MappingProxyType(found), MappingProxyType(wrong)


def _origin(offer: EntryPoint) -> str:
    return f"{offer.dist.name} {offer.dist.version}" if offer.dist else offer.value


@cache
def platform_names() -> tuple[str, ...]:
    """Names of all platforms, sorted: tapml's own and those of other distributions."""
    return tuple(sorted({*own_platforms(), *_offers()[0]}))


def left_out_platforms() -> Mapping[str, str]:
    """Why a platform that a distribution offers is none, by its name."""
    return _offers()[1]


def check_platform(name: str) -> str:
    """Return `name` if it is a platform.

    Raises
    ------
    InputError
        If it is not; the message lists the platforms and suggests the nearest.
    """
    if name not in platform_names():
        known = ", ".join(platform_names())
        raise InputError(f"unknown target {name!r}; known targets: {known}{_hint(name)}")
    return name


def _hint(name: str) -> str:
    """A suggestion for a mistyped name, or an empty string."""
    found = get_close_matches(name.lower(), (*platform_names(), *_NO_PLATFORMS), n=1, cutoff=0.7)
    if not found:
        return ""
    known = _NO_PLATFORMS.get(found[0], f"did you mean {found[0]!r}?")
    return f"; {known.format(browsers=browser_platform())}"


def platform_package(name: str) -> str:
    """The import package of a platform: ``tapml_targets.opencl``.

    Raises
    ------
    InputError
        If there is no such platform.
    """
    offer = _offers()[0].get(check_platform(name))
    return f"{__package__}.{name}" if offer is None else offer.module


def platform_folder(name: str) -> Path:
    """The folder of a platform's files.

    Raises
    ------
    InputError
        If there is no such platform.
    SetupError
        If the package of another distribution is missing.
    """
    package = platform_package(name)
    if name in own_platforms():
        return _HERE / name
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:
        spec = None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders or not (Path(folders[0]) / "driver.py").is_file():
        raise _unusable(name, f"there is no package {package!r} with a driver.py")
    return Path(folders[0])


def platform_state(name: str) -> str:
    """Text that changes when a platform of another distribution does; empty for tapml's own.

    Raises
    ------
    InputError
        If there is no such platform.
    SetupError
        If the package of another distribution is missing.
    """
    if check_platform(name) in own_platforms():
        return ""
    times = (path.stat().st_mtime_ns for path in platform_folder(name).rglob("*.py"))
    return f"{_origin(_offers()[0][name])} {max(times)}"


def platform_part(name: str, part: str = "") -> ModuleType:
    """Import a file of a platform, such as ``driver``, or its package.

    Raises
    ------
    InputError
        If there is no such platform.
    SetupError
        If it belongs to another distribution and cannot be imported.
    """
    module = f"{platform_package(name)}.{part}".rstrip(".")
    if name in own_platforms():
        return importlib.import_module(module)
    platform_folder(name)
    try:
        return importlib.import_module(module)
    except Exception as error:
        # Whatever a stranger's module raises must not end the command for all other platforms.
        raise _unusable(name, f"importing {module} failed: {error!r:.300}") from error


def _unusable(name: str, problem: str) -> SetupError:
    origin = _origin(_offers()[0][name])
    return SetupError(
        f"the platform {name!r} of {origin} cannot be used: {problem}; install a version that "
        "fits, or uninstall it"
    )


def has_part(name: str, part: str) -> bool:
    """Whether a platform has an optional file or folder of modules, such as ``probe``.

    Raises
    ------
    InputError
        If there is no such platform.
    SetupError
        If the package of another distribution is missing.
    """
    folder = platform_folder(name)
    return (folder / f"{part}.py").is_file() or (folder / part / "__init__.py").is_file()


def optional_part(name: str, part: str) -> ModuleType | None:
    """Import an optional file of a platform, such as ``probe.py``; None if it has none.

    Raises
    ------
    InputError
        If there is no such platform.
    SetupError
        If it belongs to another distribution and cannot be imported.
    """
    return platform_part(name, part) if has_part(name, part) else None


def load_driver_module(name: str) -> ModuleType:
    """Import a platform's ``driver.py``; raises as :func:`platform_part`."""
    return platform_part(name, "driver")


def function_kind(name: str) -> str:
    """Which form of an operator a platform compiles, ``cpu`` or ``gpu``.

    Raises
    ------
    InputError
        If there is no such platform.
    SetupError
        If it belongs to another distribution and cannot be imported, or does not say it.
    """
    kind = getattr(platform_part(name), "FUNCTION_KIND", None)
    if kind not in ("cpu", "gpu"):
        raise _unusable(name, f"its FUNCTION_KIND is {kind!r}, not 'cpu' or 'gpu'")
    return str(kind)


@cache
def browser_platform() -> str:
    """The platform of which every browser is a device: its package says ``IN_BROWSERS``."""
    return next(name for name in own_platforms() if hasattr(platform_part(name), "IN_BROWSERS"))


def browser_standard() -> str:
    """What browsers call it, which messages for a person name."""
    return str(platform_part(browser_platform()).IN_BROWSERS)


def kernel_language(name: str) -> KernelLanguage | None:
    """The language of a platform's kernels (``language.py``); None if they are machine code.

    Raises
    ------
    InputError
        If there is no such platform.
    SetupError
        If it belongs to another distribution and cannot be imported.
    """
    part = optional_part(name, "language")
    if part is None:
        return None
    found: KernelLanguage = part.LANGUAGE
    return found


@cache
def kernel_languages() -> Mapping[str, KernelLanguage]:
    """The language of every platform that has one and can be imported, by platform."""
    found: dict[str, KernelLanguage] = {}
    for name in platform_names():
        try:
            language = kernel_language(name)
        except SetupError:
            continue  # listing its devices says why
        if language is not None:
            found[name] = language
    return MappingProxyType(found)


@cache
def language_of_dialect(dialect: str) -> KernelLanguage | None:
    """The language that a Library's modules name so; None if they may be machine code."""
    return next((each for each in kernel_languages().values() if each.dialect == dialect), None)
