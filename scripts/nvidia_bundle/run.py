"""The half that runs on the machine with the GPU: every part in a process with a deadline."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from scripts.nvidia_bundle import machine
from scripts.nvidia_bundle.rows import (
    NO_DEVICE,
    RESULTS,
    TABLE,
    Row,
    Status,
    exit_code,
    one_line,
    table,
    write_results,
)
from scripts.nvidia_bundle.unpacking import BundleError, installed, read_manifest, unpacked

EPILOG: Final = """\
examples:
  python3 BUNDLE/run.py --out results                     everything, in 9 minutes at most
  python3 BUNDLE/run.py --out results --only cuda --only torch
  python3 BUNDLE/run.py --out results --minutes 4 --torch-python /opt/torch/bin/python3
  python3 BUNDLE/run.py --out tried --any-device          without a GPU: the same on what is here

It needs Python and NVIDIA's driver, and no network. What is missing is a row that says `skip` and
why. Results are written after each part: results.json, and table.md for docs/benchmarks.md
(`python3 scripts/nvidia_machine.py table results/results.json`).

exit codes: 0 every part that could run is right; 1 a part failed; 2 bad arguments or bundle;
3 no part found a device; 130 Ctrl-C, with what was done until then
"""
PARTS: Final = ("compile", "conformance", "package", "carve", "suite", "torch")
_ROUNDS: Final = 3
_LISTING_SECONDS: Final = 90.0
_ENDING_SECONDS: Final = 5.0
_INSTALL_SECONDS: Final = 120.0
# At most this long, and never longer than what is left of --minutes.
_SECONDS: Final = {
    "compile": 90.0, "conformance": 120.0, "package": 90.0, "carve": 120.0, "suite": 150.0,
    "torch": 120.0,
}  # fmt: skip
_HERE: Final = Path(__file__).resolve().parent
# A count of pytest's results in JUnit's format.
_COUNTS: Final = ("tests", "failures", "errors", "skipped")


@dataclass(frozen=True)
class Ended:
    """A process that is over; `timed_out` says that its deadline ended it."""

    code: int
    out: str
    err: str
    timed_out: bool = False


@dataclass
class Bench:
    """One run of the parts.

    Attributes
    ----------
    carried
        The unpacked archive.
    manifest
        What the bundle says of itself.
    out
        The folder of results.
    variables
        The environment of the parts that use tapml.
    ends
        When it has to be over, by the monotonic clock.
    wanted
        Parts and platforms; empty for all.
    any_device
        Whether a device that is no NVIDIA GPU will do.
    torch_python
        The interpreter that has PyTorch.
    """

    carried: Path
    manifest: Mapping[str, Any]
    out: Path
    variables: Mapping[str, str]
    ends: float
    wanted: frozenset[str]
    any_device: bool
    torch_python: str
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Keep, print and write a row."""
        self.rows.append(row)
        print(row.text(), flush=True)
        write_results(self.out, self.facts, self.rows)

    def run(self) -> None:
        """All parts of all platforms, those that say most first."""
        platforms = [str(each) for each in self.manifest["platforms"]]
        for platform in platforms:
            if self._asked(platform):
                self.add(self._device(platform))
        for platform in platforms:
            for part in PARTS:
                if part == "torch" or not (self._asked(platform) and self._asked(part)):
                    continue
                if part in self.manifest["parts"].get(platform, ()):
                    self.add(self._part(part, platform))
            # After the first platform's, to have both speeds should time run out.
            if platform == platforms[0] and self._asked("torch"):
                self.add(self._torch())

    def _asked(self, name: str) -> bool:
        """Whether a part or a platform is wanted: naming some of one kind leaves out its others."""
        kind = PARTS if name in PARTS else tuple(self.manifest["platforms"])
        named = self.wanted.intersection(kind)
        return not named or name in named

    def _device(self, platform: str) -> Row:
        began = time.monotonic()
        ended = self._tapml(
            ("devices", "--platform", platform, "--json"), self._left(_LISTING_SECONDS)
        )
        seconds = time.monotonic() - began
        try:
            listed = json.loads(ended.out)
        except ValueError:
            line = one_line(f"the devices cannot be listed: {_why(ended)}")
            # A package that is absent is no fault of a device.
            status: Status = "skip" if "ModuleNotFoundError" in line else "fail"
            return Row("device", platform, status, line, seconds)
        chosen = self._chosen(listed["devices"])
        if chosen is not None:
            self.devices[platform] = chosen["spec"]
            self.facts.setdefault("gpu", chosen["name"])
            self.facts.setdefault("driver", chosen["driver_version"])
            if chosen["limits"].get("architecture"):
                self.facts["architecture"] = chosen["limits"]["architecture"]
            line = f"{chosen['spec']}: {chosen['name']} ({chosen['driver_version']})"
            return Row("device", platform, "pass", one_line(line), seconds)
        return Row("device", platform, "skip", one_line(_no_device(listed)), seconds)

    def _chosen(self, listed: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        for each in listed:
            if each["problem"] or each["device_type"] == "checker":
                continue
            if self.any_device or is_nvidia_gpu(each):
                return each
        return None

    def _part(self, part: str, platform: str) -> Row:
        began = time.monotonic()
        seconds = self._left(_SECONDS[part])
        device = self.devices.get(platform)
        if device is None and part != "compile":
            return Row(part, platform, "skip", NO_DEVICE)
        if seconds < 1:
            return Row(part, platform, "skip", "no time is left of --minutes")
        match part:
            case "conformance":
                ended = self._tapml(
                    ("devices", "--test", "--device", str(device), "--json"), seconds
                )
                row = self._cases(platform, ended)
            case "suite":
                row = self._suite(platform, str(device), seconds)
            case _:
                ended = self._child(part, self._arguments(part, platform, device), seconds)
                row = _told(part, platform, ended, seconds)
        return replace(row, seconds=round(time.monotonic() - began, 1))

    def _arguments(self, part: str, platform: str, device: str | None) -> tuple[str, ...]:
        package = str(self.carried / "packages" / f"{platform}.zip")
        match part:
            case "compile":
                listed = str(self.facts.get("architecture") or self.manifest["architecture"])
                return package, listed
            case "package":
                expected = str(self.carried / "expected.json")
                # A simulated device takes its time.
                return package, str(device), expected, str(1 if self.any_device else _ROUNDS)
            case _:
                carved = str(self.out / f"carved-{platform}")
                return str(self.carried / "carve"), package, str(device), carved

    def _cases(self, platform: str, ended: Ended) -> Row:
        try:
            told = json.loads(ended.out)
            cases = next(iter(told["devices"].values()), ())
            problem = "; ".join(told["problems"].values())
        except (KeyError, TypeError, ValueError):
            return Row("conformance", platform, "fail", one_line(_why(ended)))
        if not cases:
            return Row("conformance", platform, "fail", one_line(problem or _why(ended)))
        failed = [case for case in cases if case["status"] == "fail"]
        passed = sum(case["status"] == "pass" for case in cases)
        left = [case["case"] for case in cases if case["status"] == "not run"]
        figures = {"passed": passed, "of": len(cases), "not_run": left}
        line = f"{passed} of {len(cases)} cases pass"
        if left:
            line += f", not run: {', '.join(left)}"
        if failed:
            line = f"{failed[0]['case']}: {failed[0]['reason']}; {line}"
        return Row(
            "conformance", platform, "fail" if failed else "pass", one_line(line), 0.0, figures
        )

    def _suite(self, platform: str, device: str, seconds: float) -> Row:
        report = self.out / f"suite-{platform}.xml"
        report.unlink(missing_ok=True)
        ended = self._python(
            (
                "-m", "pytest", "-q", "-p", "tapml.pytest_plugin", "-p", "no:cacheprovider",
                "--tb=line", "--tapml-device", device, "--junitxml", str(report),
                str(self.carried / "exported"),
            ),
            seconds,
        )  # fmt: skip
        try:
            # Written by our own process.
            root = ElementTree.parse(report).getroot()  # noqa: S314
            found = next(root.iter("testsuite"))
            tests, failures, errors, skipped = (int(found.get(each, 0)) for each in _COUNTS)
        except (OSError, ElementTree.ParseError, StopIteration, ValueError):
            return Row("suite", platform, "fail", one_line(_why(ended)))
        passed = tests - failures - errors - skipped
        line = f"{passed} of {tests} tests pass"
        status: Status = "pass" if passed and ended.code == 0 else "fail"
        if skipped:
            line += f", {skipped} not run"
        first = next((each for each in found.iter("failure")), None)
        if first is not None:
            line = f"{first.get('message', '')}; {line}"
        return Row("suite", platform, status, one_line(line), 0.0, {"passed": passed, "of": tests})

    def _torch(self) -> Row:
        began = time.monotonic()
        seconds = self._left(_SECONDS["torch"])
        if seconds < 1:
            return Row("torch", "", "skip", "no time is left of --minutes")
        expected = self.carried / "expected.json"
        wanted = json.loads(expected.read_text("utf-8"))
        device = "cpu" if self.any_device else "cuda"
        arguments = (
            str(self.carried / "model"), device, " ".join(map(str, wanted["prompt"])),
            str(len(wanted["tokens"])), str(_ROUNDS), str(expected),
        )  # fmt: skip
        # With the machine's own packages, not the carried ones.
        asked = [self.torch_python, "-P", str(_HERE / "eager.py"), *arguments]
        row = _told("torch", "", ended_process(asked, os.environ, seconds), seconds)
        if row.figures:
            self.facts["torch"] = row.figures["torch"]
        return replace(row, seconds=round(time.monotonic() - began, 1))

    def _child(self, name: str, arguments: Sequence[str], seconds: float) -> Ended:
        return self._python(("-P", str(_HERE / f"{name}.py"), *arguments), seconds)

    def _tapml(self, arguments: Sequence[str], seconds: float) -> Ended:
        return self._python(("-m", "tapml.cli.main", *arguments), seconds)

    def _python(self, arguments: Sequence[str], seconds: float) -> Ended:
        return ended_process([sys.executable, *arguments], self.variables, seconds)

    def _left(self, most: float) -> float:
        return min(most, self.ends - time.monotonic())


def is_nvidia_gpu(listed: Mapping[str, Any]) -> bool:
    """Whether a row of `tapml devices --json` is a GPU by NVIDIA's driver."""
    told = f"{listed['name']} {listed['vendor_platform']} {listed['driver_version']}"
    return "nvidia" in told.lower() and listed["device_type"] not in ("simulated", "cpu")


def _no_device(listed: Mapping[str, Any]) -> str:
    """Why no listed device will do."""
    rows = listed["devices"]
    problems = [f"{each['spec']}: {each['problem']}" for each in rows if each["problem"]]
    others = [f"{each['spec']} {each['name']}" for each in rows if not each["problem"]]
    told = [*map(str, listed.get("problems", {}).values()), *problems]
    if others:
        told.insert(0, f"no NVIDIA GPU among {', '.join(others)}")
    return "; ".join(told) or "no device"


def _told(part: str, platform: str, ended: Ended, seconds: float) -> Row:
    """The row of a part whose last line is its result."""
    try:
        result = json.loads(ended.out.strip().splitlines()[-1])
        status, line = result["status"], result["line"]
    except (IndexError, KeyError, TypeError, ValueError):
        return Row(part, platform, "fail", one_line(_why(ended)), seconds)
    return Row(part, platform, status, one_line(line), seconds, result.get("figures", {}))


def _why(ended: Ended) -> str:
    """Why a process has no result, in its own last words."""
    told = [line for line in (ended.err or ended.out).strip().splitlines() if line.strip()]
    last = re.sub(r"^tapml: ", "", told[-1]) if told else "no output"
    if ended.timed_out:
        return f"stopped at its deadline; it had said: {last}"
    if ended.code < 0:
        return f"ended by {signal.Signals(-ended.code).name}: {last}"
    return f"exit code {ended.code}: {last}"


def ended_process(asked: Sequence[str], variables: Mapping[str, str], seconds: float) -> Ended:
    """Run a process in a group of its own; at the deadline, or on Ctrl-C, the group is ended."""
    try:
        process = subprocess.Popen(
            asked,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Ended(127, "", f"{asked[0]} does not start: {error.strerror}")
    try:
        out, err = process.communicate(timeout=max(seconds, 0.1))
        return Ended(process.returncode, out, err)
    except subprocess.TimeoutExpired:
        out, err = _end(process)
        return Ended(process.returncode, out, err, timed_out=True)
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_ENDING_SECONDS)
    return "", ""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="run.py",
        description="Try tapml on a machine with an NVIDIA GPU, without a network.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=Path("nvidia-results"), metavar="FOLDER",
        help="where results go (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--minutes", type=_minutes, default=9.0, metavar="N",
        help="all of it at most (default: 9); parts that find no time are skipped",
    )  # fmt: skip
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME",
        help=f"a part ({', '.join(PARTS)}) or a platform; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--unpack", type=Path, metavar="FOLDER",
        help="where the bundle is unpacked, and found again: a folder that only you can write "
        "(default: below your cache folder, ~/.cache)",
    )  # fmt: skip
    parser.add_argument(
        "--torch-python", default=sys.executable, metavar="PATH",
        help="the interpreter that has PyTorch and transformers (default: this one)",
    )  # fmt: skip
    parser.add_argument(
        "--any-device", action="store_true",
        help="take each platform's best device, also a simulated one or a processor's; PyTorch "
        "then runs on the processor",
    )  # fmt: skip
    return parser.parse_args(arguments)


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"expected minutes above 0 and up to 600, got {text!r}")
    return value


