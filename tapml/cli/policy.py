"""``tapml policy``: prints the limits of verdicts as TOML, or checks such a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

_EPILOG: Final = """\
examples:
  tapml policy > limits.toml                  the calibrated limits, to edit
  tapml policy limits.toml                    check a file; print what it loosens, and why
  tapml replay my-suite --policy limits.toml  use it (offload and validate take it as well)

A limit bounds error / (sensitivity + ulp); docs/verdicts.md explains it and how the defaults were
measured. Every override has a reason, which reports show on their first page.
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "policy",
        help="print the limits of verdicts as TOML, or check such a file",
        description="Print the limits of verdicts as TOML, or check such a file.",
        epilog=_EPILOG,
    )
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a policy to check")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the default policy, or check a file."""
    from tapml.verdicts.policy_file import policy_of, write_policy

    policy = policy_of(arguments.file)
    if arguments.file is None:
        print(write_policy(policy), end="")
        return 0
    print(f"{arguments.file} is a policy: {len(policy.overrides)} overrides, hash {policy.hash}")
    for line in policy.loosened:
        print(f"loosened: {line}")
    if not policy.loosened:
        print("it loosens nothing")
    return 0
