"""What a package says to people: ``README.txt``, and ``run.py`` that runs it."""

from __future__ import annotations

from typing import Final

from tapml.package.manifest import Manifest
from tapml_targets.installed import install_hint

# Run by whoever unpacks the package; tapml itself never runs a file of a package.
RUN_SCRIPT: Final = '''\
"""Generates text with the package this file lies in: python run.py "The beginning of a text"."""

import sys
from pathlib import Path

try:
    from tapml.cli.main import main
except ModuleNotFoundError:
    sys.exit("run.py needs tapml: see README.txt")

package = str(Path(__file__).resolve().parent)
arguments = sys.argv[1:]
if len(arguments) == 1 and not arguments[0].startswith("-"):
    arguments = ["--prompt", arguments[0]]
sys.exit(main(["run", package, *arguments]))
'''

_PROMPT: Final = '"The beginning of a text"'

_README: Final = """\
{name}: a language model moved to {platform} with tapml.

It needs tapml's base install and the device's driver; no PyTorch, no compiler:

    {install}

In Python, three lines (PACKAGE is this folder, or the archive it came from):

    import tapml as tml
    model = tml.load_package("PACKAGE")
    print({call})

On the command line:

    tapml run PACKAGE {argument}
    python run.py {argument}

As it comes: for piece in {stream}: print(piece, end="", flush=True)

Validated on {device} ({vendor}, driver {driver}):
    {verdict}

Tokens: {tokenizer}

package.json holds the sizes and a SHA-256 of every file. It is checked when the package is loaded;
`tapml run PACKAGE --verify` reads the weights whole as well, whatever their size.

{licence}
"""


def readme(manifest: Manifest, licences: tuple[str, ...]) -> str:
    """The text of ``README.txt``."""
    tokens_only = manifest.tokenizer.reader == "none"
    stream = "model.generate_tokens([1, 2, 3])" if tokens_only else f"model.stream({_PROMPT})"
    licence = (
        f"The model's licence, which holds for its weights here: {', '.join(licences)}"
        if licences
        else "The model's folder held no licence file: ask where the model came from."
    )
    return _README.format(
        name=manifest.model.name,
        platform=manifest.device.platform,
        install=install_hint(manifest.device.platform),
        call=f"list({stream})" if tokens_only else f"model.generate({_PROMPT})",
        stream=stream,
        argument='--tokens "1 2 3"' if tokens_only else f"--prompt {_PROMPT}",
        device=manifest.device.name,
        vendor=manifest.device.vendor_platform,
        driver=manifest.device.driver_version,
        verdict=manifest.verdict.get("text", ""),
        tokenizer=manifest.tokenizer.text,
        licence=licence,
    )
