"""A package on its device: the session's tokens, text, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tapml.models.stored import StoredDecoder
from tapml.package import load
from tapml.package.load import load_package, open_package
from tapml.package.manifest import LIBRARY, MANIFEST, PLAN, README, WEIGHTS
from tapml.package.runnable import difference_from
from tapml.package.sample import Sample
from tapml.package.shipped import of_session, open_passed
from tapml.package.target_model import TargetModel
from tapml.package.texts import browser_readme, readme
from tapml.plan.plan_notes import BRANCHES
from tapml_rpc.session import Batch
from tapml_targets import library_format
from tapml_targets.errors import InputError, LimitExceededError, NoSuchDeviceError
from tests.package.packages import Packages, add_tokenizer, exchange, manifest_of, put


def test_an_archive_gives_the_tokens_of_the_sessions_end(
    packages: Packages, loaded: TargetModel
) -> None:
    count = len(packages.tokens)
    assert list(loaded.generate_tokens(packages.prompt, max_new_tokens=count)) == packages.tokens
    assert loaded.notes == ()
    assert loaded.device.name == packages.session.report["target"]["name"]


def test_which_branches_a_model_takes_is_said_wherever_it_runs(packages: Packages) -> None:
    finished = open_passed(packages.session.folder)
    metadata = {**finished.plan.metadata, BRANCHES: "models/net.py:3"}
    shipped = of_session(replace(finished, plan=replace(finished.plan, metadata=metadata)))
    assert "models/net.py:3" in browser_readme(shipped)
    with TargetModel(replace(open_package(packages.folder), plan=shipped.plan)) as model:
        (note,) = model.notes
    assert "models/net.py:3" in note
    assert f"Note: {note}." in readme(manifest_of(packages.folder), (), model.notes)


def test_a_folder_gives_the_same_as_the_archive(packages: Packages, loaded: TargetModel) -> None:
    expected = list(loaded.generate_tokens((5, 6, 7), max_new_tokens=12))
    with load_package(str(packages.folder)) as model:
        assert list(model.generate_tokens((5, 6, 7), max_new_tokens=12)) == expected


def test_one_text_follows_another(packages: Packages, loaded: TargetModel) -> None:
    first = list(loaded.generate_tokens((3,), max_new_tokens=5))
    list(loaded.generate_tokens(packages.prompt, max_new_tokens=3))
    assert list(loaded.generate_tokens((3,), max_new_tokens=5)) == first


def test_generation_ends_where_the_context_does(loaded: TargetModel) -> None:
    length = loaded.context_length
    prompt = [2 + index % 7 for index in range(length - 2)]
    assert len(list(loaded.generate_tokens(prompt, max_new_tokens=50))) <= 3
    with pytest.raises(InputError, match="shorten the prompt"):
        loaded.generate_tokens([2] * (length + 1))


def test_a_text_that_was_interrupted_leaves_a_model_that_works(
    packages: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with load_package(packages.folder) as model:
        tokens = model.generate_tokens(packages.prompt, max_new_tokens=2)
        next(tokens)
        with monkeypatch.context() as patched:
            # Between recording the decode step and running it.
            patched.setattr(Batch, "execute", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(tokens)
        again = list(model.generate_tokens(packages.prompt, max_new_tokens=2))
    assert again == packages.tokens[:2]


def test_two_texts_at_a_time_are_refused(loaded: TargetModel) -> None:
    first = loaded.generate_tokens((5, 6), max_new_tokens=5)
    next(first)
    second = loaded.generate_tokens((7, 8), max_new_tokens=5)
    with pytest.raises(InputError, match="another text was begun"):
        next(first)
    assert len(list(second)) == 5


@pytest.mark.parametrize("prompt", [(), (1, 4000), (-1,)])
def test_tokens_that_are_none_are_refused(loaded: TargetModel, prompt: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"the prompt has no token|is not in the vocabulary"):
        loaded.generate_tokens(prompt)


def test_a_model_without_a_tokenizer_takes_no_text(loaded: TargetModel) -> None:
    with pytest.raises(InputError, match="the package takes no text: the model has no tokenizer"):
        loaded.generate("text")


def test_text_goes_in_and_comes_out(packages: Packages, tmp_path: Path) -> None:
    package = packages.copy(tmp_path / "p")
    add_tokenizer(package)
    with load_package(package) as model:
        ids = model.encode("Ab c")
        tokens = list(model.generate_tokens(ids, max_new_tokens=9))
        assert model.generate("Ab c", max_new_tokens=9) == model.codec.decode(tokens)
        pieces = list(model.stream("Ab c", max_new_tokens=9))
        assert len(pieces) > 1
        assert "".join(pieces) == model.codec.decode(tokens)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def turn(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [(cut, "bytes, expected"), (turn, "has SHA-256"), (Path.unlink, "is missing")],
)
@pytest.mark.parametrize("name", [PLAN, LIBRARY, WEIGHTS, README])
def test_a_damaged_file_is_named(
    packages: Packages, tmp_path: Path, name: str, damage: Callable[[Path], None], words: str
) -> None:
    package = packages.copy(tmp_path / "p")
    damage(package / name)
    with pytest.raises(InputError, match=re.escape(name)) as refusal:
        open_package(package)
    assert words in str(refusal.value)
    assert "damaged or was edited" in str(refusal.value)


def test_an_edited_kernel_is_named_with_both_hashes(packages: Packages, tmp_path: Path) -> None:
    package = packages.copy(tmp_path / "p")
    content = (package / LIBRARY).read_bytes()
    (package / LIBRARY).write_bytes(content.replace(b"float", b"flaot", 1))
    expected = manifest_of(package).files[LIBRARY].sha256
    with pytest.raises(InputError, match=f"library.msgpack has SHA-256 .* expected {expected}"):
        open_package(package)


def test_large_weights_are_hashed_where_that_is_asked_for(
    packages: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "ALWAYS_VERIFIED_BYTES", 0)
    package = packages.copy(tmp_path / "p")
    turn(package / WEIGHTS)
    open_package(package)
    with pytest.raises(InputError, match=r"weights.safetensors has SHA-256"):
        open_package(package, verify=True)
    content = (package / WEIGHTS).read_bytes()
    (package / WEIGHTS).write_bytes(content.replace(b"norm", b"nrom", 1))
    with pytest.raises(InputError, match=r"the header of weights.safetensors has SHA-256"):
        open_package(package)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"version": 1', b'"version": 2', "version 2 of the format .* install a newer tapml"),
        (b'"tapml package"', b'"other"', "is not that of a package"),
        (b'"files": {', b'"files": 1, "x": {', r"Expected `object`, got `int` - at `\$.files`"),
        (b'"library.msgpack"', b'"../library"', "matching regex"),
        (b'"context_length": 64', b'"context_length": -1', "context_length"),
        (b"{", b"", "is damaged: Expected `object`"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_refused(
    packages: Packages, tmp_path: Path, old: bytes, new: bytes, words: str
) -> None:
    package = packages.copy(tmp_path / "p")
    content = (package / MANIFEST).read_bytes()
    assert old in content
    (package / MANIFEST).write_bytes(content.replace(old, new, 1))
    with pytest.raises(InputError, match=words) as refusal:
        open_package(package)
    assert str(package) in str(refusal.value)


def repacked(archive: Path, to: Path, method: int) -> Path:
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(to, "w", method) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    return to


def test_an_archive_that_other_tools_packed_runs_where_it_is_not_compressed(
    packages: Packages, tmp_path: Path
) -> None:
    stored = repacked(packages.archive, tmp_path / "stored.zip", zipfile.ZIP_STORED)
    assert open_package(stored).nbytes == open_package(packages.folder).nbytes
    packed = repacked(packages.archive, tmp_path / "packed.zip", zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match=r"is compressed or encrypted.* unpack the archive"):
        open_package(packed)


def test_an_unpacked_archive_is_a_package(packages: Packages, tmp_path: Path) -> None:
    shutil.unpack_archive(packages.archive, tmp_path / "p")
    assert open_package(tmp_path / "p").model == open_package(packages.folder).model


@pytest.mark.parametrize("length", [0, 30, -30, -2000])
def test_an_archive_cut_short_is_refused(packages: Packages, tmp_path: Path, length: int) -> None:
    archive = tmp_path / "p.zip"
    archive.write_bytes(packages.archive.read_bytes()[:length])
    with pytest.raises(InputError, match="is not a complete package"):
        open_package(archive)


def test_a_member_that_begins_elsewhere_is_refused(packages: Packages, tmp_path: Path) -> None:
    content = bytearray(packages.archive.read_bytes())
    entry = content.rindex(b"PK\x01\x02", 0, content.rindex(b"package.json"))
    content[entry + 42 : entry + 46] = struct.pack("<L", 7)
    archive = tmp_path / "p.zip"
    archive.write_bytes(content)
    with pytest.raises(InputError, match="does not begin where it should"):
        open_package(archive)


@pytest.mark.parametrize(
    ("size", "value"), [("context_length", 10**9), ("context_length", 3), ("vocabulary", 10**9)]
)
def test_sizes_that_are_not_the_plans_are_refused(
    packages: Packages, tmp_path: Path, size: str, value: int
) -> None:
    package = packages.copy(tmp_path / "package")
    manifest, sizes = manifest_of(package), dict[str, Any]({size: value})
    assert isinstance(manifest.model, StoredDecoder)
    put(package, replace(manifest, model=replace(manifest.model, **sizes)))
    with pytest.raises(InputError, match=f"was edited: .* of {value}, and its plan has another"):
        open_package(package)


def test_what_a_manifest_says_does_not_steer_a_terminal(packages: Packages, tmp_path: Path) -> None:
    package = packages.copy(tmp_path / "package")
    manifest = manifest_of(package)
    put(package, replace(manifest, device=replace(manifest.device, name="\x1b[2Jboard")))
    assert manifest_of(package).device.name == "?[2Jboard"


def test_another_platform_is_refused(packages: Packages) -> None:
    with pytest.raises(InputError, match="are for opencl, and cpu:0 is no opencl device"):
        load_package(packages.folder, "cpu:0")


def test_a_device_that_is_not_there_is_named(packages: Packages) -> None:
    with pytest.raises(NoSuchDeviceError, match="opencl:99"):
        load_package(packages.folder, "opencl:99")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "Other GPU"}, "validated on Other GPU .*, runs on "),
        ({"driver_version": "1.2"}, "validated with driver 1.2, runs with "),
        ({}, "has other features or limits than when the model was validated"),
    ],
)
def test_another_device_or_driver_is_a_note(
    packages: Packages, loaded: TargetModel, changes: dict[str, str], words: str
) -> None:
    validated = replace(manifest_of(packages.folder).device, fingerprint="0" * 64, **changes)
    assert re.search(words, difference_from(validated, loaded.device) or "")


def test_on_another_driver_a_text_of_the_session_is_generated_again(
    packages: Packages, tmp_path: Path
) -> None:
    package = _made_elsewhere(packages, tmp_path / "p")
    with (
        pytest.warns(UserWarning, match="validated with driver older.* come out as they did there"),
        load_package(package, packages.session.device) as model,
    ):
        count = len(packages.tokens)
        again = list(model.generate_tokens(packages.prompt, max_new_tokens=count))
    assert again == packages.tokens


def test_a_driver_that_computes_something_else_is_told_by_the_first_token_that_differs(
    packages: Packages, tmp_path: Path
) -> None:
    first, second, *_ = packages.tokens
    wrong = Sample(packages.prompt, (first, second + 1))
    package = _made_elsewhere(packages, tmp_path / "p", wrong)
    words = f"token 2 of a text of its session is {second} here and was {second + 1} there"
    with (
        pytest.warns(UserWarning, match=f"{words}.*tapml offload --device"),
        load_package(package, packages.session.device),
    ):
        pass


def test_where_warnings_are_raised_the_device_is_given_back(
    packages: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = _made_elsewhere(packages, tmp_path / "p")
    closed: list[TargetModel] = []
    close = TargetModel.close

    def noted(model: TargetModel) -> None:
        closed.append(model)
        close(model)

    monkeypatch.setattr(TargetModel, "close", noted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="validated with driver older"):
            load_package(package, packages.session.device)
    assert len(closed) == 1


def test_a_package_of_an_earlier_tapml_has_nothing_to_generate_again(
    packages: Packages, tmp_path: Path
) -> None:
    package = _made_elsewhere(packages, tmp_path / "p")
    data = json.loads((package / MANIFEST).read_bytes())
    del data["sample"]
    (package / MANIFEST).write_text(json.dumps(data))
    with (
        pytest.warns(UserWarning, match="driver older.*: nobody has checked it here"),
        load_package(package, packages.session.device),
    ):
        pass


def _made_elsewhere(packages: Packages, to: Path, sample: Sample | None = None) -> Path:
    """A package that says it was validated with another driver."""
    package = packages.copy(to)
    manifest = manifest_of(package)
    assert manifest.sample is not None
    device = replace(manifest.device, driver_version="older", fingerprint="0" * 64)
    put(package, replace(manifest, device=device, sample=sample or manifest.sample))
    return package


def test_a_device_that_is_too_small_names_kernel_limit_and_need(
    packages: Packages, tmp_path: Path
) -> None:
    package = packages.copy(tmp_path / "p")
    library = library_format.unpack((package / LIBRARY).read_bytes())
    name, kernel = next(iter(library.kernels.items()))
    large = structs.replace(kernel, shared_memory_bytes=1 << 40)
    library = replace(library, kernels={**library.kernels, name: large})
    exchange(package, LIBRARY, library_format.pack(library))
    with pytest.raises(LimitExceededError) as refusal:
        load_package(package)
    assert name in str(refusal.value)
    assert f"max_shared_memory_bytes {1 << 40}" in str(refusal.value)
    assert "tapml devices" in str(refusal.value)


def test_kernels_for_another_platform_than_it_says_are_refused(
    packages: Packages, tmp_path: Path
) -> None:
    package = packages.copy(tmp_path / "p")
    manifest = manifest_of(package)
    put(package, replace(manifest, device=replace(manifest.device, platform="cpu")))
    with pytest.raises(InputError, match="its kernels are for opencl, and it says cpu"):
        open_package(package)
