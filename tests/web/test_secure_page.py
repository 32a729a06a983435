"""A phone's way to the page: ``https``, and a certificate of the tracker's that a person trusts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from tapml.devices.listing import list_devices
from tapml.devices.reach import open_device
from tapml_rpc.security.credentials import Credentials
from tests.report.browser import Page, open_browser
from tests.rpc.tracker.trackers import TrackerProcess
from tests.targets.libraries import library as small_library
from tests.web.pages import NAME, WEBGPU_FLAGS, DevicePage
from tests.web.test_browser_device import VALUES, read, tensor

# No name of this machine: what makes the page secure is the certificate alone.
HOST = "farm.test"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrackerProcess]:
    """A tracker on all addresses, with a certificate that it makes for itself."""
    folder: Path = tmp_path_factory.mktemp("config")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAPML_CONFIG_DIR", str(folder))
        with TrackerProcess("tcp://127.0.0.1:0", "--websocket", "wss://0.0.0.0:0") as process:
            yield process


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    rules = f"--host-resolver-rules=MAP {HOST} 127.0.0.1"
    with open_browser(tmp_path_factory.mktemp("browser"), *WEBGPU_FLAGS, rules) as opened:
        yield opened


def test_without_tls_a_page_of_another_machine_has_no_gpu_and_says_what_to_do(
    page: Page, tracker: TrackerProcess
) -> None:
    shown = DevicePage(page, tracker, f"ws://{HOST}:{urlsplit(tracker.websocket).port}")
    shown.open()
    shown.wait("#state", "cannot start")
    assert shown.evaluate("isSecureContext") is False
    assert "https" in shown.text("#detail")
    # Such a page's headers the browser does not take, and says so.
    page.complaints.clear()


def test_a_page_over_tls_is_a_device_once_a_person_trusts_its_certificate(
    page: Page, secured: TrackerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, port = secured.line, urlsplit(secured.websocket).port
    address = f"wss://127.0.0.1:{port}"
    credentials = Credentials(token=line["token"], fingerprint=line["fingerprint"])
    shown = DevicePage(page, secured, f"wss://{HOST}:{port}")
    with pytest.raises(Exception, match="ERR_CERT_AUTHORITY_INVALID"):
        shown.open(f"name={NAME}&token={line['token']}")
    page.wait_shown("ERR_CERT_AUTHORITY_INVALID")
    assert list_devices(address, credentials=credentials) == []
    # What "Advanced" leads to.
    page.follow("#proceed-link")
    shown.wait_ready()
    assert shown.evaluate("[isSecureContext, location.protocol]") == [True, "https:"]
    assert f"TAPML_TRACKER=wss://{HOST}:{port}" in shown.text("#how")
    monkeypatch.setenv("TAPML_TRACKER", address)
    monkeypatch.setenv("TAPML_TRACKER_TOKEN", line["token"])
    monkeypatch.setenv("TAPML_TRACKER_FINGERPRINT", line["fingerprint"])
    with open_device(f"tracker:{NAME}") as session:
        a, o = tensor(session, VALUES), tensor(session, 0 * VALUES)
        session.call(session.upload(small_library("webgpu")), "add_one", [a, o])
        np.testing.assert_array_equal(read(session, o), VALUES + 1)
    assert page.complaints == []
