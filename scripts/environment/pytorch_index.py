"""PyTorch's own index of CPU builds.

On Linux the default index serves builds with several gigabytes of CUDA libraries; the CPU build is
a tenth of that. The index is asked once, briefly, and done without when it does not answer.
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from pathlib import Path

from scripts.environment.installer import Pip, SetupError, say

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PATIENCE_SECONDS = 3.0


def answers(index: str = CPU_INDEX, patience: float = PATIENCE_SECONDS) -> bool:
    """Whether `index` answers over HTTP within `patience` seconds, through the user's proxy if any.

    An error status or a certificate this Python does not know is an answer: pip, which has its own
    certificates, decides then. Asked in a thread, because a name server may be silent for longer
    than any timeout of a socket.
    """
    answered = threading.Event()

    def ask() -> None:
        try:
            with urllib.request.urlopen(f"{index}/torch/", timeout=patience):
                answered.set()
        except urllib.error.HTTPError:
            answered.set()
        except urllib.error.URLError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error.reason):
                answered.set()
        except (OSError, ValueError):
            pass

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(patience)
    return answered.is_set()


def install_cpu_build(pip: Pip, root: Path, index: str = CPU_INDEX) -> bool:
    """Install PyTorch's CPU build, of the version in the constraints; False if it cannot be had."""
    if not answers(index):
        say("PyTorch's index of CPU builds cannot be reached: the default index is used instead")
        return False
    try:
        pip.install(
            "installing PyTorch's CPU build (about 200 MB, once)",
            [
                *("--no-deps", "--retries", "0", "--timeout", "15"),
                *("--constraint", str(root / "constraints.txt")),
                *("--index-url", index, "torch"),
            ],
        )
    except SetupError as error:
        say(f"{error}\nThe default index is used instead.")
        return False
    return True
