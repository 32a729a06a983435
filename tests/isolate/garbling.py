"""A module that, when a server preloads it, writes something that is no message to the pool."""

from __future__ import annotations

import os
import sys

os.write(int(sys.argv[1]), b"\xff" * 64)
