"""The places of a hybrid graph: the host and any number of devices, each by a name."""

from __future__ import annotations

from typing import Final, TypeAlias

Place: TypeAlias = str
HOST: Final = "host"
DEVICE: Final = "device"
"""The target of a migration."""
REFERENCE: Final = "reference"
"""The device on which operators are recorded, if that is not this process."""
