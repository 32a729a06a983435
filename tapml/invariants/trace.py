"""Traces on disk: one Arrow stream per process in a folder.

A stream is written batch by batch by a thread of its own, so what was written before a process was
killed can be read. Names, contexts and fields repeat from step to step; they are dictionaries.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyarrow import ipc

from tapml.invariants.record import BEFORE_TRAINING, END, Fields, Row
from tapml_targets.errors import InputError, SetupError

FORMAT: Final = "tapml-invariants-trace/1"
SUFFIX: Final = ".arrow"
_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
_SCHEMA: Final = pa.schema(
    [
        ("kind", _TEXT),
        ("name", _TEXT),
        ("id", pa.int64()),
        ("parent", pa.int64()),
        ("step", pa.int32()),
        ("rank", pa.int32()),
        ("thread", pa.int32()),
        ("nanoseconds", pa.int64()),
        ("source", _TEXT),
        ("digest", pa.string()),
        ("context", _TEXT),
        ("fields", _TEXT),
    ],
    metadata={"format": FORMAT},
)
_COLUMNS: Final = tuple(_SCHEMA.names)
_JSON_COLUMNS: Final = ("context", "fields")
_LARGEST_FIELD: Final = 1 << 20
_FULL: Final = 64
_FIELDS: Final = 4096


class TraceWriter:
    """Writes the rows of this process to a file of a trace folder, in a thread of its own.

    The file appears with the first training step: a launcher that imports PyTorch leaves none.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"process-{os.getpid()}{SUFFIX}"
        self._held: list[Row] = []
        # Bounded: a disk that is slower than the training slows it down instead of filling memory.
        self._queue: queue.Queue[tuple[list[Row], threading.Event | None] | None] = queue.Queue(
            _FULL
        )
        self._thread: threading.Thread | None = None
        self._failure: OSError | None = None

    def write(self, rows: list[Row], *, wait: bool) -> None:
        """Queue rows; with `wait`, return when they are in the file.

        Raises
        ------
        SetupError
            If the file cannot be written.
        """
        if self._failure is not None:
            raise SetupError(
                f"cannot write {self._path}: {self._failure.strerror or self._failure}; free some "
                "space, then collect again"
            )
        if self._thread is None:
            self._held += rows
            if not any(row.step > BEFORE_TRAINING for row in rows):
                return
            rows, self._held = self._held, []
            self._thread = threading.Thread(target=self._run, name="trace-writer", daemon=True)
            self._thread.start()
        written = threading.Event() if wait else None
        self._queue.put((rows, written))
        if written is not None:
            written.wait()

    def close(self) -> None:
        """Write what is queued and end the file."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        # A process that runs another program in its place, by exec, keeps its number.
        before = self._path
        for again in count(2):
            if not self._path.exists():
                break
            self._path = before.with_stem(f"{before.stem}-{again}")
        try:
            with pa.OSFile(str(self._path), "wb") as file, ipc.new_stream(file, _SCHEMA) as stream:
                while (item := self._queue.get()) is not None:
                    rows, written = item
                    if rows:
                        stream.write_batch(_batch(rows))
                        file.flush()
                    if written is not None:
                        written.set()
        except OSError as error:
            self._failure = error
            # Nobody waits for a file that cannot be written.
            while (item := self._queue.get()) is not None:
                if item[1] is not None:
                    item[1].set()


def _batch(rows: list[Row]) -> pa.RecordBatch:
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    texts: dict[int, str] = {}
    for name in _JSON_COLUMNS:
        place = _COLUMNS.index(name)
        columns[place] = [_json(value, texts) for value in columns[place]]
    arrays = [pa.array(column, type=_SCHEMA.field(n).type) for n, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _json(value: Mapping[str, Any], texts: dict[int, str]) -> str:
    # Contexts are shared objects.
    text = texts.get(id(value))
    if text is None:
        text = texts[id(value)] = msgspec.json.encode(value).decode()
    return text


class Trace(msgspec.Struct, frozen=True, eq=False):
    """A stored trace.

    Attributes
    ----------
    folder
        Where it lies.
    processes
        The rows of each process that trained, by rank.
    notes
        What is incomplete, one sentence each.
    """

    folder: Path
    processes: tuple[tuple[Row, ...], ...]
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Optimizer steps that all processes completed."""
        return min((max(row.step for row in rows) for rows in self.processes), default=0)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank of each process."""
        return tuple(rows[-1].rank for rows in self.processes)

    @property
    def rows(self) -> int:
        """Rows of all processes."""
        return sum(map(len, self.processes))


def read_trace(folder: Path) -> Trace:
    """Read a trace; of a cut file, what was written before the cut.

    Raises
    ------
    InputError
        If there is no trace, a file is none, or it was written by another version of the format.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder} is no trace: expected a folder written by `tapml invariants collect`"
        )
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise InputError(
            f"{folder} holds no trace: expected process-*{SUFFIX}; did the script train? Collect "
            "it again"
        )
    notes: list[str] = []
    return trace_of(folder, [(path, tuple(rows_of(path, notes))) for path in files], notes)


