"""Import of a model: the demo with an empty cache and with a full one, and 32 layers."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tapml.importing.cache import PlanCache
from tapml.importing.importer import import_model
from tapml.models import load_model

BARS: Final = {"demo, cold": 10.0, "demo, cached": 0.5, "32 layers, cold": 30.0}
LAYERS: Final = 32
_SIZES: Final = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


def measure() -> list[dict[str, Any]]:
    """Import with a cache of its own; an import before it has loaded the libraries."""
    with tempfile.TemporaryDirectory() as folder:
        small = _llama(Path(folder) / "one layer", 1)
        import_model(load_model(small))
        demo, deep = load_model("pydoc-llama"), load_model(_llama(Path(folder) / "deep", LAYERS))
        cache = PlanCache(Path(folder) / "plans")
        return [
            _row(name, model, cache) for name, model in zip(BARS, (demo, demo, deep), strict=True)
        ]


def _llama(folder: Path, layers: int) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {**_SIZES, "num_hidden_layers": layers}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder)
    return folder


def _row(name: str, model: Any, cache: PlanCache) -> dict[str, Any]:
    started, used = time.perf_counter(), time.process_time()
    imported = import_model(model, cache=cache)
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    return {
        "part": "import",
        "name": name,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "operators": len(imported.plan.operators),
        "sites": sum(len(entry.calls) for entry in imported.plan.entries.values()),
        "at_most": BARS[name],
        "met": seconds <= BARS[name],
    }
