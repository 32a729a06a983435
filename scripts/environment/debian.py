"""System packages the tests run on: the one list of them, and who may install them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

from scripts.environment.installer import say

PACKAGES = {
    "pocl-opencl-icd": "PoCL, the OpenCL driver the tests use beside Intel's",
    "chromium": "the browser that the report's pages are tested in, with a WebGPU driver beside it",
    "firefox-esr": "the second browser that the page of web/ is tested in",
    "mesa-vulkan-drivers": "lavapipe, the WebGPU driver the tests use beside the browser's",
    "nodejs": "what the checks of the page in web/ run on",
    "npm": "what installs the tools of these checks",
}
# Older ones are there and of no use: Firefox's releases had no WebGPU on Linux.
LEAST_VERSIONS = {"firefox-esr": "153"}
# Where a package's command came from elsewhere, the package would only be in its way.
COMMANDS = {"nodejs": "node", "npm": "npm"}


def missing_packages(packages: Iterable[str] = PACKAGES) -> list[str]:
    """Return those of `packages` that dpkg does not list as installed, or as too old ones."""
    return [name for name in packages if not _is_installed(name)]


def install_missing(packages: Iterable[str] = PACKAGES) -> list[str]:
    """Install what is missing where this user may, and say what stays missing and how to get it.

    Returns
    -------
    The names of the packages that are still missing.
    """
    if shutil.which("dpkg-query") is None:
        for name in packages:
            say(
                f"not checked, since this is no Debian system: {name} ({PACKAGES.get(name, '')}); "
                "install your system's package of it"
            )
        return []
    missing = missing_packages(packages)
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        say(f"installing Debian packages: {' '.join(missing)} ...")
        # The package lists of a fresh machine are empty, or so old that they name old browsers.
        _apt("update")
        _apt("install", "--yes", "--no-install-recommends", *missing)
        missing = missing_packages(missing)
    for name in missing:
        least = f", {LEAST_VERSIONS[name]} or newer" if name in LEAST_VERSIONS else ""
        say(
            f"missing: {name}{least} ({PACKAGES.get(name, '')}); "
            f"sudo apt-get update && sudo apt-get install {name}"
        )
    return missing


def _is_installed(package: str) -> bool:
    if package in COMMANDS and shutil.which(COMMANDS[package]):
        return True
    query = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", package],
        check=False,
        capture_output=True,
        text=True,
    )
    status, _, version = query.stdout.partition(" ")
    if status != "installed":
        return False
    least = LEAST_VERSIONS.get(package)
    compare = ["dpkg", "--compare-versions", version, "ge", least or version]
    return least is None or subprocess.run(compare, check=False).returncode == 0


def _apt(*arguments: str) -> bool:
    """Run apt-get without questions; on failure show the end of what it said."""
    result = subprocess.run(
        ["apt-get", "--quiet", *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
    )
    if result.returncode != 0:
        end = "\n".join(f"    {line}" for line in result.stdout.strip().splitlines()[-3:])
        say(f"apt-get {arguments[0]} failed:\n{end}")
    return result.returncode == 0
