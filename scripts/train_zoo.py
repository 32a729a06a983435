"""Trains the language model that ships with tapml, from a text that ships with Python.

The text is the prose of ``pydoc_data.topics``. It differs between patch releases of Python, so it
is pinned by hash. One thread, one seed and a fixed number of steps: a second run on the same
machine and library versions writes the same weights. ``--check`` trains again and compares with
the recorded validation loss instead of replacing the model.

    python scripts/train_zoo.py [--check] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.utils.hooks import RemovableHandle
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parent.parent
# The project's root instead of this folder, whose test.py would hide the standard library's.
sys.path[0] = str(ROOT)

from scripts.zoo_corpus import (
    CORPUS_PYTHON,
    CORPUS_SHA256,
    Corpus,
    check_corpus,
    read_corpus,
    words,
)
from tapml.models.prompts import beginnings

NAME = "pydoc-llama"
BEGIN, END = "<|begin|>", "<|end|>"
ZOO = ROOT / "tapml" / "models" / "zoo"
CARD = ROOT / "scripts" / "zoo_card.md"
# Another processor or torch release rounds differently; this bounds what that does to the loss.
LOSS_TOLERANCE = 0.05
HELD_OUT_PROMPTS = 64
GREEDY_TOKENS = 64


@dataclass(frozen=True)
class Settings:
    """Everything the weights depend on, besides the corpus and the library versions."""

    seed: int = 20240607
    threads: int = 1
    steps: int = 1500
    batch: int = 8
    context: int = 256
    learning_rate: float = 3e-3
    warmup: int = 40
    weight_decay: float = 0.3
    vocabulary: int = 2000
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    # Not a multiple of 32: the tail of a tiled kernel is exercised.
    intermediate: int = 344
    dropout: float = 0.3


def train_tokenizer(texts: tuple[str, ...], size: int, context: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A",
        pair=f"{BEGIN} $A $B",
        special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=context,
        model_input_names=["input_ids", "attention_mask"],
    )


def token_stream(
    tokenizer: PreTrainedTokenizerFast, texts: tuple[str, ...]
) -> npt.NDArray[np.int64]:
    stream: list[int] = []
    for text in texts:
        stream += [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    return np.asarray(stream, dtype=np.int64)


def build_model(settings: Settings, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=settings.intermediate,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        max_position_embeddings=settings.context,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        initializer_range=0.02,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        use_cache=True,
        dtype=torch.float32,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.max_new_tokens = 64
    return model


def validation_loss(model: LlamaForCausalLM, stream: npt.NDArray[np.int64], context: int) -> float:
    """Mean negative log likelihood per token in nats, over windows that do not overlap."""
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(stream) - 1, context):
            window = torch.from_numpy(stream[start : start + context + 1])[None]
            logits = model(window[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits[0], window[0, 1:], reduction="sum")
            total += float(loss)
            count += window.shape[1] - 1
    model.train()
    return total / count


def add_dropout(model: LlamaForCausalLM, share: float) -> list[RemovableHandle]:
    """Dropout on everything added to the residual stream, while training."""
    parts = [model.get_input_embeddings()]
    for layer in model.model.layers:
        parts += [layer.self_attn.o_proj, layer.mlp.down_proj]
    return [
        part.register_forward_hook(
            lambda part, _, output: torch.nn.functional.dropout(output, share, part.training)
        )
        for part in parts
    ]


def train(
    settings: Settings,
    model: LlamaForCausalLM,
    training: npt.NDArray[np.int64],
    validation: npt.NDArray[np.int64],
) -> list[dict[str, float]]:
    """Train in place; returns the loss curve."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": settings.weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
        betas=(0.9, 0.95),
    )
    hooks = add_dropout(model, settings.dropout)
    random = np.random.default_rng(settings.seed)
    curve: list[dict[str, float]] = []
    started = time.monotonic()
    model.train()
    for step in range(1, settings.steps + 1):
        if step <= settings.warmup:
            rate = step / settings.warmup
        else:
            done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
            rate = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * rate
        starts = random.integers(0, len(training) - settings.context - 1, settings.batch)
        batch = torch.from_numpy(
            np.stack([training[start : start + settings.context + 1] for start in starts])
        )
        logits = model(batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == settings.steps:
            held_out = validation_loss(model, validation, settings.context)
            curve.append({"step": step, "training": loss.item(), "validation": held_out})
            print(
                f"step {step:5d}  training {loss.item():.4f}  validation {held_out:.4f}  "
                f"{time.monotonic() - started:.0f} s",
                flush=True,
            )
    for hook in hooks:
        hook.remove()
    model.eval()
    return curve


def greedy_words(model: LlamaForCausalLM, tokenizer: Any, prompt: str) -> list[str]:
    """Words of a greedy continuation, the possibly unfinished last one left out."""
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=GREEDY_TOKENS,
            do_sample=False,
            pad_token_id=tokenizer.eos_token_id,
        )
    text = tokenizer.decode(out[0], skip_special_tokens=True)
    # The prompt's last word may have been continued, so it counts as written by the model.
    return words(text)[len(words(prompt)) - 1 : -1]


