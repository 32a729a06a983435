"""``tapml bundle``: one archive per failing operator, which can be replayed anywhere."""

from __future__ import annotations

import argparse
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tapml_targets.errors import EXIT_MISMATCH, InputError, MismatchError, SetupError
from tapml_targets.installed import install_hint
from tapml_targets.platforms import DEFAULT_PLATFORM

_EPILOG: Final = """\
examples:
  tapml bundle my-session/repro/softmax                    writes softmax.tapml.zip
  tapml bundle my-session -o bundles                       one for each operator that failed
  tapml bundle my-suite --operator '*softmax*'             replays its tests and takes the worst
  tapml bundle my-suite --test prefill/layers.0.self_attn/softmax@p0.s0 -o softmax.tapml.zip
  tapml bundle my-session/repro/softmax --synthetic        no prompts, weights or activations
  tapml replay softmax.tapml.zip                           anywhere, with the base install

A bundle holds kernels, launch plan, inputs, outputs, device, versions and policy.
--synthetic replaces the model's numbers by random ones that fail in the same way on the device. It
needs the toolkit, as a suite does; the other forms need the base install only.
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "bundle",
        help="write a failing test as one archive",
        description="Write kernel, launch plan, inputs and expected outputs of a failing test as "
        "one archive.",
        epilog=_EPILOG,
    )
    parser.add_argument("source", type=Path, help="a repro folder, a session, a suite or a bundle")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="the archive, or the folder it goes to"
    )
    parser.add_argument(
        "--operator",
        action="append",
        default=[],
        metavar="PATTERN",
        help="operators of a session or a suite; may be given several times",
    )
    parser.add_argument("--test", metavar="ID", help="this test of a suite, even if it passes")
    parser.add_argument(
        "--device",
        metavar="NAME",
        help=f"{DEFAULT_PLATFORM}, {DEFAULT_PLATFORM}:1 (default: the one it failed on)",
    )
    parser.add_argument(
        "--synthetic",
        action="store_true",
        help="replace the model's numbers by random ones that fail in the same way",
    )
    parser.add_argument(
        "--allow-passing",
        action="store_true",
        help="with --synthetic: write it even if no random numbers fail",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write bundles; 1 if no synthetic inputs fail, else 0."""
    from tapml.bundle.bundle import EXTENSION, write_bundle
    from tapml.bundle.gather import gather
    from tapml.repro.folder import read_repro

    with tempfile.TemporaryDirectory(prefix="tapml-bundle-") as temporary:
        folders = gather(
            arguments.source,
            Path(temporary),
            operators=tuple(arguments.operator),
            test=arguments.test,
            device=arguments.device,
        )
        archives = _archives(arguments.out, [folder.name for folder in folders], EXTENSION)
        refused = 0
        for folder, archive in zip(folders, archives, strict=True):
            try:
                chosen = _synthetic(arguments, folder, Path(temporary))
            except MismatchError as error:
                refused += 1
                print(f"{folder.name}: {error}")
                continue
            written = write_bundle(archive, chosen, synthetic=arguments.synthetic)
            passes = read_repro(chosen).status == "pass"
            note = "  of a test that passes" if passes else ""
            print(f"{written}  {written.stat().st_size / 1e6:.2f} MB{note}")
    return EXIT_MISMATCH if refused else 0


def _archives(out: Path | None, names: list[str], extension: str) -> list[Path]:
    # A path without suffix is a folder, also for a single failure.
    if out is not None and out.suffix and len(names) == 1 and not out.is_dir():
        if out.suffix != ".zip":
            raise InputError(f"{out}: a bundle is called <name>{extension}")
        return [out]
    folder = out or Path()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: {len(names)} bundles need a folder (-o)")
    return [folder / f"{name}{extension}" for name in names]


def _synthetic(arguments: argparse.Namespace, folder: Path, scratch: Path) -> Path:
    if not arguments.synthetic:
        return folder
    if find_spec("tvm") is None:
        raise SetupError(
            "--synthetic computes expected outputs, which needs the toolkit: "
            f"{install_hint('host', DEFAULT_PLATFORM)}; a bundle without --synthetic does not need "
            "it"
        )
    from tapml.bundle.synthetic import write_synthetic

    chosen, lines = write_synthetic(
        folder,
        scratch / "synthetic" / folder.name,
        device=arguments.device,
        allow_passing=arguments.allow_passing,
    )
    print(f"{folder.name}: " + "\n  ".join(lines))
    return chosen
