"""Libraries travel once, arrive as announced, and are not machine code."""

from __future__ import annotations

from typing import Any

import pytest

from tapml_rpc.client import Session, connect
from tapml_rpc.command_queue import PIECE_BYTES
from tapml_targets.errors import CompileError, InputError, ProtocolError
from tapml_targets.library import CodeModule, Library
from tapml_targets.library_format import library_hash, pack
from tests.rpc.libraries import add_one_library
from tests.rpc.peers import ServerProcess


def chunks_sent(session: Session, library: Library) -> int:
    """Chunk bytes that uploading a Library takes."""
    sent: list[int] = []
    link: Any = session._link
    post = link._post

    def counted(fields: Any, chunk: Any, pending: Any) -> Any:
        sent.append(len(chunk))
        return post(fields, chunk, pending)

    link._post = counted
    try:
        session.upload(library)
    finally:
        link._post = post
    return sum(sent)


def test_a_library_held_is_not_sent_again_even_by_another_session(server: ServerProcess) -> None:
    library = add_one_library(comment="sent once")
    with connect(server.address) as first:
        assert chunks_sent(first, library) == len(pack(library))
        assert chunks_sent(first, library) == 0
    with connect(server.address) as second:
        assert chunks_sent(second, library) == 0


def test_a_library_larger_than_a_message_goes_in_pieces(server: ServerProcess) -> None:
    source = add_one_library().modules[0].code + b"/*" + b"x" * (2 * PIECE_BYTES) + b"*/"
    with connect(server.address) as session:
        remote = session.upload(add_one_library(source))
        assert remote.operators == ("add_one",) and remote.entries == ("add_two",)


def test_a_library_may_be_given_packed(server: ServerProcess) -> None:
    packed = pack(add_one_library())
    with connect(server.address) as session:
        assert session.upload(packed).digest == library_hash(packed)


def test_uploading_twice_gives_the_same_handle_until_it_is_unloaded(server: ServerProcess) -> None:
    with connect(server.address) as session:
        first = session.upload(add_one_library())
        assert session.upload(add_one_library()) is first
        session.unload(first)
        again = session.upload(add_one_library())
        assert again.handle != first.handle
        session.call(first, "add_one", [])
        with pytest.raises(InputError, match=f"no Library has the handle {first.handle}"):
            session.fence()


def test_bytes_that_are_no_library_are_refused(server: ServerProcess) -> None:
    with connect(server.address) as session:
        with pytest.raises(ProtocolError):
            session.upload(b"TAPMLLIB and then nothing of the kind")
        session.fence()


@pytest.mark.parametrize("dialect", ["elf-shared-object", "opencl-c", "cubin"])
def test_machine_code_is_refused_unless_the_server_allows_it(
    server: ServerProcess, dialect: str
) -> None:
    library = Library("cpu", (CodeModule(dialect, b"\x7fELF", kind="machine"),), {}, {})
    with (
        connect(server.address) as session,
        pytest.raises(InputError, match="start it with --allow-shared-libraries"),
    ):
        session.upload(library)


def test_machine_code_that_calls_itself_source_is_refused_by_the_device(
    server: ServerProcess,
) -> None:
    for module in (CodeModule("elf-shared-object", b"\x7fELF"), CodeModule("OpenCL-C", b"")):
        with (
            connect(server.address) as session,
            pytest.raises(CompileError, match=f"'opencl-c' modules, .* {module.dialect!r}"),
        ):
            session.upload(Library("opencl", (module,), {}, {}))
