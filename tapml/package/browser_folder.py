"""A package for a browser: a folder that any web server hands out, and nothing behind it.

Beside the page and its scripts (built from ``web/``) it holds the Library as it is, the weights as
one safetensors file cut into parts that every host takes, and ``model.json``, which names all of
them with size and SHA-256. ``web/src/runner/manifest.ts`` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from tapml.durable.files import recover_folder
from tapml.models.longest_match import LongestMatch
from tapml.models.tensor_file import stream_tensors, tensors_header
from tapml.models.text import Codec
from tapml.models.tokenizer_json import JsonTokenizer
from tapml.package.codecs import open_codec
from tapml.package.files import is_package
from tapml.package.manifest import LIBRARY, README, TOKENIZER, WEIGHTS
from tapml.package.sample_lines import sample_lines
from tapml.package.shipped import Shipped, of_package, of_session, open_passed
from tapml.package.texts import browser_readme
from tapml.package.writer import HashingSink, PackageWriter, new_package
from tapml.plan.graph_plan import GraphPlan
from tapml.workloads import workload_of
from tapml_rpc.tracker.web_page import page_files
from tapml_targets import library_format
from tapml_targets.errors import InputError
from tapml_targets.platforms import browser_platform

FORMAT: Final = "tapml browser model"
VERSION: Final = 1
PLAN_VERSION: Final = 1
MANIFEST: Final = "model.json"
LINES: Final = "tokenizer_lines.json"
# Below what the strictest of the common hosts take as one file, and held in memory whole.
PART_BYTES: Final = 16 << 20
PAGE: Final = Path(__file__).parent / "browser_page"
_SPARE_BYTES: Final = 1 << 20
_LARGEST_MANIFEST: Final = 16 << 20
_MOST_ADDED: Final = 1024


@dataclass(frozen=True)
class MadeBrowserFolder:
    """What was written: the folder, its bytes, parts of weights, and what it ships.

    `recovered` is a sentence where a killed process had left something there.
    """

    path: Path
    nbytes: int
    parts: int
    shipped: Shipped
    recovered: str = ""


def make_browser_folder(
    source: Path,
    out: Path | None = None,
    *,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> MadeBrowserFolder:
    """Write a folder that generates text in a browser, served by any static web server.

    Parameters
    ----------
    source
        A session that has ended with every operator on a WebGPU device, or a package of one.
    out
        Where; ``<source>-browser`` beside it if None.
    force
        Whether such a folder that is there is replaced.
    progress
        Called with the bytes of weights written so far, and all of them.

    Raises
    ------
    InputError
        If there is nothing to ship, its kernels are not WebGPU's, or something is in the way.
    SetupError
        If it cannot be written: then nothing of it is there, and what was there stays.
    """
    path = out or _default_place(source)
    recovered = recover_folder(path)
    _check_place(path, force=force)
    shipped = of_package(source) if is_package(source) else of_session(open_passed(source))
    made = write_browser_folder(shipped, path, progress=progress)
    return replace(made, recovered=recovered)


def write_browser_folder(
    shipped: Shipped, path: Path, *, progress: Callable[[int, int], None] | None = None
) -> MadeBrowserFolder:
    """Write the folder of a model that is at hand, where nothing is in the way.

    Raises
    ------
    InputError
        If its kernels are not WebGPU's.
    SetupError
        If it cannot be written: then nothing of it is there.
    """
    target = shipped.library.target
    platform = browser_platform()
    if target != platform:
        raise InputError(
            f"the kernels of {shipped.model.name} are for {target}, and a browser runs "
            f"{platform}: move the model there first (`tapml offload --target {platform}`)"
        )
    if not workload_of(shipped.model).generates:
        raise InputError(
            f"{shipped.model.name} generates no text, and the page for a browser does only that: "
            "make a package without --browser"
        )
    contents = _contents(shipped)
    total = sum(each.nbytes for each in shipped.weights.values())
    header = tensors_header(shipped.weights, shipped.dtypes)
    nbytes = sum(map(len, contents.values())) + len(header) + total
    pages = page_files(PAGE)
    with new_package(path, archive=False, nbytes=nbytes + _SPARE_BYTES) as package:
        for name, content in contents.items():
            package.add(name, content)
        with _weight_parts(package) as sink:
            stream_tensors(
                sink,
                shipped.weights,
                shipped.dtypes,
                progress=None if progress is None else lambda done: progress(done, total),
            )
        manifest = _manifest(shipped, package, sink.names)
        for name, content in pages.items():
            package.add(name, content)
        package.add(README, browser_readme(shipped).encode())
        # Last: what has a manifest is whole.
        package.add(MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False).encode())
    written = sum(each.bytes for each in package.files.values())
    return MadeBrowserFolder(path, written, len(sink.names), shipped)


class _Parts:
    """Takes the bytes of one file and writes them as several."""

    def __init__(self, package: PackageWriter, stack: ExitStack) -> None:
        self.names: list[str] = []
        self._package = package
        self._stack = stack
        self._sink: HashingSink | None = None
        self._room = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`."""
        view = memoryview(data).cast("B")
        while view.nbytes:
            if self._sink is None or self._room == 0:
                self._stack.close()
                self.names.append(f"{WEIGHTS}.{len(self.names):04}")
                stream = self._package.stream(self.names[-1], PART_BYTES)
                self._sink = self._stack.enter_context(stream)
                self._room = PART_BYTES
            piece = view[: self._room]
            self._sink.write(piece)
            self._room -= piece.nbytes
            view = view[piece.nbytes :]


