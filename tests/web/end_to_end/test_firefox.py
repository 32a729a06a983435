"""Firefox as a device: its compiler is naga, its driver lavapipe, and the page is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

import tapml as tml
from tapml.devices.reach import open_device
from tapml_rpc.session import Session
from tests.matrix.edges import KERNELS, Edges, inputs
from tests.report.browser import Page, open_browser
from tests.rpc.tracker.trackers import TrackerProcess
from tests.web.firefox import open_firefox
from tests.web.pages import NAME, WEBGPU_FLAGS, DevicePage

# What holds in Chromium holds here: these are collected once more, with this module's fixtures.
from tests.web.test_blobs import (  # noqa: F401
    test_equal_bytes_go_there_once_and_windows_are_written_alone,
)
from tests.web.test_browser_device import (  # noqa: F401
    test_a_bad_shader_gives_everything_the_compiler_says,
    test_a_long_tensor_goes_there_and_back_in_pieces,
    test_a_poisoned_call_shows_who_writes_behind_a_tensor,
    test_a_poisoned_workspace_shows_who_writes_around_it,
    test_a_read_waits_for_the_work_before_it,
    test_an_operator_and_an_entry_run_in_the_browser,
    test_bytes_are_written_filled_copied_and_read_at_any_place,
    test_programs_run_by_name,
    test_tensors_may_begin_anywhere_and_share_a_buffer,
    test_too_many_threads_and_too_large_a_buffer_name_the_limit,
)


@pytest.fixture(scope="module")
def shown(
    tracker: TrackerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DevicePage]:
    """The page in Firefox, registered."""
    with open_firefox(tmp_path_factory.mktemp("firefox")) as page:
        # It has what the tests here ask of a page of Chromium's.
        shown = DevicePage(cast("Page", page), tracker)
        page.resize(1200, 900)
        shown.open()
        shown.wait_ready()
        yield shown


@pytest.fixture
def session(shown: DevicePage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session with Firefox, over the tracker."""
    monkeypatch.setenv("TAPML_TRACKER", shown.tracker.address)
    with open_device(f"tracker:{NAME}") as opened:
        yield opened


def test_firefox_registers_as_what_it_is(session: Session, shown: DevicePage) -> None:
    device = session.device
    assert device.vendor_platform.startswith("Firefox") and "naga" in device.vendor_platform
    assert device.details["compiler"] == "naga"
    # Its adapter tells no name; that it is a rasteriser it does tell.
    assert (device.name, device.device_type) == ("WebGPU adapter", "cpu")
    assert "naga" in shown.text("#adapter, main")


def test_the_page_itself_has_nothing_to_complain_about(shown: DevicePage) -> None:
    """Firefox writes a shader's errors to the console by itself; the page adds nothing."""
    shader = ("shader module", "amonut")
    others = [each for each in shown.page.complaints if not any(word in each for word in shader)]
    assert others == []


def test_the_same_kernels_in_firefox_and_chromium_are_compared(
    shown: DevicePage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """naga on lavapipe and Tint on SwiftShader: each is wrong where the other is right."""
    monkeypatch.setenv("TAPML_TRACKER", shown.tracker.address)
    module = tml.Module(Edges(), inputs=inputs())
    with open_browser(tmp_path, *WEBGPU_FLAGS) as page:
        beside = DevicePage(page, shown.tracker)
        beside.open("name=chromium")
        beside.wait_ready()
        names = (f"tracker:{NAME}", "tracker:chromium")
        targets = [tml.device(name) for name in names]
        matrix = tml.validate(module, inputs(), target=targets, kernels=[KERNELS])
    assert [each.compiler for each in matrix.implementations] == ["naga", "tint"]
    found = {each.operator: each for each in matrix.differences}
    operators = ("sin", "log", "tanh", "sum")
    assert set(operators) <= set(found), f"{matrix}\n{shown.text('#log')}"
    suspects = {operator: found[operator].suspects for operator in operators}
    firefox, chromium = ((name,) for name in names)
    assert suspects == {"sin": chromium, "log": chromium, "tanh": chromium, "sum": firefox}
    assert found["sum"].layer == "the sides have different compilers: naga against tint"
    # Both compilers take it that there are no NaNs: wrong everywhere, and no difference.
    gaps = next(row for row in matrix.rows if row.operator == "fused_isnan_where")
    assert {cell.status for cell in gaps.cells.values()} == {"fail"} and not gaps.differences
