"""The browser that shows a session's pages."""

from __future__ import annotations

from tests.report.conftest import browser, report_browser

__all__ = ["browser", "report_browser"]
