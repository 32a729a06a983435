"""Limit profiles: what another device can take, so that code for it is made and checked here.

A profile is a TOML file with a ``description`` and a table ``limits``, whose keys are those of
:class:`~tapml_targets.limits.Limits`. A platform brings profiles in ``profiles/*.toml`` of its
folder; anybody may write one of their own and name its path.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError
from tapml_targets.limits import Limits
from tapml_targets.platforms import platform_folder

_MAX_BYTES: Final = 64 << 10
_SUFFIX: Final = ".toml"
_TRIPLES: Final = frozenset({"max_block", "max_grid"})
_FEATURES: Final = "features"
_SUBGROUPS: Final = "subgroups"
# The greater one binds: a window must be aligned for both.
_GREATER_BINDS: Final = "offset_alignment"


@dataclass(frozen=True)
class LimitProfile:
    """Limits by name.

    Attributes
    ----------
    name
        Of the file, without its ending.
    description
        One line for people.
    limits
        Bounds; 0 where the profile states none.
    tells_features
        Whether it says which features there are; else those of the device count.
    """

    name: str
    description: str
    limits: Limits
    tells_features: bool = True

    def within(self, device: Limits) -> Limits:
        """What both `device` and the profile can take: the smaller bound of each kind.

        Code is for the profile's architecture where it names one. Where no width of a subgroup
        suits both there are none.
        """
        found: dict[str, Any] = {}
        for field in fields(Limits):
            mine, theirs = getattr(self.limits, field.name), getattr(device, field.name)
            if field.name == _FEATURES:
                found[field.name] = mine & theirs if self.tells_features else theirs
            elif field.name in _TRIPLES:
                found[field.name] = tuple(map(_smaller, mine, theirs))
            elif field.name == _GREATER_BINDS:
                found[field.name] = max(mine, theirs)
            elif field.name == "architecture":
                found[field.name] = mine or theirs
            elif field.name != "subgroup_widths":
                found[field.name] = _smaller(mine, theirs)
        ours, others = self.limits.subgroup_widths, device.subgroup_widths
        widths = max(ours[0], others[0]), _smaller(ours[1], others[1])
        if widths[0] > widths[1]:
            widths = 0, 0
            found[_FEATURES] = found[_FEATURES] - {_SUBGROUPS}
        return Limits(**found, subgroup_widths=widths)


def profile_names(platform: str) -> tuple[str, ...]:
    """Names of the profiles that a platform brings, sorted.

    Raises
    ------
    InputError
        If there is no such platform.
    """
    folder = _folder(platform)
    return tuple(sorted(path.stem for path in folder.glob(f"*{_SUFFIX}")))


def narrowed(description: DeviceDescription, name: str) -> DeviceDescription:
    """A device with its limits restricted by a profile of its platform, or of a file.

    A platform that can opens it with them, so that the implementation itself refuses the rest.

    Raises
    ------
    InputError
        As :func:`load_profile` does.
    """
    profile = load_profile(description.platform, name)
    return replace(description, limits=profile.within(description.limits))


def load_profile(platform: str, name: str) -> LimitProfile:
    """The profile of a platform called `name`, or in the file of that path.

    Raises
    ------
    InputError
        If there is none, or it names something that is not a limit; the message names it.
    """
    path = _folder(platform) / f"{name}{_SUFFIX}"
    if name not in profile_names(platform):
        path = Path(name)
        if path.suffix == _SUFFIX and not path.is_file():
            raise InputError(f"there is no file of a limit profile at {name}")
        if path.suffix != _SUFFIX:
            known = ", ".join(profile_names(platform)) or "none"
            raise InputError(
                f"no limit profile {name!r} of {platform}; known profiles: {known}; or name a file "
                f"that ends in {_SUFFIX}"
            )
    try:
        data = path.read_bytes()
        if len(data) > _MAX_BYTES:
            raise InputError(f"{path}: a limit profile has at most {_MAX_BYTES} bytes")
        document = tomllib.loads(data.decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"the limit profile {path} cannot be read: {error}") from None
    return _profile(document, path)


def _profile(document: dict[str, Any], path: Path) -> LimitProfile:
    unknown = sorted(document.keys() - {"description", "limits"})
    table = document.get("limits")
    if unknown or not isinstance(table, dict):
        what = f"unexpected {unknown[0]!r}" if unknown else "no table `limits`"
        raise InputError(f"{path}: expected `description` and a table `limits`; {what}")
    known = [field.name for field in fields(Limits)]
    for key in table:
        if key not in known:
            raise InputError(f"{path}: there is no limit {key!r}; there are {', '.join(known)}")
    try:
        limits = msgspec.convert(table, Limits)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{path}: a limit is a whole number, 0 for no bound, or a list of them; features are "
            f"a list of names, an architecture is a name: {error}"
        ) from None
    return LimitProfile(
        name=path.stem,
        description=str(document.get("description", "")),
        limits=limits,
        tells_features=_FEATURES in table,
    )


def _smaller(mine: int, theirs: int) -> int:
    """The smaller bound; 0 is none."""
    return min(filter(None, (mine, theirs)), default=0)


def _folder(platform: str) -> Path:
    return platform_folder(platform) / "profiles"
