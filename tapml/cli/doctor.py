"""``tapml doctor``: what this machine has, what it lacks, and the remedy for each problem."""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tapml_targets.cache_folder import cache_folder
from tapml_targets.errors import EXIT_NO_DEVICE, EXIT_USAGE, TapmlError
from tapml_targets.installed import (
    BASE_PACKAGES,
    WITHOUT_PYZMQ,
    install_hint,
    package_hint,
    package_version,
)

if TYPE_CHECKING:
    from tapml_targets.ranking import RankedDevice

HOST_PACKAGES: Final = (
    "apache-tvm",
    "apache-tvm-ffi",
    "torch",
    "transformers",
    "safetensors",
    "tokenizers",
    "ml_dtypes",
)
# Other releases of tvm-ffi do not load with this TVM, or crash the process in save_json.
TVM_VERSION: Final = "0.27.0.post1"
TVM_FFI_VERSIONS: Final = ("0.1.14.post1", "0.1.14.post0")
OLDEST_PYTHON: Final = (3, 11)
_LITTLE_DISK_BYTES: Final = 1 << 30
_LOOPBACK_SECONDS: Final = 3.0
_TINY_PROGRAM: Final = "int tapml_doctor(int x) { return x + 1; }\n"


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    Attributes
    ----------
    group
        ``base``, ``host``, ``rpc`` or a platform.
    name
        What was looked at.
    status
        ``ok``; ``problem``; ``absent`` for what nobody has installed and nobody asked for.
    found
        What was there.
    remedy
        What to do about it; empty where nothing needs doing.
    """

    group: str
    name: str
    status: Literal["ok", "problem", "absent"]
    found: str
    remedy: str = ""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor",
        help="what this machine has and lacks",
        description=(
            "Look at everything tapml needs and say what is missing, with a remedy. The base is\n"
            "what serving a device takes, the host what migrating a model takes, rpc what devices\n"
            "elsewhere take: keys, certificates, who is admitted, $TAPML_TRACKER. Where parts are\n"
            "named, the base and they are looked at and nothing else."
        ),
        epilog=(
            "examples:\n"
            "  tapml doctor                 is the base sound? the rest is shown as well\n"
            "  tapml doctor host opencl     can this machine migrate a model to OpenCL?\n"
            "  tapml doctor rpc             are keys, lists and the tracker as they should be?\n"
            "  tapml doctor --json\n"
            "\nexit codes: 0 what was asked for works; 2 something is broken or missing; "
            "3 no device\n"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "wanted",
        nargs="*",
        type=_group,
        metavar="PART",
        help=f"what has to work besides the base: {', '.join(g for g in GROUPS if g != 'base')}",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look at what was asked for, at everything where nothing was, and report."""
    wanted = {"base", *arguments.wanted}
    # A platform that nobody asked about may have a driver that hangs, and takes seconds anyhow.
    looked_at = wanted if arguments.wanted else GROUPS.keys()
    checks = [check for group in GROUPS if group in looked_at for check in GROUPS[group]()]
    broken = [c for c in checks if c.group in wanted and c.status != "ok"]
    if arguments.json:
        report = {"ok": not broken, "wanted": sorted(wanted), "checks": [asdict(c) for c in checks]}
        print(json.dumps(report, indent=2))
    else:
        _print(checks, broken)
    if not broken:
        return 0
    return EXIT_NO_DEVICE if all(check.name == "device" for check in broken) else EXIT_USAGE


def check_base() -> Iterator[Check]:
    """Python, the packages of the base install, loopback sockets, the disk."""
    found = ".".join(map(str, sys.version_info[:3]))
    sound = sys.version_info[:2] >= OLDEST_PYTHON
    remedy = "" if sound else "use Python 3.11 or newer"
    yield Check("base", "python", "ok" if sound else "problem", f"{found} {sys.executable}", remedy)
    for package in BASE_PACKAGES:
        remedy = package_hint(package)
        remedy += f"; or {WITHOUT_PYZMQ}" if package == "pyzmq" else ""
        yield _package("base", package, remedy, needed=True)
    yield _loopback()
    yield from _disk()


