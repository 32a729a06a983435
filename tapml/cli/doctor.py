"""``tapml doctor``: checks the environment, with a remedy for each problem."""

from __future__ import annotations

import argparse
import json
import os
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

_TRACKER_SECONDS: Final = 3.0
_TRACKER: Final = "TAPML_TRACKER"
HOST_PACKAGES: Final = (
    "apache-tvm",
    "apache-tvm-ffi",
    "torch",
    "transformers",
    "safetensors",
    "tokenizers",
    "ml_dtypes",
)
# Other releases of tvm-ffi do not load with this TVM, or crash in save_json.
TVM_VERSION: Final = "0.27.0.post1"
TVM_FFI_VERSIONS: Final = ("0.1.14.post1", "0.1.14.post0")
OLDEST_PYTHON: Final = (3, 11)
_LITTLE_DISK_BYTES: Final = 1 << 30
_LOOPBACK_SECONDS: Final = 3.0
_TINY_PROGRAM: Final = "int tapml_doctor(int x) { return x + 1; }\n"


@dataclass(frozen=True)
class Check:
    """One check of a group: ``base``, ``host``, ``rpc`` or a platform.

    ``absent`` is the status of an optional part that is not installed; `remedy` may be empty.
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
            "Check everything tapml needs, with a remedy for what is missing. The base serves a\n"
            "device, the host migrates a model, rpc reaches remote devices: keys, certificates,\n"
            "admitted clients, $TAPML_TRACKER. If parts are named, only they and the base are\n"
            "checked."
        ),
        epilog=(
            "examples:\n"
            "  tapml doctor                 is the base complete? the rest is shown, too\n"
            "  tapml doctor host opencl     can this machine migrate a model to OpenCL?\n"
            "  tapml doctor rpc             are keys, lists and the tracker usable?\n"
            "  tapml doctor --json\n"
            "\nexit codes: 0 the named parts work; 2 something is broken or missing; "
            "3 no device\n"
        ),
    )
    parser.add_argument(
        "wanted",
        nargs="*",
        type=_group,
        metavar="PART",
        help=f"parts that must work, with the base: {', '.join(g for g in GROUPS if g != 'base')}",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check the named parts, or all, and report."""
    wanted = {"base", *arguments.wanted}
    # Skip other platforms: their drivers take seconds and may hang.
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
    """Packages and compiler for importing, compiling and carving."""
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
    """A platform's compiler and devices, each tried with a kernel, and a server for the best."""
    from tapml_targets.driver_discovery import driver_discovery
    from tapml_targets.ranking import device_remedy, rank_devices

    if missing := driver_discovery(platform).missing_compiler():
        yield Check(platform, "compiler", "absent", missing)
    try:
        ranked = rank_devices(platform, refresh=True)
    except TapmlError as error:
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
            "the device is ignored; update or remove its driver" if device.problem else "",
        )
        if not device.problem:
            yield _self_test(platform, device)
    usable = [d for d in ranked if not d.problem and d.description.device_type != "checker"]
    if not usable:
        yield Check(platform, "device", "problem", "no usable device", device_remedy(platform))
        return
    yield _server(platform, usable[0].spec)


def _self_test(platform: str, device: RankedDevice) -> Check:
    """The device's self-test; for a checker only a cached one."""
    name = f"{device.spec} self-test"
    try:
        from tapml_targets.self_test.known import self_test
    except ModuleNotFoundError as error:
        return Check(platform, name, "absent", f"not run: it needs {error.name}")
    remedy = "see docs/devices.md"
    found = self_test(device.description)
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
    """Start a server for the device and copy bytes to it and back."""
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
        return Check(platform, "server", "absent", f"not tried: it needs {error.name}")
    if sound:
        return Check(platform, "server", "ok", f"served {spec} and moved bytes there and back")
    return Check(
        platform, "server", "problem", f"{spec} gave other bytes back", "update its driver"
    )


