"""A bundle is a repro folder in one file: it replays to the same verdict, edited or not."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tapml.bundle.archive import write_archive
from tapml.bundle.bundle import is_bundle, read_bundle, write_bundle
from tapml.cli.main import main
from tapml.reduce.device import ReopeningDevice
from tapml.repro.folder import read_repro, replay_repro
from tapml_rpc.client import Session
from tapml_targets.errors import InputError, ProtocolError
from tests.reduce.planted import failing_folder


@pytest.fixture(scope="module")
def folder(device: ReopeningDevice, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A failing test."""
    return failing_folder(tmp_path_factory.mktemp("repro") / "matmul", device, "first term missing")


@pytest.fixture
def bundle(folder: Path, tmp_path: Path) -> Path:
    """The same as one file."""
    return write_bundle(tmp_path / "matmul.tapml.zip", folder)


def test_a_bundle_replays_to_the_same_verdict(
    bundle: Path, folder: Path, open_session: Callable[[], Session]
) -> None:
    assert is_bundle(bundle)
    repro, original = read_bundle(bundle), read_repro(folder)
    assert repro.definition == original.definition
    assert repro.library == original.library
    with open_session() as session:
        verdict = replay_repro(repro, session).verdict
    assert (verdict.status, verdict.reason) == (original.status, original.reason)
    assert verdict.status == "fail"


def test_a_bundle_says_what_it_is_and_how_to_replay_it(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        readme = archive.read("matmul/README.txt").decode()
        manifest = json.loads(archive.read("matmul/bundle.json"))
        plan = archive.read("matmul/launch_plan.txt").decode()
        names = {name.partition("/")[2].partition("/")[0] for name in archive.namelist()}
    assert "tapml replay matmul.tapml.zip" in readme
    assert manifest["operator"] == "matmul"
    assert manifest["status"] == "fail"
    assert manifest["synthetic"] is False
    assert "launch matmul(p0, p1, p2, int32 n = 17)" in plan
    assert "grid (floordiv(add(mul(n, 32), 63), 64) = 9, 1, 1)" in plan
    assert names >= {
        "inputs", "expected", "reference", "sensitivity", "actual", "kernels", "repro.json",
        "errors.txt", "library.tapml", "operator.tapml",
    }  # fmt: skip


def test_the_same_folder_gives_the_same_bytes(bundle: Path, folder: Path, tmp_path: Path) -> None:
    again = write_bundle(tmp_path / "again" / bundle.name, folder)
    assert again.read_bytes() == bundle.read_bytes()


def test_only_what_belongs_to_it_goes_in(device: ReopeningDevice, tmp_path: Path) -> None:
    folder = failing_folder(tmp_path / "matmul", device, "first term missing")
    (folder / "notes.txt").write_text("my password")
    (folder / "inputs" / "other.npy").write_bytes(b"my weights")
    with zipfile.ZipFile(write_bundle(tmp_path / "a.tapml.zip", folder)) as archive:
        names = archive.namelist()
    assert not [name for name in names if "notes" in name or "other" in name]


def test_a_kernel_edited_in_the_unpacked_bundle_is_what_runs(
    bundle: Path, tmp_path: Path, open_session: Callable[[], Session]
) -> None:
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(tmp_path)
    source = tmp_path / "matmul" / "kernels" / "00.cl"
    source.write_text(source.read_text().replace("sum -= ", "sum -= 0.0f * "))
    fixed = write_bundle(tmp_path / "fixed.tapml.zip", tmp_path / "matmul")
    with open_session() as session:
        for repro in (read_repro(tmp_path / "matmul"), read_bundle(fixed)):
            assert repro.edited == ("00.cl",)
            assert replay_repro(repro, session).verdict.status == "pass"
    with zipfile.ZipFile(fixed) as archive:
        readme = archive.read("matmul/README.txt").decode()
    assert readme.count("What follows is the README") == 1


def test_the_commands_bundle_and_replay(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = tmp_path / "wrong.tapml.zip"
    assert main(["bundle", str(folder), "-o", str(archive)]) == 0
    assert str(archive) in capsys.readouterr().out
    assert main(["replay", str(archive)]) == 1
    assert capsys.readouterr().out.startswith("fail: prefill/model.layers.0.mlp/matmul.1@p3.s0")


def test_a_bundle_is_inspected_like_the_folder_it_holds(
    bundle: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(bundle), str(folder), "--json"]) == 0
    packed, unpacked = json.loads(capsys.readouterr().out)
    assert (packed.pop("kind"), unpacked.pop("kind")) == ("bundle", "repro")
    assert (packed.pop("path"), unpacked.pop("path")) == (str(bundle), str(folder))
    assert packed == unpacked
    assert packed["facts"]["status"] == "fail"


@pytest.mark.parametrize(
    "option", [("--operator", "other"), ("--layer", "3"), ("--repro", "x"), ("--explain", "other")]
)
def test_an_option_without_effect_on_one_test_is_refused(
    bundle: Path, option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(bundle), *option]) == 2
    assert str(bundle) in capsys.readouterr().err


