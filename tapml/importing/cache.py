"""Plans and rooting reports on disk, so that a second start skips torch.export.

A file is a SHA-256 digest followed by its content. A file that is damaged, unreadable or of
another version is a miss; a failed write loses only the cache entry.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgpack
import numpy as np
import numpy.typing as npt

from tapml.compiler.cache import joint_hash
from tapml.plan import format as plan_format
from tapml.plan.graph_plan import GraphPlan
from tapml.plan.rooting_report import RootingReport
from tapml_targets.cache_folder import cache_folder, write_atomically
from tapml_targets.errors import ProtocolError
from tapml_targets.installed import COMPILER_DISTRIBUTIONS, versions_text

if TYPE_CHECKING:
    from tapml.models.loaded import Loaded

Array = npt.NDArray[Any]

_DIGEST_BYTES: Final = 32
_KEPT: Final = 64
_MAX_BYTES: Final = plan_format.MAX_PLAN_BYTES
_DISTRIBUTIONS: Final = (*COMPILER_DISTRIBUTIONS, "torch", "transformers")


class PlanCache:
    """Plans and rooting reports by key.

    `folder` defaults to ``plans`` in the user's cache (``TAPML_CACHE_DIR``).
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder: Path | None = folder
        with contextlib.suppress(OSError):
            if folder is None:
                self._folder = cache_folder("plans")
            else:
                folder.mkdir(parents=True, exist_ok=True)

    def get_plan(self, key: str) -> tuple[GraphPlan, dict[str, Array]] | None:
        """A plan and its constants by name; None if there is none."""
        data = self._read(f"{key}.plan")
        if data is None:
            return None
        try:
            frame = msgpack.unpackb(data)
            plan = plan_format.unpack(frame[0])
            return plan, {
                name: np.frombuffer(raw, dtype=data_type).reshape(shape)
                for name, data_type, shape, raw in frame[1]
            }
        except (ProtocolError, ValueError, TypeError, IndexError, KeyError):
            return None

    def put_plan(self, key: str, plan: GraphPlan, constants: Mapping[str, Array]) -> None:
        """Store a plan."""
        tensors = [
            [name, str(array.dtype), list(array.shape), np.ascontiguousarray(array).tobytes()]
            for name, array in constants.items()
        ]
        self._write(f"{key}.plan", msgpack.packb([plan_format.pack(plan), tensors]))

    def get_rooting(self, key: str) -> RootingReport | None:
        """A report; None if there is none."""
        data = self._read(f"{key}.rooting")
        if data is None:
            return None
        try:
            return RootingReport.unpack(data)
        except ProtocolError:
            return None

    def put_rooting(self, key: str, report: RootingReport) -> None:
        """Store a report of a rooting that passed."""
        self._write(f"{key}.rooting", report.pack())

    def _read(self, name: str) -> bytes | None:
        if self._folder is None:
            return None
        path = self._folder / name
        try:
            if path.stat().st_size > _MAX_BYTES:
                return None
            data = path.read_bytes()
        except OSError:
            return None
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        return content if hashlib.sha256(content).digest() == digest else None

    def _write(self, name: str, content: bytes) -> None:
        if self._folder is None or len(content) + _DIGEST_BYTES > _MAX_BYTES:
            return
        with contextlib.suppress(OSError):
            write_atomically(self._folder / name, hashlib.sha256(content).digest() + content)
            oldest = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime)
            for path in oldest[:-_KEPT]:
                path.unlink(missing_ok=True)


def import_key(model: Loaded) -> str:
    """Hexadecimal hash of everything a model's plan depends on."""
    return joint_hash(
        [
            model.name,
            model.dtype,
            model.weights_hash,
            model.identity,
            versions_text(*_DISTRIBUTIONS),
            importer_hash(),
        ]
    )


def rooting_key(plan: GraphPlan, weights_hash: str, runs: Sequence[str], host: str) -> str:
    """Hexadecimal hash of everything a rooting depends on.

    `runs` are hashes of the inputs. `host` identifies the processor
    (:func:`tapml.compiler.host_build.host_identity`), because the reference's code depends on its
    instruction set.
    """
    return joint_hash(
        [
            plan_format.plan_hash(plan),
            weights_hash,
            *runs,
            host,
            versions_text(*_DISTRIBUTIONS),
            importer_hash(),
        ]
    )


@cache
def importer_hash() -> str:
    """Hash of the importer's code: a changed importer must not reuse plans of the old one.

    It covers the models' entries, too, since they are what is exported.
    """
    root = Path(__file__).parent.parent
    folders = ("importing", "models", "plan", "rooting")
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    return joint_hash(path.read_text("utf-8") for path in paths)
