from __future__ import annotations

import json
import sys
from subprocess import run
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.models.stored import StoredDecoder
from tapml_targets.errors import InputError

DECODER = StoredDecoder("some", "float16", 16, 40, frozenset({1, 2}), "ab" * 32)


def test_a_decoder_survives_json() -> None:
    assert StoredDecoder.from_json(json.loads(json.dumps(DECODER.to_json()))) == DECODER


@given(
    st.sampled_from(sorted(DECODER.to_json())),
    st.one_of(
        st.none(), st.booleans(), st.floats(), st.text(max_size=3), st.integers(max_value=-1),
        st.integers(min_value=1 << 31), st.lists(st.text()), st.dictionaries(st.text(), st.none()),
    ),
)  # fmt: skip
def test_any_field_value_gives_a_decoder_or_a_clear_error(name: str, value: Any) -> None:
    data = DECODER.to_json() | {name: value}
    try:
        read = StoredDecoder.from_json(data)
    except InputError as error:
        assert "a stored model" in str(error)
    else:
        assert read.to_json() == data | {"end_tokens": sorted(data["end_tokens"])}


@pytest.mark.parametrize("data", [None, [], "text", {}])
def test_invalid_decoders_are_refused(data: object) -> None:
    with pytest.raises(InputError, match="a stored model"):
        StoredDecoder.from_json(data)


def test_it_refuses_what_the_model_refuses() -> None:
    with pytest.raises(InputError, match="two tokens or more"):
        DECODER.prepare_prefill((1,))
    with pytest.raises(InputError, match="token 40 is not in the vocabulary of some"):
        DECODER.prepare_decode(40, 0)


def test_it_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, tapml.models.stored, tapml.models.prompts\n"
        "assert not {'torch', 'transformers', 'tvm'} & set(sys.modules)"
    )
    assert run([sys.executable, "-c", code], check=False).returncode == 0
