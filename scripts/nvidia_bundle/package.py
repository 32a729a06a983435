"""The demo package on a device: its tokens beside PyTorch's, and decode tokens a second.

package.py PACKAGE DEVICE EXPECTED ROUNDS
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from itertools import takewhile
from pathlib import Path
from typing import Any


def main(package: str, device: str, expected: str, rounds: str) -> dict[str, Any]:
    """Generate the expected text several times; the last line of output is the result."""
    import tapml

    wanted = json.loads(Path(expected).read_text("utf-8"))
    prompt, tokens = wanted["prompt"], wanted["tokens"]
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    with tapml.load_package(package, device) as model:
        ready = time.perf_counter() - began
        rates = []
        for _ in range(int(rounds)):
            times, made = [], []
            for token in model.generate_tokens(prompt, max_new_tokens=len(tokens)):
                times.append(time.perf_counter())
                made.append(token)
            if made != tokens:
                pairs = zip(made, tokens, strict=False)
                same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                line = f"token {same} of {len(tokens)} is not PyTorch's: {made[same : same + 1]}"
                return {"status": "fail", "line": line}
            rates.append((len(made) - 1) / (times[-1] - times[0]))
        rate = statistics.median(rates)
        notes = [note for note in model.notes if "differ" in note]
        name, nbytes = model.device.name, model.device_bytes
    return {
        "status": "pass",
        "line": "; ".join(
            [f"{len(tokens)} tokens equal PyTorch's, {rate:.0f} a second on {name}", *notes]
        ),
        "figures": {
            "tokens_per_second": rate,
            "rounds": rates,
            "tokens": len(tokens),
            "ready_seconds": ready,
            "device_bytes": nbytes,
        },
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
