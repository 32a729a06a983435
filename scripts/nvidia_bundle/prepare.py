"""The half that runs here: sessions, packages, an exported suite, wheels, one archive."""

from __future__ import annotations

import json
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from scripts.environment import ROOT, SetupError
from scripts.nvidia_bundle.machine import VULKAN_LOADER
from scripts.nvidia_bundle.rows import one_line
from scripts.nvidia_bundle.unpacking import ARCHIVE, FORMAT, MANIFEST, WHEELS, checksum

PLATFORMS: Final = ("cuda", "vulkan", "webgpu", "opencl")
"""In the order in which they run there."""
MODEL: Final = "pydoc-llama"
# What kernels are compiled for: limits that every GPU of these platforms has. A GPU's own come from
# the architecture.
_LIMITS: Final = {"vulkan": "vulkan-default", "webgpu": "webgpu-default", "opencl": "mali"}
_NEW_TOKENS: Final = 96
_CARVED_TOKENS: Final = 4
# The suite's prefill and its first decode step, of the first prompt.
_STEPS: Final = (0, 1)
_THERE: Final = (
    "__init__.py", "run.py", "rows.py", "machine.py", "unpacking.py", "package.py", "eager.py",
    "compile.py", "carve.py",
)  # fmt: skip
_TAGS: Final = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_24",
                "manylinux_2_17", "manylinux2014", "manylinux_2_12", "manylinux2010",
                "manylinux_2_5", "manylinux1")  # fmt: skip
_START: Final = '''\
"""Runs the parts of this bundle: python3 run.py --help."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent)

if sys.version_info < (3, 11):
    sys.exit("run.py: expected Python 3.11 or newer, got " + sys.version.split()[0])

from scripts.nvidia_bundle.run import main

if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent))
'''
# As large as all that repeats: the weights are in every package, and in the suite.
_DICTIONARY_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Wanted:
    """What a bundle is to hold.

    Attributes
    ----------
    folder
        The bundle.
    work
        Sessions and wheels, found again by the next preparation.
    platforms
        Of `PLATFORMS`.
    architecture
        Of the GPU, ``sm_90``.
    pythons
        Versions that the interpreter there may have, ``3.12``; empty carries no wheels.
    without
        Distributions that are there already.
    """

    folder: Path
    work: Path
    platforms: tuple[str, ...]
    architecture: str
    pythons: tuple[str, ...]
    without: frozenset[str]


