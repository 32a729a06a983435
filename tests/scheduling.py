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
    "tests/compiler/test_symbol_ranges.py": "the small Llama",
    "tests/diagnosis/test_evaluation.py": "the small Llama",
    "tests/invariants": "the recorded runs",
    "tests/offload/test_error_growth.py": "the small Llama",
    "tests/plan/test_format.py": "the small Llama",
    "tests/replaying/test_times.py": "the small Llama",
    "tests/session/test_selection.py": "the small Llama",
    "tests/validation/test_observed.py": "the small Llama",
    "tests/rooting": "the small Llama",
    "tests/suite": "the small Llama",
    "tests/oracles": "the shipped model",
    "tests/mutants": "the mutants",
    "tests/package": "the packages",
}


class SharedScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Hands out files, and some folders and files together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = file.rpartition("/")[0].removesuffix("/end_to_end").removesuffix("/exhaustive")
        return TOGETHER.get(file) or TOGETHER.get(folder, file)
