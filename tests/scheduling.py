"""Which tests one process gets: those of a file, or of all files that share what is slow to make.

``--dist loadfile`` gives each file to one process. Where fixtures of a session serve several files,
two processes would make each of them twice.
"""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadFileScheduling

# The same name is the same process.
TOGETHER: Final = {
    "tests/carving": "the small Llama",
    # Each process would start a server of its own that imports PyTorch's distributed parts.
    "tests/distributed": "the warm pool",
    "tests/distributed/fuzzing": "the warm pool",
    "tests/execute": "the small Llama",
    "tests/importing": "the small Llama",
    "tests/rooting": "the small Llama",
    "tests/suite": "the small Llama",
    "tests/oracles": "the shipped model",
    "tests/mutants": "the mutants",
    "tests/package": "the packages",
}


class SharedScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Hands out files, and some folders whole."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = file.rpartition("/")[0].removesuffix("/end_to_end").removesuffix("/exhaustive")
        return TOGETHER.get(folder, file)
