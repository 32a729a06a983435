"""Descriptions as plain data, and the fingerprint made of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml_targets.description import fingerprint, from_plain, to_plain
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import ProtocolError
from tapml_targets.limits import Limits

COUNTS = st.integers(0, 2**40)
EXTENTS = st.tuples(COUNTS, COUNTS, COUNTS)
DESCRIPTIONS = st.builds(
    DeviceDescription,
    st.text(),
    COUNTS,
    st.text(),
    st.text(),
    st.sampled_from(["gpu", "cpu"]),
    st.text(),
    st.builds(
        Limits,
        COUNTS,
        EXTENTS,
        EXTENTS,
        COUNTS,
        COUNTS,
        COUNTS,
        COUNTS,
        st.frozensets(st.text(max_size=5), max_size=3),
        COUNTS,
        COUNTS,
        COUNTS,
        st.tuples(COUNTS, COUNTS),
        st.text(max_size=5),
        COUNTS,
    ),
    st.dictionaries(st.text(), st.text(), max_size=3),
)
DEVICE = DeviceDescription(
    "opencl", 0, "name", "vendor", "gpu", "1.0", Limits(1024), {"clock_mhz": "900", "vendor": "v"}
)


@given(DESCRIPTIONS)
def test_a_description_survives_json(description: DeviceDescription) -> None:
    assert from_plain(json.loads(json.dumps(to_plain(description)))) == description


@pytest.mark.parametrize("field", [*to_plain(DEVICE), "extra"])
@pytest.mark.parametrize("value", [None, -1, 1.5, [], {"a": 1}, True])
def test_a_field_of_another_type_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ProtocolError):
        from_plain(to_plain(DEVICE) | {field: value})


@pytest.mark.parametrize("field", to_plain(DEVICE)["limits"])
@pytest.mark.parametrize("value", [None, -1, 1.5, [1, 2], [0, 0, -1], "x", True])
def test_a_limit_of_another_type_is_refused(field: str, value: Any) -> None:
    data = to_plain(DEVICE)
    data["limits"][field] = value
    with pytest.raises(ProtocolError):
        from_plain(data)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"vendor_platform": "other"},
        {"driver_version": "1.1"},
        {"limits": Limits(512)},
        {"details": {"vendor": "w"}},
    ],
)
def test_another_device_or_driver_has_another_fingerprint(change: dict[str, Any]) -> None:
    assert fingerprint(replace(DEVICE, **change)) != fingerprint(DEVICE)


@pytest.mark.parametrize(
    "change",
    [
        {"index": 3},
        {"limits": Limits(1024, memory_bytes=5, max_buffer_bytes=4)},
        {"details": {"clock_mhz": "1200", "vendor": "v"}},
    ],
)
def test_temporary_details_do_not_change_the_fingerprint(change: dict[str, Any]) -> None:
    assert fingerprint(replace(DEVICE, **change)) == fingerprint(DEVICE)
