"""Versions: any history of a memory is read back bit by bit, and small changes take little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapml.carving.versions import ROW_BYTES, WHOLE, SegmentVersions, StateComparer, StateVersions
from tapml.execute.arrays import Bytes
from tapml.suite.chunks import ChunkReader, ChunkWriter
from tapml.suite.index import Rows
from tapml.suite.version_rows import VersionRows, read_version

SIZE = 64 * ROW_BYTES
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["nothing", "word", "row", "column", "everything", "zeros"]),
        st.integers(0, 63),
        st.integers(1, 255),
    ),
    min_size=1,
    max_size=30,
)


class Store:
    """A version store with what an index would hold."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.rows = Rows()
        self.chunks = ChunkWriter(folder)
        self.version_rows = VersionRows(self.chunks, self.rows)
        self.versions = SegmentVersions(self.version_rows)
        self.states = StateVersions(self.version_rows)
        self.folder = folder

    def read(self, version: int) -> Bytes:
        places = {chunk.id: chunk for chunk in self.rows.chunks}
        reader = ChunkReader(self.folder)
        (base,) = (row[1] for row in self.rows.versions if row[0] == version)
        blobs = [r[2] for r in sorted(self.rows.versions) if r[1] == base and r[0] <= version]
        return read_version(blobs, lambda ids: reader.read([places[i] for i in ids], verify=True))

    def settle(self) -> None:
        self.version_rows.flush()
        self.rows.chunks += self.chunks.take_new()


def edit(memory: Bytes, kind: str, where: int, value: int) -> None:
    table = memory.reshape(-1, ROW_BYTES)
    match kind:
        case "word":
            memory[8 * where] ^= value
        case "row":
            table[where] ^= value
        case "column":
            table[:, where] ^= value
        case "everything":
            memory[:] = np.random.default_rng(value).integers(0, 256, SIZE, dtype=np.uint8)
        case "zeros":
            memory[:] = 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(edits=EDITS, batches=st.lists(st.integers(1, 6), min_size=1), strip=st.integers(1, 5))
def test_every_version_of_a_history_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    edits: list[tuple[str, int, int]],
    batches: list[int],
    strip: int,
) -> None:
    store = Store(tmp_path_factory.mktemp("versions") / "packs")
    current = np.zeros(SIZE, np.uint8)
    history: list[tuple[Bytes, int]] = []
    block = np.empty(0, np.uint8)
    token = 0
    for number, change in enumerate(edits):
        if number % strip == 0:
            block = np.empty(strip * SIZE, np.uint8)
        edit(current, *change)
        token += change[0] != "nothing" or number == 0
        window = block[(number % strip) * SIZE :][:SIZE]
        window[:] = current
        history.append((window, token))
    ids: list[int] = []
    waiting = list(history)
    sizes = iter(batches * len(history))
    while waiting:
        size = next(sizes)
        ids += store.versions.store("series", waiting[:size])
        store.settle()
        del waiting[:size]
    contents = [window.tobytes() for window, _ in history]
    for version, expected in zip(ids, contents, strict=True):
        assert store.read(version).tobytes() == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(edits=EDITS, follows=st.booleans())
def test_every_state_of_a_history_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[str, int, int]], follows: bool
) -> None:
    store = Store(tmp_path_factory.mktemp("states") / "packs")
    comparer = StateComparer()
    memory = np.zeros(SIZE + 128, np.uint8)
    expected: list[tuple[int, bytes]] = []
    for number, change in enumerate(edits):
        if change[0] != "nothing" or number == 0:
            memory = memory.copy()
            edit(memory[64 : 64 + SIZE], *change)
        basis, count, content = comparer.change(0, memory, 64, 64 + SIZE, follows=follows)
        told = np.frombuffer(content, np.uint8)
        if basis == WHOLE:
            told = memory[64 : 64 + SIZE]
        version = store.states.store(0, SIZE, (basis, count, told))
        expected.append((version, memory[64 : 64 + SIZE].tobytes()))
    store.settle()
    for version, content in expected:
        assert store.read(version).tobytes() == content


def test_a_long_history_of_single_rows_takes_little_more_than_the_rows(tmp_path: Path) -> None:
    store = Store(tmp_path / "packs")
    current = np.zeros(SIZE, np.uint8)
    for step in range(64):
        current = current.copy()
        current.reshape(-1, ROW_BYTES)[step] = step + 1
        store.versions.store("cache", [(current, step)])
        store.settle()
    whole = 64 * SIZE
    assert store.chunks.stored_bytes < whole / 10


def test_an_activation_that_always_changes_is_given_up(tmp_path: Path) -> None:
    store = Store(tmp_path / "packs")
    random = np.random.default_rng(1)
    for step in range(6):
        if not store.versions.track("noise", SIZE):
            break
        store.versions.store("noise", [(random.integers(0, 256, SIZE, dtype=np.uint8), step)])
        store.settle()
    assert not store.versions.track("noise", SIZE)
    assert store.versions.track("other", SIZE)