@contextmanager
def _weight_parts(package: PackageWriter) -> Iterator[_Parts]:
    with ExitStack() as stack:
        yield _Parts(package, stack)


def _contents(shipped: Shipped) -> dict[str, bytes]:
    contents = {LIBRARY: library_format.pack(shipped.library), **shipped.licences}
    if shipped.tokenizer is not None and shipped.note.reader != "none":
        codec = open_codec(shipped.note, shipped.tokenizer)
        if isinstance(codec, LongestMatch):
            contents[TOKENIZER] = codec.to_json_text().encode()
        else:
            contents[TOKENIZER] = shipped.tokenizer
        contents[LINES] = _compared_lines(codec)
    return contents


def _compared_lines(codec: Codec) -> bytes:
    """What the page's tokenizer has to give before it is used: lines, their tokens, their text."""
    # A library may know an added token and still not how it takes the space or the word beside it.
    known = codec.added_tokens() if isinstance(codec, JsonTokenizer) else ()
    added = [f"a{each}b {each} c" for each in known[:_MOST_ADDED]]
    lines = [(x, ids := codec.encode(x), codec.decode(ids)) for x in (*sample_lines(), *added)]
    return json.dumps(lines, ensure_ascii=False).encode()


def _manifest(shipped: Shipped, package: PackageWriter, parts: list[str]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": shipped.model.to_json(),
        "plan": _plan(shipped.plan),
        "device": asdict(shipped.device),
        "verdict": dict(shipped.verdict),
        "tokenizer": asdict(shipped.note),
        "versions": dict(shipped.versions),
        "weights": parts,
        "files": {name: asdict(each) for name, each in sorted(package.files.items())},
    }


def _plan(plan: GraphPlan) -> dict[str, Any]:
    """What a run needs of the plan beside the Library: state, and how long inputs may be."""
    return {
        "version": PLAN_VERSION,
        "state": {
            name: {"dtype": each.dtype, "shape": list(each.shape)}
            for name, each in plan.state.items()
        },
        "entries": {
            name: {
                "outputs": list(entry.outputs),
                "bounds": {each.symbol: [each.lower, each.upper] for each in entry.bounds},
            }
            for name, entry in plan.entries.items()
        },
    }


def _is_browser_folder(path: Path) -> bool:
    """Whether it was made here: others call a file ``model.json`` as well."""
    try:
        if (path / MANIFEST).stat().st_size > _LARGEST_MANIFEST:
            return False
        manifest = json.loads((path / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def _default_place(source: Path) -> Path:
    named = source if source.name not in ("", "..") else source.resolve()
    name = named.stem if named.suffix == ".zip" else named.name
    return named.with_name(f"{name.removesuffix('-package')}-browser")


def _check_place(path: Path, *, force: bool) -> None:
    """Refuse a place where something else would be lost."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    ours = path.is_dir() and _is_browser_folder(path)
    if not (force and ours):
        remedy = "--force replaces it" if ours else "choose another place (--out)"
        raise InputError(f"{path} exists already: {remedy}")
