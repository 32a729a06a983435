"""The interpreter, environment variables and modules of a child process."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tapml.isolate import boot
from tapml_targets.errors import SetupError

_INTERPRETER_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "__PYVENV_LAUNCHER__")


@dataclass(frozen=True)
class Environment:
    """Where jobs run. A pool has one warm server per environment.

    Attributes
    ----------
    python
        Another interpreter, for example of a virtual environment, Python 3.11 or newer; None for
        this one. ``tapml``, ``tapml_targets`` and the packages of the pool's jobs are shared with
        it. It must have what the jobs import, and numpy if arrays are sent.
    variables
        Environment variables to add to this process's.
    preload
        Modules the server imports before it forks. They must not start threads: threads do not
        survive a fork.
    without
        Modules whose import must fail, even if they are installed.
    lent
        Packages that another interpreter gets from this one, besides those of the jobs.
    scratch
        Whether every process has a folder of its own for temporary files, which is removed when it
        has ended: libraries leave theirs in a process that is killed.
    """

    python: str | os.PathLike[str] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    lent: tuple[str, ...] = ()
    scratch: bool = False

    def command(self, descriptor: int, jobs: Iterable[str]) -> list[str]:
        """The server's command line. Raises SetupError if the interpreter does not exist."""
        python = shutil.which(sys.executable if self.python is None else self.python)
        if python is None:
            raise SetupError(
                f"{self.python} is not an executable Python interpreter: give the path of "
                "bin/python in a virtual environment"
            )
        shared: dict[str, boot.Location] = {}
        if self.python is not None:
            names = {"tapml", "tapml_targets", *self.lent}
            names.update(re.split("[.:]", job)[0] for job in jobs)
            shared = boot.find_locations(names)
        return [python, "-P", boot.__file__, str(descriptor), json.dumps(shared)]

    def variables_of_server(self) -> dict[str, str]:
        """All environment variables of the server."""
        inherited = dict(os.environ)
        if self.python is None:
            inherited["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        else:
            for name in _INTERPRETER_VARIABLES:
                inherited.pop(name, None)
        return {**inherited, **self.variables}
