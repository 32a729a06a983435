"""``README.txt`` of a folder for the browser."""

from __future__ import annotations

from typing import Final

from tapml.package.shipped import Shipped

_README: Final = """\
{name}: a language model that runs in a browser with WebGPU, made with tapml.

Put this folder on any web server that hands out files; nothing runs behind it. To try it here:

    python -m http.server 8000        then open http://localhost:8000/

Browsers show WebGPU to secure contexts alone: localhost, or https with a certificate they trust.
All addresses in the folder are relative, so it may lie anywhere below a site. Weights come in parts
of at most 16 MiB, which every common host takes; they are one safetensors file, cut:

    cat weights.safetensors.* > weights.safetensors

In a page of your own on the same site:

    import {{ load }} from "./tapml.js";
    const model = await load("./");
    for await (const piece of model.generate({prompt})) console.log(piece);

Validated on {device} ({vendor}, driver {driver}):
    {verdict}

Tokens: {tokenizer}

model.json holds the sizes and a SHA-256 of every file, which is checked as it is loaded.

{licence}
"""


def browser_readme(shipped: Shipped) -> str:
    """The text of ``README.txt``."""
    licences = ", ".join(shipped.licences)
    tokens_only = shipped.note.reader != "tapml"
    return _README.format(
        name=shipped.decoder.name,
        prompt="[1, 2, 3]" if tokens_only else '"The beginning of a text"',
        device=shipped.device.name,
        vendor=shipped.device.vendor_platform,
        driver=shipped.device.driver_version,
        verdict=shipped.verdict.get("text", ""),
        tokenizer=shipped.note.text,
        licence=(
            f"The model's licence, which holds for its weights here: {licences}"
            if licences
            else "The model's folder held no licence file: ask where the model came from."
        ),
    )
