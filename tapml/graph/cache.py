"""Finished plans and rooting reports on disk, so that a second start skips torch.export.

A file is a digest and what it is the digest of. Whatever is damaged, of another version or cannot
be read is not there; whatever cannot be written costs the cache and nothing else.
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

from tapml.graph import plan_format
from tapml.graph.plan import GraphPlan
from tapml.graph.rooting_report import RootingReport
from tapml_targets.cache_folder import cache_folder, write_atomically
from tapml_targets.errors import ProtocolError
from tapml_targets.installed import COMPILER_DISTRIBUTIONS, versions_text

if TYPE_CHECKING:
    from tapml.models.loaded import LoadedModel

Array = npt.NDArray[Any]

_DIGEST_BYTES: Final = 32
_KEPT: Final = 64
_MAX_BYTES: Final = plan_format.MAX_PLAN_BYTES
_DISTRIBUTIONS: Final = (*COMPILER_DISTRIBUTIONS, "torch", "transformers")


class PlanCache:
    """Plans and rooting reports by key.

    Parameters
    ----------
    folder
        Where the files lie; default: ``plans`` in the user's cache (``TAPML_CACHE_DIR``).
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder: Path | None = folder
        with contextlib.suppress(OSError):
            if folder is None:
                self._folder = cache_folder("plans")
            else:
                folder.mkdir(parents=True, exist_ok=True)

    def get_plan(self, key: str) -> tuple[GraphPlan, dict[str, Array]] | None:
        """A plan and its constants by name; None where there is none."""
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
        """Keep a plan."""
        tensors = [
            [name, str(array.dtype), list(array.shape), np.ascontiguousarray(array).tobytes()]
            for name, array in constants.items()
        ]
        self._write(f"{key}.plan", msgpack.packb([plan_format.pack(plan), tensors]))

    def get_rooting(self, key: str) -> RootingReport | None:
        """A report; None where there is none."""
        data = self._read(f"{key}.rooting")
        if data is None:
            return None
        try:
            return RootingReport.unpack(data)
        except ProtocolError:
            return None

    def put_rooting(self, key: str, report: RootingReport) -> None:
        """Keep a report of a rooting that passed."""
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


def import_key(model: LoadedModel) -> str:
    """Everything the plan of a model depends on, as one hexadecimal number."""
    return _hash(
        model.name,
        model.dtype,
        str(model.context_length),
        model.weights_hash,
        model.config.to_json_string(use_diff=False),
        versions_text(*_DISTRIBUTIONS),
        importer_hash(),
    )


def rooting_key(plan: GraphPlan, weights_hash: str, tokens: Sequence[int], host: str) -> str:
    """Everything a rooting depends on, as one hexadecimal number.

    `host` is what the reference's code depends on beside the plan
    (:func:`tapml.compiler.host_build.host_identity`): another processor runs other instructions.
    """
    return _hash(
        plan_format.plan_hash(plan),
        weights_hash,
        ",".join(str(token) for token in tokens),
        host,
        versions_text(*_DISTRIBUTIONS),
        importer_hash(),
    )


def _hash(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@cache
def importer_hash() -> str:
    """Hash of the code that makes plans: a changed importer must not serve what the old one made.

    The models' entries count, too: they are what is exported.
    """
    graph = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted((*graph.glob("*.py"), *(graph.parent / "models").glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()
