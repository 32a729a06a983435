"""A session of one's own to write kernels in, and one operator of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.offload.commands import Ended, run_here
from tests.offload.sessions import FinishedSession

OPERATOR = "fused_rms_norm_2"


@dataclass(frozen=True)
class KernelSession:
    """A copy of the finished session with the compiled kernel of `OPERATOR` to begin with."""

    folder: Path
    cache: Path

    @property
    def place(self) -> Path:
        """The kernel's folder."""
        return self.folder / "kernels" / OPERATOR / "opencl"

    @property
    def source(self) -> Path:
        """The kernel's source."""
        return self.place / f"{OPERATOR}.cl"

    @property
    def manifest(self) -> Path:
        """The kernel's manifest."""
        return self.place / "kernel.toml"

    def kernel(self, command: str, *arguments: str | Path) -> Ended:
        """``tapml kernel <command>`` of this session."""
        return run_here("kernel", command, self.folder, *arguments, cache=self.cache)


@pytest.fixture(scope="module")
def kernel_session(
    finished: FinishedSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KernelSession]:
    """A session in which `OPERATOR` has a hand-written kernel; tests leave it right."""
    folder = finished.copy(tmp_path_factory.mktemp("kernels") / "session")
    session = KernelSession(folder, finished.cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAPML_CACHE_DIR", str(finished.cache))
        ended = session.kernel("new", OPERATOR)
        assert ended.exit_code == 0, ended.errors
        yield session