def check_host() -> Iterator[Check]:
    """What importing, compiling and carving take."""
    remedy = install_hint("host")
    needed = any(package_version(package) for package in ("apache-tvm", "torch"))
    for package in HOST_PACKAGES:
        yield _package("host", package, remedy, needed=needed)
    tvm, ffi = package_version("apache-tvm"), package_version("apache-tvm-ffi")
    if tvm and ffi:
        sound = tvm == TVM_VERSION and ffi in TVM_FFI_VERSIONS
        yield Check(
            "host",
            "TVM pair",
            "ok" if sound else "problem",
            f"apache-tvm {tvm} with apache-tvm-ffi {ffi}",
            ""
            if sound
            else "this pair is not known to work: "
            f'pip install "apache-tvm=={TVM_VERSION}" "apache-tvm-ffi=={TVM_FFI_VERSIONS[0]}"',
        )
    yield _compiler(needed)


def check_platform_devices(platform: str) -> Iterator[Check]:
    """A platform's devices, each tried with a kernel, and a server for the best of them."""
    from tapml_targets.ranking import rank_devices

    try:
        ranked = rank_devices(platform, refresh=True)
    except TapmlError as error:
        # The message of a missing package holds the remedy.
        yield Check(platform, "driver", "absent", str(error))
        return
    for device in ranked:
        description = device.description
        yield Check(
            platform,
            device.spec,
            "problem" if device.problem else "ok",
            f"{description.name}, {description.vendor_platform}"
            + (f": {device.problem}" if device.problem else ""),
            "it is left out; update or remove its driver" if device.problem else "",
        )
        if not device.problem:
            yield _self_test(platform, device)
    usable = [d for d in ranked if not d.problem and d.description.device_type != "checker"]
    if not usable:
        yield Check(platform, "device", "problem", "no usable device", _device_remedy(platform))
        return
    yield _server(platform, usable[0].spec)


def _self_test(platform: str, device: RankedDevice) -> Check:
    """What the device does beside computing sums right; a checker only tells what is known."""
    name = f"{device.spec} self-test"
    try:
        from tapml_targets.self_test.known import usual_self_test
    except ModuleNotFoundError as error:
        return Check(platform, name, "absent", f"not run: it computes with {error.name}")
    remedy = "see docs/devices.md for what to do about it"
    found = usual_self_test(device.description)
    if found is None:
        return Check(platform, name, "ok", "not run; `tapml devices --self-test` does")
    lines = [*(fact.meaning for fact in found.grave), *found.problems]
    if lines:
        return Check(platform, name, "problem", "; ".join(lines), remedy)
    return Check(
        platform,
        name,
        "ok",
        ", ".join(found.traits) or f"{len(found.facts)} facts, all as expected",
    )


def _server(platform: str, spec: str) -> Check:
    """Start a server for the device, move some bytes there and back."""
    from tapml_rpc.local import open_local

    data = bytes(range(256))
    try:
        with open_local(spec) as session:
            buffer = session.allocate(len(data))
            session.write(buffer, data)
            sound = bytes(session.read(buffer)) == data
    except TapmlError as error:
        return Check(platform, "server", "problem", str(error), "see the message of the driver")
    except ModuleNotFoundError as error:
        return Check(platform, "server", "absent", f"not tried: it takes {error.name}")
    if sound:
        return Check(platform, "server", "ok", f"served {spec} and moved bytes there and back")
    return Check(
        platform, "server", "problem", f"{spec} gave other bytes back", "update its driver"
    )


def _device_remedy(platform: str) -> str:
    from tapml_targets.platforms import load_driver_module

    remedy = getattr(load_driver_module(platform), "REMEDY", "")
    return str(remedy) or f"install a driver for {platform}"


def _package(group: str, package: str, remedy: str, *, needed: bool) -> Check:
    found = package_version(package)
    if found:
        return Check(group, package, "ok", found)
    return Check(group, package, "problem" if needed else "absent", "not installed", remedy)


