"""``tapml serve``: answer requests of OpenAI's API with a package on its device."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from tapml.cli.model_arguments import number
from tapml.cli.remote_devices import on_standard_error
from tapml_targets.errors import InputError

_EPILOG: Final = """\
examples:
  tapml serve my-package
  tapml serve my-package --port 8001 --device opencl:1
  curl http://127.0.0.1:8000/v1/completions -H "Content-Type: application/json" \\
      -d '{"prompt": "The value of", "max_tokens": 20, "stream": true}'
  tapml serve my-package --host 0.0.0.0 --token-file my-token     other machines need the token

It serves GET /v1/models, POST /v1/completions and POST /v1/chat/completions (for a model with a
chat template; extra `chat`), streamed as server-sent events with "stream": true. Temperature is 0
unless a request has one. One text is written at a time, others wait in line. Ctrl-C ends it.
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "serve",
        help="answer HTTP requests with a package or a finished session",
        description="Answer requests of OpenAI's API with a model on its device, until Ctrl-C.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "model", type=Path, metavar="PACKAGE_OR_SESSION", help="a package, or a finished session"
    )
    parser.add_argument("--device", metavar="NAME", help="as for `tapml run`")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; one that other machines reach needs --token-file "
        "(default: 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        type=number("a port from 0 to 65535", int, 0, 65535),
        default=8000,
        help="0 takes a free one (default: 8000)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="holds the token that every request has to carry (Authorization: Bearer)",
    )
    parser.add_argument(
        "--waiting",
        type=number("a whole number from 0 to 1000", int, 0, 1000),
        default=16,
        metavar="N",
        help="requests that may wait for the device; more are answered 429 (default: 16)",
    )
    parser.set_defaults(run=run, no_open=False)


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from tapml.cli.run import open_runnable
    from tapml.package.target_model import TargetModel
    from tapml.plan.plan_notes import notes_of
    from tapml.serving.server import ModelServer
    from tapml.serving.turns import Turns
    from tapml.workloads import workload_of
    from tapml_rpc.security.credentials import Credentials

    given = arguments.token_file
    token = None if given is None else Credentials.from_files(token=given).token
    runnable = open_runnable(arguments.model)
    if not workload_of(runnable.model).generates:
        raise InputError(
            f"{runnable.model.name} continues no text, which is what is served: use `tapml run`"
        )
    runnable.open_codec()
    for note in notes_of(runnable.plan):
        print(f"note: {note}", file=sys.stderr)

    def open_model() -> TargetModel:
        # In a process of its own: a driver that crashes costs one answer, not the server.
        return TargetModel(runnable, arguments.device, own_process=True, say=on_standard_error)

    turns = Turns(open_model, waiting=arguments.waiting)
    try:
        with ModelServer(turns, host=arguments.host, port=arguments.port, token=token) as server:
            if not server.is_local:
                print(
                    "tapml: warning: the connection is not encrypted, so the token can be read on "
                    "its way: put a proxy with TLS in front, or use a tunnel such as `ssh -L`",
                    file=sys.stderr,
                )
            print(f"serving {turns.name} at {server.url}v1 (Ctrl-C ends it)", flush=True)
            try:
                server.serve_forever(poll_interval=0.1)
            except KeyboardInterrupt:
                print("\nended")
    finally:
        turns.close()
    return 0
