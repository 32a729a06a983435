"""``tapml run``: generate text with a finished plan, on the target alone."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, Final

from tapml.cli.model_arguments import positive

_EPILOG: Final = """\
examples:
  tapml run my-session --prompt "The value of the attribute"
  tapml run my-session --tokens "1 2 3" --max-new-tokens 20 --device opencl:1

The session must have ended with every operator on the target (`tapml offload`).
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "run",
        help="generate text with a finished plan on its target",
        description="Generate text, greedily, with a finished plan on its target alone.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("session", type=Path, help="folder of a finished session")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT")
    prompt.add_argument("--tokens", metavar="IDS", help='token ids, "1 2 3"')
    parser.add_argument("--max-new-tokens", type=positive, default=40, metavar="N")
    parser.add_argument("--device", metavar="NAME", help="default: the session's")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Stream the text to standard output, the speed to standard error."""
    from tapml.offload.finished_folder import check_finished

    check_finished(arguments.session)

    from tapml.execute.generate import greedy
    from tapml.models import prompt_from_text, prompt_from_tokens
    from tapml.offload.finished import open_finished

    with open_finished(arguments.session, arguments.device) as (model, runner):
        prompt = (
            prompt_from_tokens(model, arguments.tokens)
            if arguments.prompt is None
            else prompt_from_text(model, arguments.prompt)
        )
        room = model.context_length - len(prompt.token_ids) + 1
        count = min(arguments.max_new_tokens, room)
        print(prompt.text or " ".join(map(str, prompt.token_ids)), end="", flush=True)
        stream = None if model.tokenizer is None else model.tokenizer.stream(prompt.token_ids)
        tokens = 0
        started = time.monotonic()
        for step in greedy(model, runner, prompt.token_ids, count):
            tokens += 1
            text = f" {step.token}" if stream is None else stream.push(step.token)
            print(text, end="", flush=True)
        seconds = time.monotonic() - started
        print("" if stream is None else stream.finish())
    print(
        f"{tokens} tokens in {seconds:.2f} s ({tokens / seconds:.1f} a second)",
        file=sys.stderr,
    )
    if count < arguments.max_new_tokens:
        print(f"stopped at the context of {model.context_length} tokens", file=sys.stderr)
    return 0
