"""A tracker that speaks another version of the protocol: ``python -m tests.web.tracker_of_...``."""

from __future__ import annotations

import sys

from tapml_rpc.tracker import records

# Before whoever reads it is imported.
records.VERSION = 99  # type: ignore[misc]

from tapml.cli.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(["rpc", "tracker", *sys.argv[1:]]))