def _loopback() -> Check:
    """A message from one socket to another, as a local server would get it."""
    try:
        import zmq
    except ImportError:
        return _plain_loopback()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        server, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        server.bind("tcp://127.0.0.1:*")
        address = server.getsockopt_string(zmq.LAST_ENDPOINT)
        client.connect(address)
        client.send(b"hello")
        if server.poll(3000) and server.recv_multipart()[-1] == b"hello":
            return Check("base", "loopback", "ok", f"ZeroMQ {zmq.zmq_version()} at {address}")
        fault = "a message sent over 127.0.0.1 did not arrive"
    except zmq.ZMQError as error:
        fault = f"cannot use 127.0.0.1: {error}"
    finally:
        context.destroy(linger=0)
    return Check("base", "loopback", "problem", fault, "allow TCP on 127.0.0.1 for this user")


def _plain_loopback() -> Check:
    """The same without ZeroMQ, as a WebSocket would get it."""
    remedy = "allow TCP on 127.0.0.1 for this user"
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
            with socket.create_connection(address, timeout=_LOOPBACK_SECONDS):
                found = f"TCP at {address[0]}:{address[1]}"
    except OSError as error:
        return Check("base", "loopback", "problem", f"cannot use 127.0.0.1: {error}", remedy)
    return Check("base", "loopback", "ok", found)


def _disk() -> Iterator[Check]:
    places: tuple[tuple[str, Callable[[], Path], str], ...] = (
        ("cache folder", cache_folder, "point TAPML_CACHE_DIR at a folder with room"),
        ("temporary folder", lambda: Path(tempfile.gettempdir()), "point TMPDIR at one with room"),
    )
    for name, place, remedy in places:
        try:
            folder = place()
            with tempfile.NamedTemporaryFile(dir=folder) as file:
                file.write(b"tapml")
            free = shutil.disk_usage(folder).free
        except OSError as error:
            yield Check("base", name, "problem", f"cannot be written: {error}", remedy)
            continue
        room = free >= _LITTLE_DISK_BYTES
        found = f"{folder}, {free / 2**30:.1f} GiB free"
        yield Check("base", name, "ok" if room else "problem", found, "" if room else remedy)


def _compiler(needed: bool) -> Check:
    """Whether shared objects can be linked, which the cpu target and exported modules take."""
    remedy = "install a C compiler (Debian: apt install gcc; macOS: xcode-select --install)"
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if found is None:
        status: Literal["problem", "absent"] = "problem" if needed else "absent"
        return Check("host", "C compiler", status, "none of cc, gcc, clang", remedy)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "doctor.c"), Path(folder, "doctor.so")
        source.write_text(_TINY_PROGRAM)
        command = [found, "-shared", "-fPIC", "-o", str(target), str(source)]
        try:
            outcome = subprocess.run(
                command, capture_output=True, text=True, timeout=60, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Check("host", "C compiler", "problem", f"{found}: {error}", remedy)
    if outcome.returncode == 0:
        return Check("host", "C compiler", "ok", found)
    last = (outcome.stderr.strip().splitlines() or ["no message"])[-1]
    return Check("host", "C compiler", "problem", f"{found} fails: {last}", remedy)


def _group(word: str) -> str:
    if word not in GROUPS:
        raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(GROUPS)}")
    return word


def _platform_checker(platform: str) -> Callable[[], Iterator[Check]]:
    return lambda: check_platform_devices(platform)


def _check_rpc() -> Iterator[Check]:
    from tapml.cli.doctor_rpc import check_rpc

    return check_rpc()


def _groups() -> dict[str, Callable[[], Iterator[Check]]]:
    from tapml_targets.platforms import platform_names

    platforms = {platform: _platform_checker(platform) for platform in platform_names()}
    return {"base": check_base, "host": check_host, "rpc": _check_rpc, **platforms}


GROUPS: Final = _groups()


def _print(checks: list[Check], broken: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "problem": "red", "absent": "yellow"}
    console = Console(emoji=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("part", "what", "", "found"):
        table.add_column(title, overflow="fold")
    for check in checks:
        status = Text(check.status, style=colours[check.status])
        found = Text(check.found)
        if check.remedy:
            found.append(f"\n-> {check.remedy}", style="bold")
        table.add_row(check.group, check.name, status, found)
    console.print(table)
    if broken:
        names = ", ".join(f"{check.group}: {check.name}" for check in broken)
        console.print(f"not sound: {names}", style="red", highlight=False, soft_wrap=True)
    else:
        console.print("all that was asked for works", style="green")