def test_every_failure_of_a_session_has_its_own_bundle(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repros = tmp_path / "session" / "repro"
    repros.mkdir(parents=True)
    (repros / "first").symlink_to(folder)
    (repros / "second").symlink_to(folder)
    refused = repros / "not_compiled"
    refused.mkdir()
    (refused / "failure.json").write_text("{}")
    assert main(["bundle", str(tmp_path / "session"), "-o", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "first.tapml.zip",
        "second.tapml.zip",
    ]
    only = tmp_path / "not-there-yet"
    assert main(["bundle", str(tmp_path / "session"), "--operator", "f*", "-o", str(only)]) == 0
    assert [path.name for path in only.iterdir()] == ["first.tapml.zip"]
    one = str(tmp_path / "one.tapml.zip")
    assert main(["bundle", str(tmp_path / "session"), "--operator", "f*", "-o", one]) == 0
    assert main(["bundle", str(tmp_path / "session"), "--operator", "not_*"]) == 2
    assert "failure.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bundle", "none"], "there is nothing at none"),
        (["bundle", "none.tapml.zip"], "there is no bundle at"),
        (["reduce", "none.tapml.zip"], "there is no bundle at"),
        (["replay", "none.tapml.zip"], "there is no bundle at"),
        (["bundle", "."], "has no failing test"),
        (["reduce", "."], "neither a repro folder nor a bundle"),
    ],
)
def test_a_source_that_is_none_is_one_clear_error(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage", ["manifest", "field", "format", "two folders", "library", "no repro"]
)
def test_what_is_no_bundle_is_refused(damage: str, bundle: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        files: dict[str, Path | bytes] = {n: archive.read(n) for n in archive.namelist()}
    match damage:
        case "manifest":
            files["matmul/bundle.json"] = b"[]"
        case "field":
            manifest = files["matmul/bundle.json"]
            assert isinstance(manifest, bytes)
            files["matmul/bundle.json"] = manifest.replace(b"false", b'"no"')
        case "format":
            files["matmul/bundle.json"] = b'{"format": "tapml-bundle/99"}'
        case "two folders":
            files["other/README.txt"] = b""
        case "library":
            files["matmul/library.tapml"] = b"TAPMLLIB"
        case "no repro":
            del files["matmul/repro.json"]
    write_archive(tmp_path / "bad.tapml.zip", files)
    with pytest.raises((InputError, ProtocolError)):
        read_bundle(tmp_path / "bad.tapml.zip")


def test_a_bundle_of_before_verdicts_had_causes_is_refused_by_its_own_name(
    bundle: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(bundle) as archive:
        files: dict[str, Path | bytes] = {n: archive.read(n) for n in archive.namelist()}
    files["matmul/bundle.json"] = b'{"format": "tapml-bundle/1"}'
    old = tmp_path / "old.tapml.zip"
    write_archive(old, files)
    with pytest.raises(InputError, match=f"{old} has .* 'tapml-bundle/1', .* bundle it again"):
        read_bundle(old)