def trace_of(
    folder: Path, files: Iterable[tuple[Path, tuple[Row, ...]]], notes: list[str]
) -> Trace:
    """A trace of the rows of its files, or of the last row of each, with notes on their ends.

    Raises InputError if no file has a row, or two files are of one rank.
    """
    processes = []
    for path, rows in files:
        if rows:
            processes.append(rows)
            if rows[-1].kind != END:
                notes.append(
                    f"rank {rows[-1].rank} died during step {rows[-1].step}: its trace in "
                    f"{path.name} has no end"
                )
    if not processes:
        raise InputError(f"{folder} holds no record: its files were cut before the first step")
    processes.sort(key=lambda rows: rows[-1].rank)
    twice = Counter(rows[-1].rank for rows in processes)
    again = sorted(rank for rank, count in twice.items() if count > 1)
    if again:
        raise InputError(
            f"{folder} holds several runs: rank {again[0]} has {twice[again[0]]} files. Collect "
            "each run into a folder of its own"
        )
    world = max(int(str(rows[-1].context.get("world", 1))) for rows in processes)
    missing = sorted(set(range(world)) - {rows[-1].rank for rows in processes})
    if missing:
        notes.append(f"the job had {world} ranks; the trace lacks {', '.join(map(str, missing))}")
    return Trace(folder, tuple(processes), tuple(notes))


def hold_new(folder: Path, rank: int) -> None:
    """Make a trace folder, or take one that another rank of the same run has made.

    Raises
    ------
    InputError
        If it has a trace of this rank: it belongs to an earlier run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        # A file that another rank is beginning may have no row yet.
        first = next(rows_of(path, []), None) if path.stat().st_size else None
        if first is not None and first.rank == rank:
            raise InputError(
                f"{folder} holds the trace of an earlier run in {path.name}; give each run a "
                "folder of its own"
            )


def rows_of(path: Path, notes: list[str], source: pa.NativeFile | None = None) -> Iterator[Row]:
    """The rows of a file of a trace.

    Parameters
    ----------
    path
        Its name.
    notes
        Takes a sentence about what is missing.
    source
        What to read, if not the whole file as it is.

    Raises
    ------
    InputError
        As of :func:`read_trace`.
    """
    try:
        with (
            pa.memory_map(str(path)) if source is None else source as file,
            ipc.open_stream(file) as stream,
        ):
            _check_format(path, stream.schema)
            # Of equal fields, which steps repeat, there is one object.
            decoded = lru_cache(_FIELDS)(_decoded)
            while True:
                try:
                    batch = stream.read_next_batch()
                except StopIteration:
                    return
                except (OSError, pa.ArrowException):
                    notes.append(f"{path.name} was cut; what came before the cut is used")
                    return
                yield from _rows_in(path, batch, decoded)
    except (OSError, pa.ArrowException) as error:
        if path.stat().st_size == 0:
            notes.append(f"{path.name} is empty: its process was killed before the first step")
            return
        raise InputError(
            f"{path} is no trace: {str(error).splitlines()[0]}; collect it again"
        ) from error


def _check_format(path: Path, schema: pa.Schema) -> None:
    found = (schema.metadata or {}).get(b"format", b"nothing").decode("utf-8", "replace")
    if found != FORMAT:
        raise InputError(
            f"{path} has the format {found[:60]}; this tapml reads {FORMAT}. Collect it again with "
            "this version"
        )
    if not schema.equals(_SCHEMA):
        raise InputError(f"{path} has other columns than a trace; collect it again")


def _rows_in(path: Path, batch: pa.RecordBatch, decoded: Callable[[str], Fields]) -> list[Row]:
    columns: list[list[Any]] = []
    try:
        for name in _COLUMNS:
            column = batch.column(_COLUMNS.index(name))
            if isinstance(column, pa.DictionaryArray):
                known: list[Any] = _texts(column.dictionary)
                if name in _JSON_COLUMNS:
                    known = [decoded(text) for text in known]
                columns.append([known[index] for index in _numbers(column.indices)])
            else:
                columns.append(_numbers(column) if name != "digest" else _texts(column))
        return list(map(Row._make, zip(*columns, strict=True)))
    except (IndexError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged: {error}; collect it again") from error


def _numbers(array: pa.Array) -> list[int]:
    """The numbers of an array, which the trace never leaves out.

    ``to_pylist`` makes an object of Arrow for each.
    """
    if not len(array):
        return []
    content = memoryview(array.buffers()[1]).cast("B")
    numbers = content.cast("q") if array.type.bit_width == 64 else content.cast("i")
    return numbers[array.offset : array.offset + len(array)].tolist()


def _texts(array: pa.Array) -> list[str]:
    """The texts of an array, as :func:`_numbers`."""
    _, places, content = array.buffers()
    text = b"" if content is None else content.to_pybytes()
    begins = memoryview(places).cast("B").cast("i")[array.offset :].tolist() if len(array) else []
    return [str(text[one:other], "utf-8") for one, other in pairwise(begins[: len(array) + 1])]


def _decoded(text: str) -> Fields:
    if len(text) > _LARGEST_FIELD:
        raise ValueError("a field is too large")
    return msgspec.json.decode(text, type=dict[str, Any])
