"""What `tapml inspect` says of a Library, of a file that is none, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tapml.inspection.others import (
    MAX_LIBRARY_BYTES,
    begins_as_library,
    describe_library,
    describe_session,
    library_tables,
)
from tapml.inspection.page import Page, Table
from tapml_targets.errors import InputError, ProtocolError
from tapml_targets.library import Library
from tapml_targets.library_format import library_hash, pack
from tests.replaying.replay_kernels import linear_library, linear_operator


@pytest.fixture(scope="module")
def library() -> Library:
    return linear_library(linear_operator())


def test_a_library_is_described_by_its_operators_kernels_and_modules(
    library: Library, tmp_path: Path
) -> None:
    path, data = tmp_path / "library.tapml", pack(library)
    path.write_bytes(data)
    page = describe_library(path)
    assert (page.kind, page.path) == ("library", str(path))
    assert page.facts["target"] == "opencl"
    assert page.facts["hash"] == library_hash(data)
    assert (page.facts["bytes"], page.facts["operators"], page.facts["kernels"]) == (
        len(data),
        1,
        1,
    )
    tables = {table.title: table.to_json() for table in page.tables}
    assert tables["operators"] == [
        {"operator": "linear", "parameters": 3, "launches": 1, "workspaces": 0}
    ]
    (kernel,) = tables["kernels"]
    assert (kernel["kernel"], kernel["dialect"]) == ("linear", "opencl-c")
    (module,) = tables["modules"]
    assert module["bytes"] == len(library.modules[0].code)
    assert list(page.tables) == list(library_tables(library))


def test_a_damaged_library_is_refused(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "library.tapml"
    path.write_bytes(pack(library)[:-20])
    assert begins_as_library(path)
    with pytest.raises(ProtocolError):
        describe_library(path)


def test_what_is_no_file_or_too_large_is_refused_unread(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as stream:
        stream.truncate(MAX_LIBRARY_BYTES + 1)
    for path in (tmp_path, tmp_path / "missing", large):
        assert not begins_as_library(path)
        with pytest.raises(InputError, match="is not a Library: expected a file of at most"):
            describe_library(path)


def test_a_session_without_a_report_says_how_to_continue(tmp_path: Path) -> None:
    page = describe_session(tmp_path)
    assert page.facts == {"status": "no report yet: continue with `tapml offload --session`"}


def test_a_page_is_strict_json() -> None:
    numbers = Table("numbers", ("name", "worst"), (("x", float("nan")), ("y", -float("inf"))))
    page = Page("suite", "s", {"tests": 2}, (numbers,))
    text = json.dumps(page.to_json(), allow_nan=False)
    assert json.loads(text) == {
        "kind": "suite",
        "path": "s",
        "facts": {"tests": 2},
        "numbers": [{"name": "x", "worst": "nan"}, {"name": "y", "worst": "-inf"}],
    }