def prepare(wanted: Wanted, say: Callable[[str], None]) -> dict[str, Any]:
    """Make a bundle; return its manifest.

    Raises
    ------
    SetupError
        If a platform has no device here, a command fails, something else is at the folder, or a
        distribution that is to be left out is not needed anyway.
    """
    folder = wanted.folder
    if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise SetupError(f"{folder} holds something else than a bundle: name another folder")
    carried = wanted.work / "carried"
    shutil.rmtree(carried, ignore_errors=True)
    (carried / "packages").mkdir(parents=True)
    # First, because a name of --without may be wrong, and what follows takes minutes.
    for python in wanted.pythons:
        say(f"wheels for Python {python}")
        _wheels(wanted, python, carried / WHEELS)
    for number, platform in enumerate(wanted.platforms, 1):
        say(f"moving the demo model to {platform}, {number} of {len(wanted.platforms)}")
        _package(platform, wanted, carried)
    say("the expected tokens, by PyTorch")
    _model(carried / "model")
    _expected(carried)
    say("the suite, with Libraries for each platform")
    _suite(wanted, carried)
    reference = wanted.platforms[0]
    say(f"plan, Libraries and PyTorch's values for carving on {reference}")
    _carve(wanted, reference, carried / "carve")
    _loader(carried / "loaders")
    say("the archive")
    folder.mkdir(parents=True, exist_ok=True)
    there = folder / "scripts" / "nvidia_bundle"
    there.mkdir(parents=True, exist_ok=True)
    (folder / "run.py").write_text(_START, "utf-8")
    (folder / "scripts" / "__init__.py").write_text("", "utf-8")
    for name in _THERE:
        shutil.copyfile(Path(__file__).parent / name, there / name)
    write_archive(carried, folder / ARCHIVE)
    files = [ARCHIVE, "run.py", *(f"scripts/nvidia_bundle/{name}" for name in _THERE)]
    manifest = {
        "format": FORMAT,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "made_of": _version(),
        "architecture": wanted.architecture,
        "platforms": wanted.platforms,
        "pythons": wanted.pythons,
        "parts": {platform: _parts(platform, reference) for platform in wanted.platforms},
        "files": {name: checksum(folder / name) for name in files},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    return manifest


def limits_of(platform: str, architecture: str) -> str:
    """The profile that a platform's kernels are compiled for."""
    return _LIMITS.get(platform, architecture)


def _parts(platform: str, reference: str) -> tuple[str, ...]:
    found: tuple[str, ...] = ("conformance", "package", "suite")
    if platform == "cuda":
        found = ("compile", *found)
    return (*found, "carve") if platform == reference else found


def _package(platform: str, wanted: Wanted, carried: Path) -> None:
    session = wanted.work / "sessions" / platform
    session.parent.mkdir(parents=True, exist_ok=True)
    limits = limits_of(platform, wanted.architecture)
    _tapml("offload", "--model", MODEL, "--target", platform, "--limits", limits,
           "--session", str(session), "--quiet")  # fmt: skip
    out = carried / "packages" / f"{platform}.zip"
    _tapml("package", str(session), "--out", str(out), "--archive", "--force")


def _model(folder: Path) -> None:
    from tapml.models import resolve_model

    folder.mkdir()
    for path in resolve_model(MODEL).iterdir():
        if path.suffix in (".json", ".safetensors", ".txt"):
            shutil.copyfile(path, folder / path.name)


def _expected(carried: Path) -> None:
    """PyTorch's tokens on this processor: what every device there must give."""
    from scripts.nvidia_bundle.eager import main
    from tapml.models import calibration_prompts
    from tapml.models.huggingface import load_model

    model = load_model(MODEL)
    prompt = next(iter(calibration_prompts(model, 1)))
    ids = [int(each) for each in prompt.token_ids]
    length = min(_NEW_TOKENS, model.context_length - len(ids))
    told = main(str(carried / "model"), "cpu", " ".join(map(str, ids)), str(length), "1")
    tokens = told["figures"]["tokens"]
    ends = [at for at, token in enumerate(tokens) if token in model.end_tokens]
    data = {"prompt": ids, "tokens": tokens[: ends[0] + 1] if ends else tokens}
    (carried / "expected.json").write_text(json.dumps(data), "utf-8")


def _suite(wanted: Wanted, carried: Path) -> None:
    from tapml.export.pytest_files import export_pytest
    from tapml.suite.selection import Filters
    from tapml.suite.suite import Suite
    from tapml_targets.limit_profiles import load_profile
    from tapml_targets.target import Target

    targets = {
        platform: Target(
            platform, limits=load_profile(platform, limits_of(platform, wanted.architecture)).limits
        )
        for platform in wanted.platforms
    }
    small = wanted.work / "suite"
    shutil.rmtree(small, ignore_errors=True)
    _tapml("carve", "--model", MODEL, "--out", str(small), "--prompts", "1",
           *(part for step in _STEPS for part in ("--step", str(step))), "--quiet")  # fmt: skip
    with Suite.open(small) as suite:
        export_pytest(suite, carried / "exported", filters=Filters(), targets=targets)


def _carve(wanted: Wanted, platform: str, folder: Path) -> None:
    from dataclasses import replace

    from scripts.carved_model import compile_all
    from tapml.compiler.compiler import Compiler
    from tapml.importing.cache import PlanCache
    from tapml.importing.importer import export_model, import_model
    from tapml.models import calibration_prompts
    from tapml.models.huggingface import load_model
    from tapml.plan import format as plan_format
    from tapml.rooting.recorded import RecordedRoots
    from tapml_targets.library_format import pack
    from tapml_targets.limit_profiles import load_profile
    from tapml_targets.target import Target

    folder.mkdir()
    model = load_model(MODEL)
    imported = import_model(model, cache=PlanCache())
    if not imported.exported:
        imported = replace(imported, exported=export_model(model))
    prompts = [each.token_ids for each in calibration_prompts(model, 1)]
    runs = model.rooting_runs(prompts[0])
    RecordedRoots.record(imported, runs, model.empty_state()).write(folder / "roots.npz")
    (folder / "plan.msgpack").write_bytes(plan_format.pack(imported.plan))
    profile = load_profile(platform, limits_of(platform, wanted.architecture))
    with Compiler() as compiler:
        libraries = compile_all(
            compiler, imported.plan.operators.values(), Target(platform, limits=profile.limits)
        )
    files = {}
    for number, (name, library) in enumerate(libraries.items()):
        files[name] = f"{number}.tapml"
        (folder / files[name]).write_bytes(pack(library))
    listed = {
        "libraries": files,
        "cases": [[int(each) for each in tokens] for tokens in prompts],
        "new_tokens": _CARVED_TOKENS,
    }
    (folder / "carve.json").write_text(json.dumps(listed), "utf-8")


def _loader(folder: Path) -> None:
    """Carry the Vulkan loader that is here, which a machine with the driver alone lacks."""
    program = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        told = subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return
    for line in told.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.split(" ")[0] == VULKAN_LOADER and "x86-64" in name:
            folder.mkdir()
            shutil.copyfile(Path(path).resolve(), folder / VULKAN_LOADER)
            return


def requirements(pyproject: Mapping[str, Any], platforms: Sequence[str]) -> list[str]:
    """What the machine needs: the base install, each platform's extra, and pytest."""
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    test = [each for each in extras["test"] if each.startswith("pytest>")]
    needed = [*project["dependencies"], *(r for p in platforms for r in extras[p]), *test]
    return list(dict.fromkeys(needed))


def _wheels(wanted: Wanted, python: str, folder: Path) -> None:
    downloaded = wanted.work / f"wheels-{python}"
    fresh = wanted.work / f"wheels-{python}.partial"
    # What an earlier preparation downloaded is found again, but only what is needed now is carried.
    downloaded.mkdir(exist_ok=True)
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    with (ROOT / "pyproject.toml").open("rb") as file:
        needed = requirements(tomllib.load(file), wanted.platforms)
    tags = [part for tag in _TAGS for part in ("--platform", f"{tag}_x86_64")]
    _run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
          "--only-binary=:all:", "--implementation", "cp", "--python-version", python,
          *tags, "--find-links", str(downloaded), "--dest", str(fresh), *needed])  # fmt: skip
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check",
          "--no-deps", "--wheel-dir", str(fresh), str(ROOT)])  # fmt: skip
    shutil.rmtree(downloaded)
    fresh.rename(downloaded)
    folder.mkdir(exist_ok=True)
    for wheel in carried_wheels(downloaded, wanted.without):
        # Wheels for every version are the same file.
        if not (folder / wheel.name).exists():
            _stored(wheel, folder / wheel.name)


