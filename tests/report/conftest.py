"""The browser that shows reports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.report.browser import Page, open_browser


@pytest.fixture(scope="module")
def report_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def browser(report_browser: Page) -> Iterator[Page]:
    """Every test begins at a desk and ends without a word on the console."""
    report_browser.complaints.clear()
    report_browser.requests.clear()
    report_browser.resize(1280, 900)
    yield report_browser
    assert report_browser.complaints == []
    assert [each for each in report_browser.requests if not each.startswith("file://")] == []
