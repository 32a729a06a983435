"""Programs: a step that is recorded once and run by its name."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from tapml_rpc import wire
from tapml_rpc.client import RemoteTensor, Session
from tapml_rpc.device.session_state import AFTER_ALL, Message, RunningBatch, ServerSession
from tapml_rpc.recordings import MAX_PAYLOAD_BYTES
from tapml_rpc.supervisor.board import JOURNAL_BYTES, LastCommands
from tapml_targets.errors import InputError
from tapml_targets.library_format import pack
from tests.rpc.libraries import add_one_library
from tests.rpc.peers import RawPeer, ServerProcess

COUNT = 300
LIBRARY = add_one_library()


class Step:
    """A step as a decode step is one: an input, a fill, a call, a copy, two reads."""

    def __init__(self, session: Session, name: str = "step") -> None:
        self.session = session
        library = session.upload(LIBRARY)
        self.tensors = [
            RemoteTensor(session.allocate(4 * COUNT), 0, (COUNT,), "float32") for _ in range(2)
        ]
        given, output = (tensor.buffer for tensor in self.tensors)
        with session.program(name) as self.program:
            self.program.fill(output, np.float32(-1).tobytes())
            self.program.write(given)
            self.program.call(library, "add_two", self.tensors)
            self.program.read(output, 8)
            self.program.call(library, "add_one", [self.tensors[1], self.tensors[0]])
            self.program.read(given)

    def run(self, value: float) -> tuple[float, float]:
        """What the first elements come to."""
        two, three = self.session.execute(self.program, np.full(COUNT, value, np.float32))
        assert len(two) == 8 and len(three) == 4 * COUNT
        found = np.frombuffer(three, np.float32)
        assert (found == found[0]).all()
        return float(np.frombuffer(two, np.float32)[0]), float(found[0])


def test_a_program_runs_on_what_each_run_brings(session: Session) -> None:
    step = Step(session)
    assert [step.run(value) for value in (1, 5, -2)] == [(3, 4), (7, 8), (0, 1)]


def test_a_run_is_one_small_command_among_others(session: Session) -> None:
    step, kept = Step(session), session.allocate(4)
    with session.batch() as batch:
        batch.write(kept, b"abc")
        first = batch.execute(step.program, np.full(COUNT, 1, np.float32))
        middle = batch.read(kept, 3)
        second = batch.execute(step.program, np.full(COUNT, 10, np.float32))
    assert [np.frombuffer(run[0].result(), np.float32)[0] for run in (first, second)] == [3, 12]
    assert bytes(middle.result()) == b"abc"


def test_arguments_are_integers_of_a_run(session: Session) -> None:
    library, buffer, other = session.upload(LIBRARY), session.allocate(64), session.allocate(64)
    session.fill(buffer, np.float32(1).tobytes())
    session.fill(other, bytes(1))
    with session.program("windows") as program:
        where, count = program.argument(), program.argument()
        window = RemoteTensor(buffer, where, (count,), "float32")
        program.write(buffer, 4, where)
        program.call(library, "add_one", [window, RemoteTensor(other, 0, (count,), "float32")])
        program.read(other)
    (found,) = session.execute(program, np.float32(9), arguments=[16, 3])
    assert np.frombuffer(found, np.float32).tolist() == [10, 2, 2] + [0] * 13
    (found,) = session.execute(program, np.float32(8), arguments=[12, 2])
    assert np.frombuffer(found, np.float32).tolist() == [9, 10, 2] + [0] * 13
    with pytest.raises(InputError, match="'windows' has 2 arguments, 1 came"):
        session.execute(program, np.float32(8), arguments=[40])


def test_a_long_read_of_a_program_is_streamed(session: Session) -> None:
    buffer = session.allocate(5 << 20)
    with session.program("long") as program:
        program.fill(buffer, b"tapml")
        program.read(buffer, 7)
        program.read(buffer)
    with session.batch() as batch:
        runs = [batch.execute(program) for _ in range(2)]
    for short, long in runs:
        assert bytes(short.result()) == b"tapmlta"
        assert bytes(long.result()) == b"tapml" * (1 << 20)


def test_an_error_names_the_program_and_the_command_in_it(session: Session) -> None:
    step = Step(session, "decode")
    session.free(step.tensors[1].buffer)
    with pytest.raises(InputError, match="no buffer has the handle") as failed:
        step.run(1)
    command = failed.value.command  # type: ignore[attr-defined]
    assert command.startswith("command 0 of program 'decode': fill(")
    assert any("program 'decode'" in note for note in failed.value.__notes__)


def test_a_run_on_a_poisoned_stream_is_skipped(session: Session) -> None:
    step = Step(session)
    assert step.run(1) == (3, 4)
    session._add(["read", 999_999, 0, 4])
    with pytest.raises(InputError, match="999999"):
        step.run(7)
    session.reset()
    assert np.frombuffer(session.read(step.tensors[0].buffer), np.float32)[0] == 4
    assert step.run(7) == (9, 10)


def test_what_a_run_takes_is_checked_before_it_is_sent(session: Session) -> None:
    step = Step(session)
    with pytest.raises(InputError, match="takes the bytes of 1 writes, 2 came"):
        session.execute(step.program, b"", b"")
    with pytest.raises(InputError, match=r"write 0 of .* takes 1200 bytes, 4 came"):
        session.execute(step.program, b"1234")
    large = session.allocate(MAX_PAYLOAD_BYTES + 1)
    with (
        pytest.raises(InputError, match="at most 1048576 bytes a run"),
        session.program("large") as program,
    ):
        program.write(large)
    with pytest.raises(InputError, match="not to its end"):
        session.execute(program)
    with pytest.raises(InputError, match="has been recorded"):
        step.program.write(large, 1)
    assert step.run(1) == (3, 4)


def test_another_program_of_its_name_replaces_one(session: Session) -> None:
    former, step = Step(session), Step(session)
    with pytest.raises(InputError, match="has been replaced"):
        former.run(1)
    del former
    gc.collect()
    session.fence()
    assert step.run(1) == (3, 4)


def test_a_program_nobody_refers_to_is_forgotten_and_its_name_is_free(session: Session) -> None:
    step: Step | None = Step(session)
    del step
    gc.collect()
    session._add(["execute", "step", [], 0])
    with pytest.raises(InputError, match="no program has the name 'step'"):
        session.fence()
    session.reset()
    assert Step(session).run(3) == (5, 6)


def test_what_ran_in_a_program_when_its_worker_died_has_its_place() -> None:
    last = LastCommands(memoryview(bytearray(JOURNAL_BYTES)))
    last.add(7, wire.pack({"commands": [["fence"], ["execute", "step", [3], 0]]}))
    assert last.name(7, 0) == "fence()"
    batch = RunningBatch(ServerSession(0), Message(7, [], memoryview(b"")))
    batch.enter("step", 1, 4, ["fence"])
    assert last.name(7, batch.place) == "execute('step', [3], 0), its command 4"
    assert last.name(7, AFTER_ALL) == "fence"


def test_programs_of_one_session_are_not_anothers(server: ServerProcess) -> None:
    with RawPeer(server.address) as one, RawPeer(server.address) as other:
        assert "error" not in one.batch(["program", "step", [["fence"]]])[0]
        assert one.batch(["execute", "step", [], 0])[0]["results"] == [[[0, 0], True]]
        assert "no program" in other.batch(["execute", "step", [], 0])[0]["error"]["message"]


def test_programs_and_what_they_run_are_bounded(peer: RawPeer) -> None:
    bounds = peer.welcome["bounds"]
    long = [["fence"]] * bounds["program_commands"]
    assert "error" not in peer.batch(["program", "long", long])[0]
    error = peer.batch(["program", "longer", [*long, ["fence"]]])[0]["error"]
    assert "at most 1024 are taken" in error["message"]
    runs = bounds["commands"] // len(long)
    error = peer.batch(["reset"], *[["execute", "long", [], 0]] * (runs + 1))[0]["error"]
    assert error["index"] == runs + 1 and "at most 4096 are run" in error["message"]
    many = [["program", f"p{number}", []] for number in range(bounds["programs"])]
    error = peer.batch(["reset"], *many)[0]["error"]
    assert error["index"] == bounds["programs"] and "64 programs" in error["message"]
    # To forget is to give back: it runs on a poisoned session, too.
    names = ["long", "none", *(f"p{number}" for number in range(len(many)))]
    peer.batch(*(["forget", name] for name in names))
    wide = [["fill", 1, 0, 4, bytes(4096)]] * 200
    errors = [
        peer.batch(["reset"], ["program", f"w{number}", wide])[0].get("error", {})
        for number in range(6)
    ]
    assert [bool(each) for each in errors] == [False] * 5 + [True]
    assert "at most 4194304" in errors[-1]["message"]


def test_what_is_no_program_is_refused_where_it_is_recorded(peer: RawPeer) -> None:
    nested: list[object] = []
    for _ in range(6):
        nested = [nested]
    for commands, expected in (
        ([["allocate", 1, 4]], "command 0 of program 'p': 'allocate' is not allowed in a program"),
        (
            [["fence"], ["execute", "p", [], 0]],
            "command 1 of program 'p': 'execute' is not allowed",
        ),
        ([["read", 1, 0]], "wrong number of fields in 'read'"),
        ([["read", 1, 0, {"argument": 64}]], "argument must be an integer from 0 to 63"),
        ([["read", 1, 0, {"argument": 1}]], "they count from 0"),
        ([["read", 1, 0, {}]], '{"argument": its number}'),
        ([["read", 1, 0, nested]], "too deep"),
        ([7], "command must be an array"),
        ([[]], "'' is not allowed in a program"),
        ("fence", "commands of a program must be an array"),
    ):
        error = peer.batch(["reset"], ["program", "p", commands])[0]["error"]
        assert expected in error["message"]
    for command, said in (
        (["execute", "p", [], 0], "no program has the name 'p'"),
        (["execute", "p", []], "wrong number of fields"),
        (["execute", 1, [], 0], "program name must be a string"),
        (["program", "", []], "a program has a name"),
    ):
        assert said in peer.batch(["reset"], command)[0]["error"]["message"]


def test_a_program_stops_where_it_fails_and_says_where(peer: RawPeer) -> None:
    peer.batch(["allocate", 1, 8], ["fill", 1, 0, 8, b"a"])
    body = [["read", 1, 0, 4], ["write", 1, 0, 4, 2], ["read", 1, 8, {"argument": 0}], ["fence"]]
    peer.batch(["program", "step", body])
    answer, chunk = peer.batch(["fence"], ["execute", "step", [1], 1], ["fence"], chunk=b"__.bcde")
    assert (answer["results"], chunk) == ([[0, True], [[1, 0], [0, 4]]], b"aaaa")
    error = answer["error"]
    assert (error["index"], error["program"], error["place"]) == (1, "step", 2)
    assert error["command"] == "command 2 of program 'step': read(1, 8, 1)"
    assert "bytes 8 to 9 lie outside buffer 1" in error["message"]
    answer, chunk = peer.batch(["reset"], ["read", 1, 0, 8])
    assert chunk == b"bcdeaaaa"
    answer, _ = peer.batch(["execute", "step", [0], 1], chunk=b"abcde")
    assert "bytes 3 to 7 of a chunk of 5" in answer["error"]["message"]


def test_results_that_no_header_holds_cost_the_stream_and_not_the_session(peer: RawPeer) -> None:
    operator = LIBRARY.operators["add_one"]
    names = [f"{number}".ljust(500, "o") for number in range(8)]
    packed = pack(
        replace(
            LIBRARY,
            operators={each: structs.replace(operator, name=each) for each in names},
            entries={},
        )
    )
    digest = peer.attach(packed)
    answer, _ = peer.batch(*(["load", handle, digest] for handle in range(300)))
    assert "results" not in answer and "over the bound" in answer["error"]["message"]
    answer, _ = peer.batch(["reset"], ["fence"])
    assert answer["results"] == [[1, True]]
