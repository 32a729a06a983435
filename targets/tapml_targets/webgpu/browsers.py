"""What browsers are started with, so that they are devices: switches and preferences."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

FIREFOX_PREFERENCES: Final = """\
user_pref("dom.webgpu.enabled", true);
user_pref("dom.webgpu.workers.enabled", true);
user_pref("gfx.webgpu.ignore-blocklist", true);
"""
"""Lines of a profile's ``user.js``."""

_CHROMIUM: Final = (
    "--enable-unsafe-webgpu",
    # Fills in the adapter's name.
    "--enable-webgpu-developer-features",
)


def chromium_switches() -> tuple[str, ...]:
    """Switches for Chromium.

    On Linux it takes a GPU only where Vulkan is asked for; without one it takes SwiftShader.
    """
    if not sys.platform.startswith("linux"):
        return _CHROMIUM
    devices = Path("/dev")
    gpu = any(devices.glob("dri/renderD*")) or (devices / "nvidiactl").exists()
    return (*_CHROMIUM, "--enable-features=Vulkan") if gpu else _CHROMIUM