def _package(group: str, package: str, remedy: str, *, needed: bool) -> Check:
    found = package_version(package)
    if found:
        return Check(group, package, "ok", found)
    return Check(group, package, "problem" if needed else "absent", "not installed", remedy)


def _loopback() -> Check:
    """Send a message between ZeroMQ sockets, as a local server does."""
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
    """Connect over plain TCP, as a WebSocket does."""
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
    """Whether shared objects can be linked, for the cpu target and exported modules."""
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
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(GROUPS)}, got {word!r}")
    return word


def check_rpc() -> Iterator[Check]:
    """Encryption, credentials of the environment, admitted clients, and the tracker."""
    yield _curve()
    yield _certificates()
    yield _credentials()
    yield _clients()
    if os.environ.get(_TRACKER):
        yield _tracker(os.environ[_TRACKER])


def _curve() -> Check:
    try:
        import zmq
    except ImportError:
        return Check("rpc", "CURVE", "absent", "not tried: it needs pyzmq", package_hint("pyzmq"))
    if zmq.has("curve"):
        return Check("rpc", "CURVE", "ok", f"ZeroMQ {zmq.zmq_version()} has it")
    found = f"ZeroMQ {zmq.zmq_version()} was built without it"
    return Check("rpc", "CURVE", "problem", found, "install pyzmq's own wheel: pip install pyzmq")


def _certificates() -> Check:
    """Whether certificates for ``wss://`` can be made here."""
    command = shutil.which("openssl")
    if command:
        return Check("rpc", "certificates", "ok", f"made by {command}")
    return Check(
        "rpc",
        "certificates",
        "problem",
        "nothing here can make one",
        "install the command openssl, or give --certificate to what listens",
    )


def _credentials() -> Check:
    """Secrets and trusted keys in the environment, for devices and a tracker."""
    from tapml_rpc.security.credentials import Credentials
    from tapml_rpc.tracker.request import tracker_credentials

    try:
        # With a tracker the client's key is enough: the lease names the device's.
        device = Credentials.from_environment(lent_key="")
        tracker = tracker_credentials(os.environ.get(_TRACKER, ""))
    except TapmlError as error:
        return Check("rpc", "credentials", "problem", str(error), "look at the TAPML_ variables")
    named = sorted(
        name
        for name in os.environ
        if name.startswith(("TAPML_RPC_", "TAPML_TRACKER_")) and os.environ[name]
    )
    if device is None and tracker is None and not named:
        return Check("rpc", "credentials", "ok", "none set: enough for local devices")
    return Check("rpc", "credentials", "ok", f"sound: {', '.join(named)}")


def _clients() -> Check:
    from tapml_rpc.security.allow_list import AllowList

    listed = AllowList()
    try:
        names = [client.name for client in listed.clients()]
    except TapmlError as error:
        remedy = "repair it: until then no client with a key is admitted"
        return Check("rpc", "clients", "problem", str(error), remedy)
    return Check("rpc", "clients", "ok", f"{listed.path} admits {', '.join(names) or 'no client'}")


def _tracker(address: str) -> Check:
    from tapml.devices.listing import list_devices
    from tapml_rpc.tracker.request import tracker_credentials

    try:
        secret = tracker_credentials(address)
        found = list_devices(address, credentials=secret, timeout=_TRACKER_SECONDS)
    except TapmlError as error:
        return Check("rpc", "tracker", "problem", str(error), f"or unset {_TRACKER}")
    names = ", ".join(device.name for device in found) or "no device"
    return Check("rpc", "tracker", "ok", f"{address} has {names}")


def _platform_checker(platform: str) -> Callable[[], Iterator[Check]]:
    return lambda: check_platform_devices(platform)


def _groups() -> dict[str, Callable[[], Iterator[Check]]]:
    from tapml_targets.platforms import platform_names

    platforms = {platform: _platform_checker(platform) for platform in platform_names()}
    return {"base": check_base, "host": check_host, "rpc": check_rpc, **platforms}


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
        console.print(f"problems: {names}", style="red", highlight=False, soft_wrap=True)
    else:
        console.print("all checked parts work", style="green")
