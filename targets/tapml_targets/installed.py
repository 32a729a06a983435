"""What is installed here, and how to install what is not."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from typing import Final

COMPILER_DISTRIBUTIONS: Final = ("apache-tvm", "apache-tvm-ffi")
BASE_PACKAGES: Final = ("numpy", "msgpack", "pyzmq", "websockets", "rich")
WITHOUT_PYZMQ: Final = (
    "use WebSocket, which takes no pyzmq: `tapml rpc serve --websocket ws://127.0.0.1:9191`, "
    "devices and trackers at ws:// and wss://"
)


def package_version(distribution: str) -> str | None:
    """The version of an installed distribution; None where it is not installed.

    A package that was built here and only lies on the path is not installed in this sense.
    """
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


@cache
def versions_text(*distributions: str) -> str:
    """Distributions with their versions, as a part of cache keys."""
    return ", ".join(f"{name} {package_version(name) or 'built here'}" for name in distributions)


def compiler_versions() -> str:
    """Versions of what compiles kernels, the reference and float64 twins: TVM's and tvm-ffi's."""
    return versions_text(*COMPILER_DISTRIBUTIONS)


def install_hint(*extras: str) -> str:
    """The command that installs tapml with `extras`, and what it is run with.

    By path, for an index may hold something else under the same name. A board that was given a
    wheel has no project's folder.
    """
    wanted = f"[{','.join(extras)}]" if extras else ""
    wheel = _own_wheel()
    if wheel:
        return f'pip install "{wheel}{wanted}", the wheel that tapml came in'
    return f'pip install -e ".{wanted}" in the project\'s folder'


def package_hint(package: str) -> str:
    """The command that installs one package of the base install, in a version that fits."""
    try:
        listed = requires("tapml") or []
    except PackageNotFoundError:
        listed = []
    fits = (each for each in listed if re.split(r"[^\w-]", each, maxsplit=1)[0] == package)
    return f'pip install "{next(fits, package)}"'


@cache
def _own_wheel() -> str:
    """The name of the file that tapml was installed from; empty where that was no wheel."""
    try:
        noted = json.loads(distribution("tapml").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    name = str(noted.get("url", "")).rpartition("/")[2] if isinstance(noted, dict) else ""
    return name if name.endswith(".whl") else ""
