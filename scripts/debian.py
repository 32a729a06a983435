"""The system packages that the tests use: the one list of them, installed where root runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from typing import Final

from scripts.environment import say

PACKAGES: Final = {
    "pocl-opencl-icd": "PoCL, the OpenCL driver the tests use beside Intel's",
    "chromium": "the browser that the report's pages are tested in, with a WebGPU driver beside it",
    "firefox-esr": "the second browser that the page of web/ is tested in",
    "mesa-vulkan-drivers": "lavapipe, the Vulkan driver the tests use beside the browser's",
    "nodejs": "what the checks of the page in web/ run on",
    "npm": "what installs the tools of these checks",
    "openssh-client": "the near end of the tunnel to a board in the tests",
    "openssh-server": "its far end",
}
# Firefox's releases had no WebGPU on Linux before this one.
LEAST_VERSIONS: Final = {"firefox-esr": "153"}
# A package is not needed where its command is already there.
COMMANDS: Final = {"nodejs": "node", "npm": "npm"}


def install_missing(packages: Iterable[str] = PACKAGES) -> list[str]:
    """Install what is missing if this user is root.

    Returns
    -------
    The names of the packages that are still missing; each is named on stderr with its remedy.
    """
    if shutil.which("dpkg-query") is None:
        names = ", ".join(packages)
        say(f"not a Debian system: for all tests, install your system's packages of {names}")
        return []
    missing = [name for name in packages if not is_installed(name)]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        say(f"installing Debian packages: {' '.join(missing)} ...")
        # The package lists of a fresh machine are empty or name old versions.
        _apt("update")
        _apt("install", "--yes", "--no-install-recommends", *missing)
        missing = [name for name in missing if not is_installed(name)]
    for name in missing:
        least = f", {LEAST_VERSIONS[name]} or newer" if name in LEAST_VERSIONS else ""
        install = f"sudo apt-get update && sudo apt-get install {name}"
        say(f"missing: {name}{least} ({PACKAGES.get(name, '')}); {install}")
    return missing


def is_installed(package: str) -> bool:
    """Whether dpkg lists a package, new enough, or its command is there without it."""
    if package in COMMANDS and shutil.which(COMMANDS[package]):
        return True
    query = ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", package]
    found = subprocess.run(query, check=False, capture_output=True, text=True)
    status, _, version = found.stdout.partition(" ")
    compare = ["dpkg", "--compare-versions", version, "ge", LEAST_VERSIONS.get(package, "0")]
    return status == "installed" and subprocess.run(compare, check=False).returncode == 0


def _apt(*arguments: str) -> None:
    """Run apt-get without questions; show the end of its output if it fails."""
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
        end = "\n".join(result.stdout.strip().splitlines()[-3:])
        say(f"apt-get {arguments[0]} failed:\n{end}")
