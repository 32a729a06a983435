"""A session's report over HTTP, live while another process runs the session."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec

from tapml.report.listening import LOOPBACK
from tapml.report.server import PageServer
from tapml.runs.live_file import LIVE, LiveReader
from tapml.session.folder import REPORT
from tapml.session.live import SessionLive, report_version
from tapml.session.report_page import render_report, render_waiting
from tapml_targets.errors import InputError


class ReportServer(PageServer):
    """Serves one session's folder, which need not exist yet.

    Parameters
    ----------
    folder
        The session's.
    host, port
        As of :class:`~tapml.report.server.PageServer`, which says what is raised.
    """

    def __init__(self, folder: Path, *, host: str = LOOPBACK, port: int = 0) -> None:
        self.folder = folder
        self._live = LiveReader(folder, SessionLive)
        data = {REPORT: self._read_report, LIVE: self._read_live}
        super().__init__(self._render, lambda: report_version(folder), data, host=host, port=port)

    def _read_report(self) -> bytes | None:
        with contextlib.suppress(OSError):
            return (self.folder / REPORT).read_bytes()
        return None

    def _read_live(self) -> bytes:
        live = self._live.read()
        live.report_version = report_version(self.folder)
        return msgspec.json.encode(live)

    def _render(self) -> str:
        if not report_version(self.folder):
            return render_waiting(self.folder)
        try:
            report: dict[str, Any] = json.loads((self.folder / REPORT).read_bytes())
            return render_report(report, live=True)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{self.folder / REPORT} cannot be shown ({type(error).__name__}: {error}); run "
                "the session again"
            ) from error