def carried_wheels(folder: Path, without: frozenset[str]) -> list[Path]:
    """The wheels of a folder but those of the distributions that are there already.

    Raises
    ------
    SetupError
        If one of these has no wheel.
    """
    wheels = {distribution(each.name): each for each in sorted(folder.glob("*.whl"))}
    unknown = sorted(without - wheels.keys())
    if unknown:
        raise SetupError(f"--without {unknown[0]}: there are {', '.join(wheels)}")
    return [each for name, each in wheels.items() if name not in without]


def distribution(wheel: str) -> str:
    """The name of a wheel's distribution, as an index spells it."""
    return normalized(wheel.partition("-")[0])


def normalized(name: str) -> str:
    """A distribution's name, as an index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _stored(source: Path, target: Path) -> None:
    """The same wheel without compression, which the archive does better: files repeat."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            entry.compress_type = zipfile.ZIP_STORED
            new.writestr(entry, content)


def write_archive(folder: Path, path: Path) -> None:
    """Write a folder as one file; the same content gives the same bytes."""
    kind = {"id": lzma.FILTER_LZMA2, "preset": 2, "dict_size": _DICTIONARY_BYTES}
    partial = path.with_suffix(".partial")
    with (
        lzma.LZMAFile(partial, "wb", format=lzma.FORMAT_XZ, filters=[kind]) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for each in sorted(folder.rglob("*")):
            archive.add(each, str(each.relative_to(folder)), recursive=False, filter=_plain)
    partial.replace(path)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def _version() -> str:
    """The commit, with a mark where files differ from it."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return told.stdout.strip() or "unknown"


def _tapml(*arguments: str) -> None:
    _run([sys.executable, "-m", "tapml.cli.main", *arguments])


def _run(asked: Sequence[str]) -> None:
    told = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    if told.returncode:
        said = (told.stderr or told.stdout).strip().splitlines()
        last = one_line(said[-1] if said else "no output")
        what = " ".join(asked[1:5])
        raise SetupError(f"`{what} ...` ended with {told.returncode}: {last}")
