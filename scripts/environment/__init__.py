"""The project's own virtual environment: made once, complete or not at all, found at once after.

Standard library only: it runs under any Python 3.11 before anything is installed. The parts are
`location` (where), `record` (what a folder is known to hold), `lock` (one set-up at a time),
`installer` (pip, step by step), `setup` (the order of it all) and `debian` (system packages).
"""

from __future__ import annotations

from scripts.environment.installer import SetupError
from scripts.environment.location import ROOT
from scripts.environment.setup import Environment, ensure, enter, setup_seconds

__all__ = ["ROOT", "Environment", "SetupError", "ensure", "enter", "setup_seconds"]
