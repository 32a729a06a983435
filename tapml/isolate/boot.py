"""Starts the server in an interpreter that may have none of this one's packages.

It runs as a script. Its arguments are the server's socket and the locations of the packages to
share. Only these are shared: other packages in the same folder may be built for another Python.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from types import ModuleType

# The file (None for a namespace package) and the folders of submodules (None for a module).
Location = tuple[str | None, list[str] | None]


class SharedFinder(MetaPathFinder):
    """Finds the shared top-level packages and modules."""

    def __init__(self, locations: dict[str, Location]) -> None:
        self._locations = locations

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a shared package, or None."""
        del path, target
        if fullname not in self._locations:
            return None
        origin, folders = self._locations[fullname]
        if origin is not None:
            return spec_from_file_location(fullname, origin, submodule_search_locations=folders)
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = folders
        return spec


def find_locations(names: set[str]) -> dict[str, Location]:
    """Locations of the named packages, except the standard library and what is not installed."""
    locations: dict[str, Location] = {}
    for name in names - sys.stdlib_module_names:
        spec = find_spec(name)
        if spec is not None:
            folders = spec.submodule_search_locations
            locations[name] = (spec.origin, None if folders is None else list(folders))
    return locations


if __name__ == "__main__":
    sys.meta_path.insert(0, SharedFinder(json.loads(sys.argv[2])))
    from tapml.isolate.server import main

    main(int(sys.argv[1]))
