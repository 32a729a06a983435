"""Versions of installed packages, and commands that install missing ones."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

COMPILER_DISTRIBUTIONS: Final = ("apache-tvm", "apache-tvm-ffi")
BASE_PACKAGES: Final = ("numpy", "msgpack", "msgspec", "pyzmq", "websockets", "rich")
WITHOUT_PYZMQ: Final = (
    "use WebSocket, which takes no pyzmq: `tapml rpc serve --websocket ws://127.0.0.1:9191`, "
    "devices and trackers at ws:// and wss://"
)
_HAVE_A_PART: Final = (
    "tapml", "numpy", "apache-tvm", "apache-tvm-ffi", "torch", "pyopencl", "pyzmq",
)  # fmt: skip


def package_version(distribution: str) -> str | None:
    """The version of an installed distribution, or None.

    A package that was built here and is only on the path does not count as installed.
    """
    # Most commands do without: it is a tenth of what the shortest ones take.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


@cache
def versions_text(*distributions: str) -> str:
    """Distributions with their versions, as a part of cache keys."""
    return ", ".join(f"{name} {package_version(name) or 'built here'}" for name in distributions)


def compiler_versions() -> str:
    """Versions of the compiler of kernels, reference and float64 twins: TVM's and tvm-ffi's."""
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
    from importlib.metadata import PackageNotFoundError, requires

    try:
        listed = requires("tapml") or []
    except PackageNotFoundError:
        listed = []
    fits = (each for each in listed if re.split(r"[^\w-]", each, maxsplit=1)[0] == package)
    return f'pip install "{next(fits, package)}"'


@cache
def _own_wheel() -> str:
    """The name of the wheel that tapml was installed from; empty if there was none."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        noted = json.loads(distribution("tapml").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    name = str(noted.get("url", "")).rpartition("/")[2] if isinstance(noted, dict) else ""
    return name if name.endswith(".whl") else ""


def result_versions() -> dict[str, str]:
    """Versions of the installed packages that a result on a device depends on."""
    found = {package: package_version(package) for package in _HAVE_A_PART}
    return {package: number for package, number in found.items() if number is not None}