def main(bundle: Path, arguments: Sequence[str] | None = None) -> int:
    """Run all parts; return the exit code."""
    given = parse(arguments)
    ends = time.monotonic() + 60 * given.minutes
    try:
        bench = _prepared(bundle, given, ends)
    except (BundleError, OSError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("run.py: interrupted", file=sys.stderr)
        return 130
    try:
        bench.run()
    except KeyboardInterrupt:
        print(f"run.py: interrupted; what was done is in {bench.out / RESULTS}", file=sys.stderr)
        return 130
    print(f"\n{table(bench.facts, bench.rows)}")
    print(f"results: {bench.out / RESULTS}, {bench.out / TABLE}")
    return exit_code(bench.rows)


def _prepared(bundle: Path, given: argparse.Namespace, ends: float) -> Bench:
    manifest = read_manifest(bundle)
    known = {*PARTS, *manifest["platforms"]}
    unknown = [name for name in given.only if name not in known]
    if unknown:
        raise BundleError(f"--only {unknown[0]}: there are {', '.join(sorted(known))}")
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    place = given.unpack or _cache() / "tapml-nvidia"
    # Of a link to a folder, the folder itself is looked at.
    carried = unpacked(bundle, manifest, place.resolve())
    site, how = installed(carried, print, min(_INSTALL_SECONDS, ends - time.monotonic()))
    found, notes = machine.environment(carried / "loaders", site, carried / "made")
    facts = machine.facts() | {"packages": how, "made_of": manifest["made_of"], "notes": notes}
    facts["absent"] = _absent(site)
    for line in filter(None, (facts.get("nvidia"), how, *notes, *facts["absent"])):
        print(line, flush=True)
    variables = {
        **os.environ,
        **found,
        "TAPML_CACHE_DIR": str(carried / "cache"),
        # Plug-ins of the machine's own pytest need packages that may not be there.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if site is not None:
        variables["PYTHONPATH"] = with_packages(site)
    return Bench(
        carried=carried,
        manifest=manifest,
        out=out,
        variables=variables,
        ends=ends,
        wanted=frozenset(given.only),
        any_device=given.any_device,
        torch_python=given.torch_python,
        facts=facts,
    )


def _cache() -> Path:
    """The user's own folder, which others cannot make first as they can below /tmp."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named) if Path(named).is_absolute() else Path.home() / ".cache"


def with_packages(site: Path) -> str:
    """The carried packages, then what is named already."""
    before = os.environ.get("PYTHONPATH")
    return f"{site}{os.pathsep}{before}" if before else str(site)


def _absent(site: Path | None) -> list[str]:
    """Lines about modules that neither the bundle nor the machine has."""
    program = (
        "import importlib.util as u, sys; "
        "print(*(n for n in sys.argv[1:] if u.find_spec(n) is None))"
    )
    names = ("numpy", "msgpack", "msgspec", "zmq", "websockets", "rich", "pytest", "cuda",
             "vulkan", "wgpu", "pyopencl", "tapml")  # fmt: skip
    variables = dict(os.environ) | ({} if site is None else {"PYTHONPATH": with_packages(site)})
    told = subprocess.run(
        [sys.executable, "-c", program, *names],
        env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [f"absent: the module {name}" for name in told.stdout.split()]
