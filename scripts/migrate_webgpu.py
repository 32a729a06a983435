"""Moves a whole model to WebGPU, in a browser or on a driver of this machine, with one command.

python3 scripts/migrate_webgpu.py                                   the demo model, Chromium
python3 scripts/migrate_webgpu.py --model other --device webgpu:1   another Llama, a driver
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

# The project's root instead of this folder, whose test.py would hide the standard library's.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from scripts.python_version import require_python

require_python()

from scripts import environment
from scripts.started_browser import started_browser

EXTRAS: Final = ("host", "webgpu")
# The kind of a folder that is made here, of those in tests/models/folders.py, and its settings.
# Neither has the shape of the demo model, which is untied, without biases, heads of 32 in pairs.
MADE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "small": ("tied", {"num_hidden_layers": 1}),
    "other": (
        "biases",
        {
            "num_hidden_layers": 3,
            "hidden_size": 90,
            "intermediate_size": 233,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 20,
            "max_position_embeddings": 128,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
}
# Runs the command; `_run` blocks the signal until Python can handle it.
_TAPML: Final = """\
import signal, sys
try:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    from tapml.cli.start import main
    exit_code = main()
except KeyboardInterrupt:
    print("tapml: interrupted", file=sys.stderr)
    exit_code = 130
sys.exit(exit_code)
"""
EXAMPLES: Final = """\
examples:
  python3 scripts/migrate_webgpu.py                          the demo model to headless Chromium
  python3 scripts/migrate_webgpu.py --device firefox --dtype float16
  python3 scripts/migrate_webgpu.py --device webgpu:0 --device webgpu:1 --model other
  python3 scripts/migrate_webgpu.py --model ~/models/my-llama --json > summary.json
  python3 scripts/migrate_webgpu.py --model small --strategy bisect --tokens "1 2 3 4"

devices:
  chromium, firefox     that browser, started without a window on a tracker's page, and ended
  webgpu:0, webgpu:1    an adapter of this machine, as `tapml devices --platform webgpu` lists them

models:
  demo      the one that ships with tapml
  other     a Llama of 3 layers with random weights: biases everywhere, three heads to a key, heads
            wider than their share, scaled rotary embeddings, odd sizes
  small     one layer with random weights and tied embeddings, for a quick look
  PATH      a local folder of the Llama family

