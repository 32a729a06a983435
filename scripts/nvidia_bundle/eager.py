"""The same model in PyTorch, eager, with transformers' cache: its tokens and their speed.

eager.py MODEL DEVICE PROMPT TOKENS ROUNDS [EXPECTED]     PROMPT is token ids, "1 2 3"
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any


def main(
    folder: str, device: str, prompt: str, tokens: str, rounds: str, expected: str = ""
) -> dict[str, Any]:
    """Generate greedily; the last line of output is the result."""
    try:
        import torch
        import transformers
    except ImportError as error:
        return {"status": "skip", "line": f"this Python has no {error.name}"}
    if device == "cuda" and not torch.cuda.is_available():
        return {"status": "skip", "line": f"PyTorch {torch.__version__} sees no GPU"}
    # Products in float32 as the packages compute them.
    torch.backends.cuda.matmul.allow_tf32 = False
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = model.eval().to(device)
    ids = [int(each) for each in prompt.split()]
    made: list[int] = []
    rates = []
    for _ in range(int(rounds)):
        made, times = [], []
        cache = None
        given = torch.tensor([ids], device=device)
        with torch.inference_mode():
            while len(made) < int(tokens):
                out = model(given, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                given = out.logits[:, -1:].argmax(-1)
                # Reading the token waits for the device.
                made.append(int(given))
                times.append(time.perf_counter())
        rates.append((len(made) - 1) / (times[-1] - times[0]))
    name = torch.cuda.get_device_name() if device == "cuda" else device
    figures: dict[str, Any] = {
        "tokens_per_second": statistics.median(rates),
        "rounds": rates,
        "tokens": made,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    line = (
        f"{figures['tokens_per_second']:.0f} tokens a second on {name}, "
        f"PyTorch {torch.__version__}, transformers {transformers.__version__}, float32"
    )
    wanted = json.loads(Path(expected).read_text("utf-8"))["tokens"] if expected else made
    if made != wanted:
        return {"status": "fail", "line": f"other tokens than PyTorch's on the processor: {line}"}
    return {"status": "pass", "line": line, "figures": figures}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
