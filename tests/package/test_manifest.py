"""``package.json`` comes back as it was written, and nothing in it is trusted."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapml.models.stored import StoredDecoder
from tapml.package.manifest import (
    LIBRARY,
    PLAN,
    WEIGHTS,
    Manifest,
    StoredFile,
    TokenizerNote,
    ValidatedDevice,
)
from tapml.package.sample import Sample
from tapml_targets.errors import InputError

QUICK = settings(max_examples=200, deadline=None)
MANIFEST = Manifest(
    model=StoredDecoder("model", "float16", 64, 131, frozenset({1, 2}), "ab" * 32),
    entries={"decode": {"inputs": "token_ids int32 [1, 1]", "outputs": "logits"}},
    device=ValidatedDevice("opencl", "Gerät", "Vendor", "1.2", "cd" * 32),
    verdict={"status": "pass", "text": "all 3 operators", "operators": 3, "worst_ratio": 1.5},
    tokenizer=TokenizerNote("tokenizers", "equal on 3 texts"),
    versions={"python": "3.11.7"},
    weights_header_sha256="ef" * 32,
    files={name: StoredFile(7, "01" * 32) for name in (PLAN, LIBRARY, WEIGHTS, "LICENSE.txt")},
    sample=Sample((1, 2), (3,)),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in the data that something can be put in."""
    items = data.items() if isinstance(data, dict) else ()
    return [each for key, value in items for each in ((*path, key), *places(value, (*path, key)))]


PLACES = places(json.loads(MANIFEST.to_bytes()))


def test_a_manifest_comes_back_as_it_was() -> None:
    assert Manifest.from_bytes(MANIFEST.to_bytes()) == MANIFEST


@QUICK
@given(place=st.sampled_from(PLACES), value=JSON)
def test_anything_in_any_place_is_taken_or_refused(place: tuple[Any, ...], value: Any) -> None:
    data = json.loads(MANIFEST.to_bytes())
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with contextlib.suppress(InputError):
        manifest = Manifest.from_bytes(json.dumps(data).encode())
        assert Manifest.from_bytes(manifest.to_bytes()) == manifest


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_what_is_missing_is_refused(place: tuple[Any, ...]) -> None:
    free = (place[0] in ("entries", "verdict", "versions") and len(place) > 1) or place in (
        ("files", "LICENSE.txt"),
        ("sample",),
    )
    data = json.loads(MANIFEST.to_bytes())
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    del inner[place[-1]]
    content = json.dumps(data).encode()
    if free:
        Manifest.from_bytes(content)
    else:
        with pytest.raises(InputError):
            Manifest.from_bytes(content)


@pytest.mark.parametrize("version", [True, 1.0, "1", None])
def test_a_version_that_is_no_integer_is_refused(version: object) -> None:
    data = json.loads(MANIFEST.to_bytes()) | {"version": version}
    with pytest.raises(InputError, match="version"):
        Manifest.from_bytes(json.dumps(data).encode())


def test_a_size_that_is_no_integer_is_refused() -> None:
    data = json.loads(MANIFEST.to_bytes())
    data["files"][PLAN]["bytes"] = True
    with pytest.raises(InputError, match="Expected `int`, got `bool`"):
        Manifest.from_bytes(json.dumps(data).encode())


def test_a_package_of_an_earlier_tapml_takes_text() -> None:
    content = MANIFEST.to_bytes().replace(b'"reader": "tokenizers"', b'"reader": "tapml"')
    assert content != MANIFEST.to_bytes()
    assert Manifest.from_bytes(content) == MANIFEST


def test_numbers_that_json_has_not_are_refused() -> None:
    content = MANIFEST.to_bytes().replace(b"1.5", b"Infinity")
    with pytest.raises(InputError, match="JSON is malformed"):
        Manifest.from_bytes(content)


@pytest.mark.parametrize("name", ["../weights", "a/b", ".hidden", "", "package.json", "x" * 200])
def test_a_file_name_that_leads_elsewhere_is_refused(name: str) -> None:
    data = json.loads(MANIFEST.to_bytes())
    data["files"][name] = data["files"][PLAN]
    with pytest.raises(InputError, match=r"is damaged: .*matching regex"):
        Manifest.from_bytes(json.dumps(data).encode())