exit codes, of the worst of the devices: 0 everything moved and the model's end is equal under the
policy; 1 something did not; 2 input or environment; 3 no such device; 4 device lost;
130 interrupted. A browser and a tracker that were started here are ended in every case.
"""


def main(arguments: list[str]) -> int:
    """Migrate to each device; the worst exit code."""
    options = _parse(arguments)
    if not options.here:
        environment.enter(environment.ensure(EXTRAS))
    from tapml_targets.errors import TapmlError

    # The models are tiny: on a busy machine two threads that wait for each other take longer.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="tapml-migrate-") as temporary:
        folder = options.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        # Beside the sessions that are kept: a session is run with its model's folder.
        model = make_model(options.model, folder)
        summaries: list[dict[str, Any]] = []
        for device in options.devices or ["chromium"]:
            try:
                summaries.append(_migrate(model, device, options, folder))
            except TapmlError as error:
                print(f"scripts/migrate_webgpu.py: {error}", file=sys.stderr)
                summaries.append({"device": device, "exit_code": error.exit_code})
            if summaries[-1]["exit_code"] == 130:
                break
    for summary in summaries:
        print(line_of(summary), file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(summaries, indent=1))
    return max(int(summary["exit_code"]) for summary in summaries)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/migrate_webgpu.py",
        description=__doc__.splitlines()[0] if __doc__ else "",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--device", dest="devices", action="append", metavar="DEVICE",
        help="where to; may be given several times (default: chromium)",
    )  # fmt: skip
    parser.add_argument("--model", default="demo", help="demo, other, small or a local folder")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    parser.add_argument(
        "--strategy", choices=("one-by-one", "bisect"), default="one-by-one",
        help="as of `tapml offload`",
    )  # fmt: skip
    parser.add_argument("--tokens", metavar="IDS", help="token ids as the prompt, '1 2 3'")
    parser.add_argument("--new-tokens", type=int, metavar="N", help="decode steps per prompt")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the sessions there")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--here", action="store_true", help="in the Python that runs this")
    return parser.parse_args(arguments)


def make_model(name: str, folder: Path) -> str:
    """The argument of `tapml offload --model`; a model that is made here is in `folder`."""
    if name == "demo":
        return "pydoc-llama"
    if name not in MADE:
        return str(Path(name).expanduser())
    from tests.models.folders import make_folder

    kind, settings = MADE[name]
    return str(make_folder(folder / name, kind, seed=11, tokenizer=True, **settings))


def _migrate(model: str, device: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one migration and summarise it."""
    session = folder / f"{Path(model).name}-{device.replace(':', '-')}-{options.dtype}"
    started = time.monotonic()
    with _device(device) as (spec, variables):
        command = [
            sys.executable, "-P", "-c", _TAPML, "offload", "--model", model,
            "--target", "webgpu", "--device", spec, "--session", str(session), "--restart",
            "--dtype", options.dtype, "--strategy", options.strategy,
        ]  # fmt: skip
        if options.tokens:
            command += ["--tokens", options.tokens]
        if options.new_tokens:
            command += ["--new-tokens", str(options.new_tokens)]
        # With --json, text goes to standard error.
        output = sys.stderr if options.json else None
        exit_code = _run(command, {**os.environ, **variables}, output)
    summary: dict[str, Any] = {
        "model": Path(model).name,
        "device": device,
        "dtype": options.dtype,
        "exit_code": exit_code,
        "seconds": round(time.monotonic() - started, 1),
    }
    if options.out:
        summary["session"] = str(session)
    try:
        report = json.loads((session / "report.json").read_text("utf-8"))
    except (OSError, ValueError):
        return summary
    operators, final = report["operators"], report["final"] or {}
    ratios = [each["worst_ratio"] for each in operators if each["worst_ratio"] is not None]
    return summary | {
        "adapter": report["target"].get("name"),
        "driver": report["target"].get("driver_version"),
        "operators": len(operators),
        "moved": sum(each["state"] == "moved" for each in operators),
        "tests": sum(each["tests"]["total"] for each in operators),
        "worst_ratio": max(ratios, default=None),
        "status": final.get("status"),
        "headline": final.get("headline"),
    }


def _run(command: list[str], variables: dict[str, str], output: Any) -> int:
    """Run a command to its own clean end, even if Ctrl-C is pressed repeatedly.

    Returns its exit code, as a shell gives it.
    """
    # An exception between the end of the child and the note of it would lose its exit code.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, env=variables, cwd=environment.ROOT
        ) as process:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    # Ctrl-C may come while its Python ends.
    return status if status >= 0 else 128 - status


@contextmanager
def _device(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The argument of `--device`, and its environment variables."""
    if name.partition(":")[0] == "webgpu":
        yield name, {}
        return
    with started_browser(name) as started:
        yield started


def line_of(summary: dict[str, Any]) -> str:
    """One-line summary of a migration."""
    if "operators" not in summary:
        return f"{summary['device']}: exit code {summary['exit_code']}"
    worst = summary["worst_ratio"]
    ratio = "none" if worst is None else f"{worst:.3g}"
    return (
        f"{summary['model']} on {summary['device']} ({summary['adapter']}), {summary['dtype']}: "
        f"{summary['moved']} of {summary['operators']} operators moved, {summary['tests']} tests, "
        f"worst ratio {ratio}; {summary['headline']}; "
        f"{summary['seconds']:.0f} s; exit code {summary['exit_code']}"
    )


if __name__ == "__main__":
    environment.run_script(main, "scripts/migrate_webgpu.py")
