"""What a package says to people: ``README.txt``, also of a browser's folder, and ``run.py``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tapml.models.stored import StoredModule
from tapml.package.manifest import Manifest
from tapml.package.shipped import Shipped
from tapml.plan.plan_notes import notes_of
from tapml.workloads import workload_of
from tapml_targets.installed import install_hint
from tapml_targets.platforms import browser_standard

# Run by the person who unpacks the package; tapml itself never runs a file of a package.
RUN_SCRIPT: Final = '''\
"""Runs the package this file lies in: python run.py "The beginning of a text", or x.npy."""

import sys
from pathlib import Path

try:
    from tapml.cli.main import main
except ModuleNotFoundError:
    sys.exit("run.py needs tapml: see README.txt")

package = str(Path(__file__).resolve().parent)
arguments = sys.argv[1:]
if len(arguments) == 1 and not arguments[0].startswith("-"):
    arrays = arguments[0].endswith((".npy", ".npz"))
    arguments = ["--input" if arrays else "--prompt", arguments[0]]
sys.exit(main(["run", package, *arguments]))
'''

_PROMPT: Final = '"The beginning of a text"'

_README: Final = """\
{name}: a model moved to {platform} with tapml.

It needs tapml{extra} and the device's driver; no PyTorch, no compiler:

    {install}

In Python, three lines (PACKAGE is this folder, or the archive it came from):

    import tapml as tml
    model = tml.load_package("PACKAGE")
    print({call})

On the command line:

    tapml run PACKAGE {argument}
    python run.py {argument}

{more}

Validated on {device} ({vendor}, driver {driver}):
    {verdict}

{taken}: {tokenizer}

{notes}\
package.json holds the sizes and a SHA-256 of every file. It is checked when the package is loaded;
`tapml run PACKAGE --verify` reads all of the weights as well, whatever their size.

{licence}
"""


def readme(manifest: Manifest, licences: Iterable[str], notes: Iterable[str] = ()) -> str:
    """The text of a package's ``README.txt``; `notes` are those of its plan."""
    tokens_only = manifest.tokenizer.reader == "none"
    needs_library = manifest.tokenizer.reader == "tokenizers"
    workload = workload_of(manifest.model)
    stream = "model.generate_tokens([1, 2, 3])" if tokens_only else f"model.stream({_PROMPT})"
    call = f"list({stream})" if tokens_only else f"model.generate({_PROMPT})"
    more = f'As it comes: for piece in {stream}: print(piece, end="", flush=True)'
    if not workload.generates:
        call = "model.outputs(case)"
        more = "A case is sentences of token ids: see help(model.outputs)."
        if isinstance(manifest.model, StoredModule):
            more = f"A case is an array, or arrays by name: {manifest.model.signature}."
    return _README.format(
        name=manifest.model.name,
        platform=manifest.device.platform,
        extra=", `tokenizers` for text" if needs_library else "'s base install",
        install=install_hint(*(("run",) if needs_library else ()), manifest.device.platform),
        call=call,
        more=more,
        argument=workload.argument(takes_text=not tokens_only),
        device=manifest.device.name,
        vendor=manifest.device.vendor_platform,
        driver=manifest.device.driver_version,
        verdict=manifest.verdict.get("text", ""),
        taken="Input" if isinstance(manifest.model, StoredModule) else "Text",
        tokenizer=manifest.tokenizer.text,
        notes=_noted(notes),
        licence=_licence(licences),
    )


_BROWSER_README: Final = """\
{name}: a language model that runs in a browser with {standard}, made with tapml.

Put this folder on any web server that hands out files; nothing runs behind it. To try it here:

    python -m http.server 8000        then open http://localhost:8000/

Browsers show {standard} to secure contexts alone: localhost, or https with a certificate they
trust. All addresses in the folder are relative, so it may lie anywhere below a site. Weights come
in parts of at most 16 MiB, which every common host takes; they are one safetensors file, cut:

    cat weights.safetensors.* > weights.safetensors

In a page of your own on the same site:

    import {{ load }} from "./tapml.js";
    const model = await load("./");
    for await (const piece of model.generate({prompt})) console.log(piece);

Validated on {device} ({vendor}, driver {driver}):
    {verdict}

Text: {tokenizer}

{notes}\
model.json holds the sizes and a SHA-256 of every file, which is checked as it is loaded.

{licence}
"""


def browser_readme(shipped: Shipped) -> str:
    """The text of ``README.txt`` in a folder for the browser."""
    tokens_only = shipped.note.reader == "none"
    return _BROWSER_README.format(
        standard=browser_standard(),
        name=shipped.model.name,
        prompt="[1, 2, 3]" if tokens_only else '"The beginning of a text"',
        device=shipped.device.name,
        vendor=shipped.device.vendor_platform,
        driver=shipped.device.driver_version,
        verdict=shipped.verdict.get("text", ""),
        tokenizer=shipped.note.text,
        notes=_noted(notes_of(shipped.plan)),
        licence=_licence(shipped.licences),
    )


def _noted(notes: Iterable[str]) -> str:
    return "".join(f"Note: {each}.\n\n" for each in notes)


def _licence(licences: Iterable[str]) -> str:
    names = ", ".join(licences)
    if not names:
        return "The model's folder held no licence file: ask where the model came from."
    return f"The model's licence, which holds for its weights here: {names}"
