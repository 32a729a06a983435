"""What a folder for the browser holds, and which sessions and packages give one."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tapml.cli.main import main
from tapml.models.stored import StoredDecoder
from tapml.package import browser_folder
from tapml.package.browser_folder import LINES, MANIFEST, PAGE, PART_BYTES, make_browser_folder
from tapml.package.files import PackageFiles
from tapml.package.manifest import LIBRARY, README, TOKENIZER, WEIGHTS
from tapml.package.shipped import licences_of
from tapml_rpc.tracker.web_page import page_files
from tapml_targets import library_format
from tapml_targets.errors import InputError
from tests.models.tokenizers import family
from tests.package.packages import Packages, add_tokenizer, exchange, manifest_of, put


@pytest.fixture(scope="module")
def package(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package that says its kernels are WebGPU's: what a folder holds asks for no GPU."""
    folder = packages.copy(tmp_path_factory.mktemp("webgpu") / "tiny-package")
    library = library_format.unpack((folder / LIBRARY).read_bytes())
    exchange(folder, LIBRARY, library_format.pack(replace(library, target="webgpu")))
    manifest = manifest_of(folder)
    put(folder, replace(manifest, device=replace(manifest.device, platform="webgpu")))
    add_tokenizer(folder)
    return folder


def test_the_manifest_names_every_file_of_the_model_with_its_hash(
    package: Path, tmp_path: Path
) -> None:
    made = make_browser_folder(package, tmp_path / "site")
    manifest = json.loads((made.path / MANIFEST).read_text(encoding="utf-8"))
    pages = set(page_files(PAGE))
    held = {each.name for each in made.path.iterdir()}
    assert held == {MANIFEST, README, *pages, *manifest["files"]}
    assert {"index.html", "page.js", "tapml.js", "worker.js"} <= pages
    assert {LIBRARY, TOKENIZER, LINES} <= manifest["files"].keys()
    for name, stored in manifest["files"].items():
        content = (made.path / name).read_bytes()
        assert stored == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    decoder = StoredDecoder.from_json(manifest["model"])
    assert decoder == PackageFiles(package).manifest.model
    longest = manifest["plan"]["entries"]["prefill"]["bounds"]
    assert [upper for _, upper in longest.values()] == [decoder.context_length]


def test_the_lines_show_what_is_beside_every_added_token(package: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(package, tmp_path / "package"))
    exchange(copied, TOKENIZER, family("qwen").to_str().encode())
    made = make_browser_folder(copied, tmp_path / "site")
    lines = {line: ids for line, ids, _ in json.loads((made.path / LINES).read_text("utf-8"))}
    for token in ("<|im_start|>", "<think>"):
        line = f"a{token}b {token} c"
        assert lines[line] == family("qwen").encode(line).ids


def test_the_parts_are_one_safetensors_file(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser_folder, "PART_BYTES", 10_007)
    made = make_browser_folder(package, tmp_path / "site")
    parts = sorted(made.path.glob(f"{WEIGHTS}.*"))
    assert [each.stat().st_size for each in parts[:-1]] == [10_007] * (made.parts - 1)
    assert json.loads((made.path / MANIFEST).read_text())["weights"] == [p.name for p in parts]
    read = safetensors.numpy.load(b"".join(part.read_bytes() for part in parts))
    expected = PackageFiles(package).weights()
    assert read.keys() == dict(expected).keys()
    for name, array in read.items():
        np.testing.assert_array_equal(array, expected[name])


def test_no_part_is_larger_than_common_hosts_take() -> None:
    assert PART_BYTES <= 24 << 20, "Cloudflare Pages takes 25 MiB, GitHub Pages 100 MB"


def test_the_same_package_gives_the_same_bytes(package: Path, tmp_path: Path) -> None:
    folders = [make_browser_folder(package, tmp_path / name).path for name in ("one", "two")]
    one, two = ({each.name: each.read_bytes() for each in path.iterdir()} for path in folders)
    assert one == two


def test_nothing_in_the_page_points_out_of_the_folder() -> None:
    files = page_files(PAGE)
    text = files["index.html"].decode()
    for name in ("src=", "href="):
        for target in (part.split('"')[1] for part in text.split(name)[1:]):
            assert target.startswith("#") or target in files, target
    assert "default-src 'none'" in text


def test_the_command_says_how_to_try_it(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["package", str(package), "--browser"]) == 0
    made = package.with_name("tiny-browser")
    assert (made / MANIFEST).is_file()
    assert f"python -m http.server --directory {made} 8000" in capsys.readouterr().out


def test_kernels_of_another_platform_are_refused(packages: Packages, tmp_path: Path) -> None:
    for source in (packages.session.folder, packages.folder, packages.archive):
        with pytest.raises(InputError, match="are for opencl, and a browser runs webgpu"):
            make_browser_folder(source, tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_folder_that_is_there_is_replaced_when_asked_and_nothing_else_ever(
    package: Path, tmp_path: Path
) -> None:
    site = make_browser_folder(package, tmp_path / "site").path
    with pytest.raises(InputError, match="--force replaces it"):
        make_browser_folder(package, site)
    assert make_browser_folder(package, site, force=True).path == site
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    # Other programs' models have a file of this name, too.
    (tmp_path / "mine" / MANIFEST).write_text('{"format": "layers-model"}')
    with pytest.raises(InputError, match="choose another place"):
        make_browser_folder(package, tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "letter.txt").is_file()


def test_a_licence_goes_with_the_model_under_a_name_that_a_manifest_takes(tmp_path: Path) -> None:
    for name in ("LICENSE", "LICENSE (1).txt", "LICENSE -1-.txt", "Lizenz.txt"):
        (tmp_path / name).write_text(name)
    assert licences_of(tmp_path) == {
        "LICENSE": b"LICENSE",
        "LICENSE--1-.txt": b"LICENSE (1).txt",
        "LICENSE--1-+.txt": b"LICENSE -1-.txt",
    }