def write_model(
    folder: Path,
    settings: Settings,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Corpus,
    record: dict[str, Any],
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    known = sorted(set(words("\n".join(corpus.training))))
    (folder / "words.txt").write_text("\n".join(known) + "\n", encoding="utf-8")
    held_out = "\n".join(corpus.validation) + "\n"
    (folder / "validation.txt").write_text(held_out, encoding="utf-8")
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    card = CARD.read_text(encoding="utf-8").format(
        name=NAME,
        parameters=record["parameters"],
        python=CORPUS_PYTHON,
        corpus_sha256=CORPUS_SHA256,
        training_tokens=record["training_tokens"],
        validation_tokens=record["validation_tokens"],
        seconds=record["seconds"],
        loss=record["validation_loss"],
        share=record["greedy_words_in_corpus"],
        looked_at=record["greedy_words"],
        distinct=record["greedy_distinct_words"],
        prompts=record["greedy_prompts"],
        **asdict(settings),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def weights_sha256(model: LlamaForCausalLM) -> str:
    """Hash of names and bytes of the weights."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def run(
    settings: Settings, corpus: Corpus
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast, dict[str, Any]]:
    """Train from nothing; returns the model, its tokenizer and the record."""
    torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(settings.seed)
    tokenizer = train_tokenizer(corpus.training, settings.vocabulary, settings.context)
    training = token_stream(tokenizer, corpus.training)
    validation = token_stream(tokenizer, corpus.validation)
    model = build_model(settings, tokenizer)
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{parameters:,} parameters, {len(training):,} training tokens, "
        f"{len(validation):,} validation tokens"
    )
    started = time.monotonic()
    curve = train(settings, model, training, validation)
    record = {
        "name": NAME,
        "parameters": parameters,
        "corpus": {
            "module": "pydoc_data.topics",
            "python": CORPUS_PYTHON,
            "sha256": CORPUS_SHA256,
        },
        "settings": asdict(settings),
        "training_tokens": len(training),
        "validation_tokens": len(validation),
        "validation_loss": curve[-1]["validation"],
        "weights_sha256": weights_sha256(model),
        "curve": curve,
        "seconds": round(time.monotonic() - started, 1),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return model, tokenizer, record


def measure_words(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, corpus: Corpus
) -> dict[str, Any]:
    """How many greedy words are words of the training text, for the record."""
    known = set(words("\n".join(corpus.training)))
    prompts = beginnings(corpus.validation)[:HELD_OUT_PROMPTS]
    found = [word for prompt in prompts for word in greedy_words(model, tokenizer, prompt)]
    return {
        "greedy_words_in_corpus": sum(word in known for word in found) / len(found),
        "greedy_words": len(found),
        "greedy_distinct_words": len(set(found)),
        "greedy_prompts": len(prompts),
        "greedy_tokens_per_prompt": GREEDY_TOKENS,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ZOO / NAME, help="folder to write")
    parser.add_argument("--steps", type=int, help="fewer or more steps than the shipped model")
    parser.add_argument(
        "--check", action="store_true", help="compare with the recorded loss and write nothing"
    )
    arguments = parser.parse_args()
    check_corpus()
    settings = Settings() if arguments.steps is None else Settings(steps=arguments.steps)
    corpus = read_corpus()
    model, tokenizer, record = run(settings, corpus)
    print(f"validation loss {record['validation_loss']:.6f}, weights {record['weights_sha256']}")
    if arguments.check:
        recorded = json.loads((arguments.out / "training.json").read_text(encoding="utf-8"))
        difference = abs(record["validation_loss"] - recorded["validation_loss"])
        same = record["weights_sha256"] == recorded["weights_sha256"]
        print(
            f"recorded {recorded['validation_loss']:.6f}, difference {difference:.2g}, "
            f"weights {'identical' if same else 'differ'}"
        )
        return 0 if difference <= LOSS_TOLERANCE else 1
    record |= measure_words(model, tokenizer, corpus)
    share, looked_at = record["greedy_words_in_corpus"], record["greedy_words"]
    print(f"{share:.2%} of {looked_at} greedy words are in the corpus")
    write_model(arguments.out, settings, model, tokenizer, corpus, record)
    print(f"written to {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
