"""WebGPU: compiling for it, a launch beside the bare wgpu library, and a browser as a device.

The browser is headless Chromium on the page of a separate tracker; bytes, operator tests and decode
steps go over the tracker's relay. A decode step's messages are counted as they leave this process.
"""

from __future__ import annotations

import gzip
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import structs

from scripts.bench_runtime import take_turns
from scripts.demo_compiling import DemoCompiling
from tapml.devices.browser_process import BrowserProcess, find_browser
from tapml.devices.reach import open_device
from tapml.package.in_process import open_in_process
from tapml_rpc.client import RemoteTensor, Session
from tapml_rpc.tracker.web_page import FOLDER, page_files
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import EntryCall, Library
from tapml_targets.ranking import rank_devices
from tapml_targets.target import Target
from tests.rpc.tracker.trackers import TrackerProcess
from tests.targets.libraries import library as small_library

SECONDS: Final = 5.0
LAUNCHES: Final = 128
MOVED_BYTES: Final = 64 << 20
NAME: Final = "bench"


def measure() -> list[dict[str, Any]]:
    """Measure all rows."""
    devices = [each.description for each in rank_devices("webgpu") if not each.problem]
    rows = [_script_size()]
    rows += _compiling(devices[0])
    for device in devices:
        rows += _launches(device)
    with ExitStack() as stack:
        rows += _browser(stack.enter_context(_browser_session()))
    return rows


def _row(
    name: str, value: float, unit: str, bar: float | None = None, *, least: bool = False
) -> dict[str, Any]:
    row = {"part": "webgpu", "name": name, "measured": round(value, 3), "unit": unit}
    if bar is not None:
        row["bar"] = f"at {'least' if least else 'most'} {bar:g}"
        row["met"] = value >= bar if least else value <= bar
    return row


def _script_size() -> dict[str, Any]:
    files = page_files(FOLDER).items()
    scripts = [gzip.compress(script) for name, script in files if name.endswith(".js")]
    return _row("the page's scripts, gzip", sum(map(len, scripts)) / 1e3, "KB", 100)


def _compiling(device: DeviceDescription) -> Iterator[dict[str, Any]]:
    """Cold compilations, each in a new process, with and without TVM loaded before."""
    spec = f"{device.platform}:{device.index}"
    with tempfile.TemporaryDirectory() as folder:
        demo = DemoCompiling(Path(folder))
        for begin, what in (("bare", "TVM's import included"), ("loaded", "TVM loaded before")):
            cold, cached = demo.seconds(spec, begin=begin, turns=3)
            yield _row(f"the demo's operators to WGSL, empty cache, {what}", cold, "s", 5)
        yield _row("the same from the cache", cached, "s", 0.3)


def _launches(device: DeviceDescription) -> Iterator[dict[str, Any]]:
    """A recorded program of many launches, and the same dispatches by wgpu alone."""
    import wgpu

    with open_in_process(device) as session:
        library = session.upload(many_launches("webgpu"))
        source, target = (session.allocate(256) for _ in range(2))
        tensors = [RemoteTensor(each, 0, (64,), "float32") for each in (source, target)]
        bare = _bare(wgpu, device)
        for entry, count in (("many", LAUNCHES), ("add_one", 1)):
            with session.program(entry) as recorded:
                recorded.call(library, entry, tensors)

            def ours(program: Any = recorded) -> None:
                with session.batch() as batch:
                    batch.execute(program)
                    batch.read(target, 4)

            turns: dict[str, Callable[[], None]] = {"ours": ours, "bare": partial(bare, count)}
            seconds = take_turns(turns, SECONDS)
            mine, theirs = (1e6 * seconds[each] / count for each in ("ours", "bare"))
            what = "one launch, waited for" if count == 1 else f"a launch, {count} in a row"
            row = _row(f"{what}, {device.vendor_platform}", mine, "us", round(theirs + 50, 1))
            yield row | {"bare": round(theirs, 1)}


def many_launches(platform: str) -> Library:
    """A Library whose entry ``many`` launches one kernel again and again."""
    library = small_library(platform)
    chain = library.entries["chain"]
    calls = (EntryCall("add_one", ("in", "out")),) * LAUNCHES
    values = tuple(each for each in chain.values if each.name in ("in", "out"))
    entry = structs.replace(chain, name="many", storages=(), values=values, calls=calls)
    return replace(library, entries={"many": entry})


