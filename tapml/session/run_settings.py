"""Options of a run that the session remembers: policy, kernel folders and limits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tapml.own_operators import KERNELS as KERNELS_HERE
from tapml_targets.errors import InputError
from tapml_targets.limit_profiles import load_profile

if TYPE_CHECKING:
    from tapml.runs.journal import Journal
    from tapml.session.settings import RunOptions
    from tapml.verdicts.policy import Policy
    from tapml_targets.limits import Limits

POLICY: Final = "policy"
KERNELS: Final = "kernels"
OWN_OPERATORS: Final = "own-operators"
"""``--kernels`` of tapml's own operators, in place of a folder."""
LIMITS: Final = "limits"
DEVICE_LIMITS: Final = "device"
"""In place of a profile's name: the device's own limits."""


def policy_of(journal: Journal, options: RunOptions) -> Policy:
    """The policy of this run: the given one, else the previous run's, else the default.

    Raises
    ------
    InputError
        If the journal's policy cannot be read.
    """
    if options.policy is not None:
        journal.write_setting(POLICY, json.dumps(options.policy.to_json()))
        return options.policy
    # Imported here because it needs numpy, which a board that only parses options may not have.
    from tapml.verdicts.policy import Policy

    kept = journal.read_setting(POLICY)
    try:
        return Policy() if kept is None else Policy.from_json(json.loads(kept))
    except (InputError, ValueError) as error:
        raise InputError(
            f"this session's policy cannot be read ({error}; setting {POLICY!r} in "
            f"{journal.path}); name one with --policy"
        ) from error


def kernel_folders(journal: Journal, options: RunOptions) -> tuple[Path, ...]:
    """Folders of hand-written kernels for this run: the given ones, else the previous run's.

    Raises
    ------
    InputError
        If a given folder does not exist, or the journal's folders cannot be read.
    """
    if options.kernels is not None:
        for folder in options.kernels:
            # Otherwise a typing error would silently keep the compiler's kernels.
            if str(folder) != OWN_OPERATORS and not folder.is_dir():
                raise InputError(
                    f"--kernels {folder} is not a folder: expected one with "
                    "OPERATOR/TARGET/kernel.toml in it, as `tapml kernel new --shared` writes it"
                )
        # Absolute: the next run may have another working directory. The word stays one: the next
        # run may be of another installation.
        named = [
            str(each if str(each) == OWN_OPERATORS else each.absolute()) for each in options.kernels
        ]
        journal.write_setting(KERNELS, json.dumps(named))
    else:
        try:
            named = msgspec.json.decode(journal.read_setting(KERNELS) or "[]", type=list[str])
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"this session's kernel folders cannot be read ({error}; setting {KERNELS!r} in "
                f"{journal.path}); name them with --kernels"
            ) from error
    return tuple(KERNELS_HERE if each == OWN_OPERATORS else Path(each) for each in named)


def limits_of(journal: Journal, options: RunOptions, platform: str, device: Limits) -> Limits:
    """The limits of a run: the device's, restricted by a profile if one was named.

    A profile also applies to later runs, until another one or ``device`` is named.

    Raises
    ------
    InputError
        If there is no such profile.
    """
    name = profile_of(journal, options)
    limits = within_profile(name, platform, device)
    if options.limits is not None:
        journal.write_setting(LIMITS, name)
    return limits


def profile_of(journal: Journal, options: RunOptions) -> str:
    """The profile of a run, or its absolute path; empty or ``device`` for none."""
    name = options.limits
    if name is None:
        return journal.read_setting(LIMITS) or ""
    # The next run may have another working directory.
    return str(Path(name).absolute()) if name.endswith(".toml") else name


def within_profile(name: str | None, platform: str, device: Limits) -> Limits:
    """A device's limits restricted by a profile; None or ``device`` for no restriction.

    Raises InputError if there is no such profile.
    """
    if not name or name == DEVICE_LIMITS:
        return device
    return load_profile(platform, name).within(device)


def with_memory_limit(limits: Limits, memory_bytes: int) -> Limits:
    """A device's limits with at most `memory_bytes` of memory; 0 for no restriction."""
    if not memory_bytes or 0 < limits.memory_bytes <= memory_bytes:
        return limits
    largest = min(limits.max_buffer_bytes or memory_bytes, memory_bytes)
    return replace(limits, memory_bytes=memory_bytes, max_buffer_bytes=largest)
