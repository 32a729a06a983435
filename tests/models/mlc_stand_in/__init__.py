"""The folder that holds a stand-in for a source of mlc-llm (:data:`STAND_IN`)."""

from __future__ import annotations

from pathlib import Path

STAND_IN = Path(__file__).resolve().parent
