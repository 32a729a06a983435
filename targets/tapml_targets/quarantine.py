"""Drivers that hang or crash while they list their devices, and are left out for a day.

A variable may make a driver crash, so it is tried again with other variables.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tapml_targets import probe_cache
from tapml_targets.installed import package_version


@dataclass(frozen=True)
class Quarantine:
    """The drivers of one loader; its methods are functions of a platform's ``discovery.py``.

    Attributes
    ----------
    kind
        Name of its entries in the cache of probes.
    prefixes
        Prefixes of the variables that the loader and its drivers read.
    places
        Those of them that select drivers; tapml sets them itself.
    is_chosen
        Whether the user has chosen the drivers in an environment.
    states
        By the file that names a driver, texts that change when the driver does.
    alone
        Variables with which the loader sees one driver only, by the file that names it.
    """

    kind: str
    prefixes: tuple[str, ...]
    places: tuple[str, ...]
    is_chosen: Callable[[Mapping[str, str]], bool]
    states: Callable[[], Mapping[str, Sequence[str]]]
    alone: Callable[[str], Mapping[str, str]]

    def left_out(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The drivers that are left out, by the file that names them, with what each did."""
        if self.is_chosen(environ):
            return {}
        reasons = {}
        for name, state in self.states().items():
            known = probe_cache.load(self.kind, name, self._state(state, environ))
            if known and known.get("reason"):
                reasons[name] = str(known["reason"])
        return reasons

    def set_faulty_drivers_aside(self, ask: Callable[[Mapping[str, str]], str]) -> dict[str, str]:
        """Find the drivers that hang or crash while they list their devices, and leave them out.

        Parameters
        ----------
        ask
            Lists the devices in a child process with the given environment; returns what went
            wrong, or an empty text.

        Returns
        -------
        dict
            The drivers found now, as :meth:`left_out` gives them.
        """
        if self.is_chosen(os.environ):
            return {}
        faulty = {}
        known = self.left_out()
        for name, state in self.states().items():
            if name in known:
                continue
            problem = ask({**os.environ, **self.alone(name)})
            if problem:
                entry = {"reason": problem}
                probe_cache.store(self.kind, name, self._state(state, os.environ), entry)
                faulty[name] = problem
        return faulty

    def chosen_by(self) -> str:
        """The variable by which the user has chosen the drivers; empty where they are found."""
        if not self.is_chosen(os.environ):
            return ""
        return next((name for name in self.places if os.environ.get(name)), "")

    def forget_faulty_drivers(self) -> None:
        """Use every driver again, until one fails again."""
        for name, state in self.states().items():
            probe_cache.forget(self.kind, name, self._state(state, os.environ))

    def _state(self, driver: Sequence[str], environ: Mapping[str, str]) -> list[str]:
        settings = settings_of(environ, self.prefixes)
        return [*driver, *(f"{n}={v}" for n, v in settings.items() if n not in self.places)]


def settings_of(environ: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """The variables that begin with one of `prefixes`, sorted."""
    return {name: value for name, value in sorted(environ.items()) if name.startswith(prefixes)}


def state_of_drivers(
    environ: Mapping[str, str],
    prefixes: tuple[str, ...],
    package: str,
    files: Iterable[Path | None],
) -> str:
    """A hash of the installed drivers and of the variables that select them; loads no driver.

    Parameters
    ----------
    environ, prefixes
        The environment, and the prefixes of the variables that select drivers.
    package
        The distribution through which the platform loads them.
    files
        Every file that names a driver, and the driver's own; None for one found by name.
    """
    digest = hashlib.sha256(sys.prefix.encode())
    for name, value in settings_of(environ, prefixes).items():
        digest.update(f"{name}={value}\0".encode())
    digest.update((package_version(package) or f"no {package}").encode())
    for file in files:
        digest.update(stamp(file).encode())
    return digest.hexdigest()


def stamp(path: Path | None) -> str:
    """Text that changes when the file at `path` does."""
    if path is None:
        return "by name\0"
    try:
        status = path.stat()
    except OSError:
        return f"{path}: missing\0"
    return f"{path}: {status.st_size} {status.st_mtime_ns}\0"
