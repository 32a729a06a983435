"""Python that has everything imported, and forks for whoever starts a ``tapml``.

To import the compiler, PyTorch and transformers takes several seconds; a session of a tiny model
takes fewer.
"""

from __future__ import annotations

import atexit
import faulthandler
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

# A command that gets it writes where each of its threads is, and goes on.
STACKS_SIGNAL: Final = signal.SIGUSR1
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch",
        "transformers.models.auto.modeling_auto",
        "transformers.models.llama.modeling_llama",
        "tvm",
        "tapml.cli.main",
        "tapml.cli.kernel",
        "tapml.cli.offload",
        "tapml.cli.package",
        "tapml.cli.run",
        "tapml.models.huggingface",
        "tapml.offload.migration",
        "tapml.offload.rooted_reference",
        "tapml.offload.context",
        "tapml_rpc.zeromq.opening",
        "tests.offload.commands",
        "tests.offload.forked",
        "tests.offload.frozen",
    ]
)


TAPML: Final = "tapml.cli.main:main"


def be_tapml(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    output: int,
    errors: int,
    entry: str = TAPML,
) -> None:
    """Be the ``tapml`` command, in a process that was forked for it; ends the process.

    Parameters
    ----------
    environment
        What it has instead of the server's, which is as old as the server.
    output
        Becomes its standard output.
    errors
        Becomes its standard error.
    entry
        A ``module:function`` that takes the arguments and returns the exit code.
    """
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    faulthandler.register(STACKS_SIGNAL, file=2)
    module, _, name = entry.partition(":")
    main = getattr(import_module(module), name)
    try:
        exit_code = main(list(arguments))
    finally:
        # A process of multiprocessing leaves them out.
        atexit._run_exitfuncs()
    sys.exit(exit_code)
