"""Chunks: stored once, read as they were, damage noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapml.execute.arrays import ALIGNMENT, Bytes, address
from tapml.suite.chunks import CHUNK_BYTES, Chunk, ChunkReader, ChunkWriter, pack_path
from tapml_targets.errors import InputError

# A seed and a size stand for content, so that equal pairs are equal content.
CONTENTS = st.tuples(st.integers(0, 3), st.integers(0, 3000))


def content(seed: int, size: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def write(folder: Path, memories: list[Bytes]) -> tuple[list[list[int]], dict[int, Chunk]]:
    folder.mkdir()
    writer = ChunkWriter(folder)
    ids = [writer.add_all(memory)[0] for memory in memories]
    chunks = {chunk.id: chunk for chunk in writer.take_new()}
    writer.close()
    return ids, chunks


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(specifications=st.lists(CONTENTS, min_size=1, max_size=12))
def test_what_is_stored_is_read_and_equal_content_is_stored_once(
    tmp_path_factory: pytest.TempPathFactory, specifications: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("store") / "packs"
    memories = [content(*specification) for specification in specifications]
    ids, chunks = write(folder, memories)
    reader = ChunkReader(folder)
    for memory, own in zip(memories, ids, strict=True):
        read = reader.read([chunks[i] for i in own], verify=True)
        assert read.tobytes() == memory.tobytes()
    assert len(chunks) == len({memory.tobytes() for memory in memories})
    size = pack_path(folder, 0).stat().st_size
    assert size <= sum(c.length + ALIGNMENT for c in chunks.values())


def test_data_of_many_chunks_is_read_without_a_copy(tmp_path: Path) -> None:
    memory = content(1, 3 * CHUNK_BYTES + 100)
    (ids,), chunks = write(tmp_path / "packs", [memory])
    reader = ChunkReader(tmp_path / "packs")
    read = reader.read([chunks[i] for i in ids])
    assert len(ids) == 4
    assert address(read) == address(reader.read([chunks[ids[0]]]))
    assert address(read) % ALIGNMENT == 0
    np.testing.assert_array_equal(read, memory)


def test_chunks_that_lie_apart_are_put_together(tmp_path: Path) -> None:
    first, second = content(1, CHUNK_BYTES), content(2, 500)
    ids, chunks = write(tmp_path / "packs", [second, np.concatenate([first, second])])
    assert ids[1][1] == ids[0][0]
    reader = ChunkReader(tmp_path / "packs")
    read = reader.read([chunks[i] for i in ids[1]], verify=True)
    np.testing.assert_array_equal(read, np.concatenate([first, second]))


def test_a_changed_byte_is_noticed_where_asked(tmp_path: Path) -> None:
    folder = tmp_path / "packs"
    (ids,), chunks = write(folder, [content(1, 1000)])
    path = pack_path(folder, 0)
    damaged = bytearray(path.read_bytes())
    damaged[500] ^= 1
    path.write_bytes(damaged)
    reader = ChunkReader(folder)
    assert len(reader.read([chunks[ids[0]]])) == 1000
    with pytest.raises(InputError, match=r"damaged.*carve again"):
        reader.read([chunks[ids[0]]], verify=True)


def test_a_pack_that_is_too_short_or_gone_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "packs"
    (ids,), chunks = write(folder, [content(1, 1000)])
    path = pack_path(folder, 0)
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(InputError, match="expected at least 1000 bytes, got 900"):
        ChunkReader(folder).read([chunks[ids[0]]])
    path.unlink()
    with pytest.raises(InputError, match="cannot read"):
        ChunkReader(folder).read([chunks[ids[0]]])
