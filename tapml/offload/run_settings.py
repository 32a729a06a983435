"""What a run is told and the session remembers: policy, folders of kernels, limits; memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tapml_targets.errors import InputError
from tapml_targets.limit_profiles import load_profile

if TYPE_CHECKING:
    from tapml.compare.policy import Policy
    from tapml.offload.journal import Journal
    from tapml.offload.settings import RunOptions
    from tapml_targets.limits import Limits

POLICY: Final = "policy"
KERNELS: Final = "kernels"
LIMITS: Final = "limits"
DEVICE_LIMITS: Final = "device"
"""In the place of a profile's name: what the device itself can take."""


def policy_of(journal: Journal, options: RunOptions) -> Policy:
    """The policy given for this run, else the one the session ran under last, else the defaults.

    Raises
    ------
    InputError
        If what the journal holds about it cannot be read.
    """
    if options.policy is not None:
        journal.write_setting(POLICY, json.dumps(options.policy.to_json()))
        return options.policy
    # It computes with numpy, which a board that only reads its command line may not have.
    from tapml.compare.policy import Policy

    kept = journal.read_setting(POLICY)
    try:
        return Policy() if kept is None else Policy.from_json(json.loads(kept))
    except (InputError, ValueError) as error:
        raise InputError(
            f"the policy this session ran under cannot be read ({error}; setting {POLICY!r} in "
            f"{journal.path}); name one with --policy"
        ) from error


def kernel_folders(journal: Journal, options: RunOptions) -> tuple[Path, ...]:
    """Shared folders of hand-written kernels given for this run, else those of the run before.

    Raises
    ------
    InputError
        If one that is given is no folder, or what the journal holds about them cannot be read.
    """
    if options.kernels is not None:
        for folder in options.kernels:
            # A mistyped one would leave the compiler's kernels in place without a word.
            if not folder.is_dir():
                raise InputError(
                    f"--kernels {folder} is no folder: expected one with "
                    "OPERATOR/TARGET/kernel.toml in it, as `tapml kernel new --shared` writes it"
                )
        # The next run may begin in another folder.
        folders = [str(folder.absolute()) for folder in options.kernels]
        journal.write_setting(KERNELS, json.dumps(folders))
        return tuple(map(Path, folders))
    try:
        kept = json.loads(journal.read_setting(KERNELS) or "[]")
    except ValueError:
        kept = None
    if not isinstance(kept, list) or not all(isinstance(each, str) for each in kept):
        raise InputError(
            f"the folders of kernels this session ran with cannot be read (setting {KERNELS!r} in "
            f"{journal.path}); name them with --kernels"
        )
    return tuple(map(Path, kept))


def limits_of(journal: Journal, options: RunOptions, platform: str, device: Limits) -> Limits:
    """What a run compiles for and checks against: the device, within a profile if one was named.

    A profile given for this run holds for later ones, until another is named or ``device``.

    Raises
    ------
    InputError
        If there is no such profile.
    """
    name = options.limits
    if name is None:
        return within_profile(journal.read_setting(LIMITS), platform, device)
    if name.endswith(".toml"):
        # The next run may begin in another folder.
        name = str(Path(name).absolute())
    limits = within_profile(name, platform, device)
    journal.write_setting(LIMITS, name)
    return limits


def within_profile(name: str | None, platform: str, device: Limits) -> Limits:
    """A device's limits within a profile, which may be none or ``device``.

    Raises
    ------
    InputError
        If there is no such profile.
    """
    if not name or name == DEVICE_LIMITS:
        return device
    return load_profile(platform, name).within(device)


def lowered(limits: Limits, memory_bytes: int) -> Limits:
    """A device's limits with no more memory than a run may use; 0 for what the device states."""
    if not memory_bytes or 0 < limits.memory_bytes <= memory_bytes:
        return limits
    largest = min(limits.max_buffer_bytes or memory_bytes, memory_bytes)
    return replace(limits, memory_bytes=memory_bytes, max_buffer_bytes=largest)