def _bare(wgpu: Any, device: DeviceDescription) -> Callable[[int], None]:
    """Dispatches of one kernel by wgpu: one encoder, one pass, one submission."""
    from tapml_targets.webgpu.discovery import list_adapters
    from tests.targets.webgpu.wgsl import ADD

    gpu = list_adapters()[device.index].request_device_sync()
    usage = wgpu.BufferUsage
    storage = [
        gpu.create_buffer(size=256, usage=usage.STORAGE | usage.COPY_SRC | usage.COPY_DST)
        for _ in range(2)
    ]
    answer = gpu.create_buffer(size=4, usage=usage.MAP_READ | usage.COPY_DST)
    scalars = gpu.create_buffer_with_data(
        data=np.array([64, 0, 0], "<i4").tobytes(), usage=usage.UNIFORM
    )
    module = gpu.create_shader_module(code=ADD)
    pipeline = gpu.create_compute_pipeline(
        layout="auto", compute={"module": module, "entry_point": "add"}
    )
    group = gpu.create_bind_group(
        layout=pipeline.get_bind_group_layout(0),
        entries=[
            {"binding": index, "resource": {"buffer": each, "offset": 0, "size": each.size}}
            for index, each in enumerate((*storage, scalars))
        ],
    )

    def run(count: int) -> None:
        encoder = gpu.create_command_encoder()
        current = encoder.begin_compute_pass()
        for _ in range(count):
            current.set_pipeline(pipeline)
            current.set_bind_group(0, group)
            current.dispatch_workgroups(1, 1, 1)
        current.end()
        # This wgpu's on_submitted_work_done_sync does not work, so wait for a read.
        encoder.copy_buffer_to_buffer(storage[0], 0, answer, 0, 4)
        gpu.queue.submit([encoder.finish()])
        answer.map_sync(wgpu.MapMode.READ)
        answer.unmap()

    return run


@contextmanager
def _browser_session() -> Iterator[Session]:
    with TrackerProcess("tcp://127.0.0.1:0", "--websocket", "ws://127.0.0.1:0") as tracker:
        page = tracker.websocket.replace("ws", "http", 1)
        former = os.environ.get("TAPML_TRACKER")
        os.environ["TAPML_TRACKER"] = tracker.address
        try:
            with (
                BrowserProcess(f"{page}/#name={NAME}", find_browser("chromium")),
                # It waits until the page has registered.
                open_device(f"tracker:{NAME}") as session,
            ):
                yield session
        finally:
            os.environ.pop("TAPML_TRACKER")
            if former is not None:
                os.environ["TAPML_TRACKER"] = former


def _browser(session: Session) -> Iterator[dict[str, Any]]:
    data = np.random.default_rng(20240229).integers(0, 256, MOVED_BYTES, np.uint8)
    buffer = session.allocate(MOVED_BYTES)

    def up() -> None:
        session.write(buffer, data)
        session.fence()

    def down() -> None:
        session.read(buffer)

    seconds = take_turns({"up": up, "down": down}, 4 * SECONDS)
    for way, name in (("up", "to the browser's GPU"), ("down", "back")):
        rate = MOVED_BYTES / seconds[way] / 1e6
        yield _row(f"64 MiB {name}, median", rate, "MB/s", 150, least=True)
    session.free(buffer)
    yield from _operator_test(session)
    yield from _decode(session)


def _operator_test(session: Session) -> Iterator[dict[str, Any]]:
    library = session.upload(small_library("webgpu"))
    a = np.random.default_rng(7).random(512, np.float32)

    def test() -> None:
        with session.batch() as batch:
            buffers = [batch.allocate(a.nbytes) for _ in range(2)]
            batch.write(buffers[0], a)
            tensors = [RemoteTensor(each, 0, a.shape, "float32") for each in buffers]
            batch.call(library, "add_one", tensors)
            output = batch.read(buffers[1])
            for each in buffers:
                batch.free(each)
        if not np.array_equal(np.frombuffer(output.result(), np.float32), a + np.float32(1)):
            raise RuntimeError("the browser's sum is wrong")

    seconds = take_turns({"test": test}, SECONDS)["test"]
    yield _row("an operator test, 2 KB of inputs", seconds * 1e3, "ms", 5)


def _decode(session: Session) -> Iterator[dict[str, Any]]:
    from scripts.carved_model import compile_all, import_shipped
    from tapml.compiler.compiler import Compiler
    from tapml.compiler.link import link_entries
    from tapml.execute.plan_runner import PlanRunner

    model, imported = import_shipped()
    with Compiler() as compiler:
        target = Target("webgpu", limits=session.device.limits)
        libraries = compile_all(compiler, imported.plan.operators.values(), target)
        linked = link_entries(imported.plan, libraries)
    with PlanRunner(imported.plan, imported.weights, linked, session) as runner:
        for turn in range(3):
            runner.run("decode", model.prepare_decode(5, turn))
        sent = _count_messages(session)
        times = []
        for turn in range(3, 13):
            began = time.perf_counter()
            runner.run("decode", model.prepare_decode(5, turn))
            times.append(time.perf_counter() - began)
    yield _row("messages of a decode step, there", sent[0] / len(times), "", 1)
    yield _row("a decode step", statistics.median(times) * 1e3, "ms")


def _count_messages(session: Session) -> list[int]:
    """Count the messages that leave for the device from now on."""
    link, count = session._link, [0]
    send = link.send

    def counted(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        return send(*arguments, **options)

    link.send = counted  # type: ignore[method-assign]
    return count
