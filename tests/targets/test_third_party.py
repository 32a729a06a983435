"""A platform of another distribution is a platform like any other, and no other file changes."""

from __future__ import annotations

import ast
import io
import json
import tokenize
from pathlib import Path

import numpy as np
import pytest

import tapml
from tapml.compiler.cache import generator_hash
from tapml.compiler.generator_imports import imported_sources
from tapml.failures.build_log import messages_of
from tapml.kernels.dialects import language_of
from tapml.kernels.signature_reader import read_entries, read_signature
from tapml.kernels.skeleton import write_skeleton
from tapml_targets import platforms
from tapml_targets.checker import CHECKS, checker_of
from tapml_targets.conformance_kernels import kernel_table
from tapml_targets.driver import BufferUse, ScalarUse
from tapml_targets.errors import CompileError, InputError, SetupError
from tapml_targets.library import CodeModule, Kernel, Parameter
from tapml_targets.ranking import list_devices
from tests.targets.third_party import PACKAGE, forget, install, site, tapml_in

SOURCE = """\
/* work hidden(int n) {} */
work scale(cells float* o, const cells float* a, const cells uint *m, int n) {
  EACH(i) { if (i < n) { o[i] = 2.0f * a[i]; } }
}
"""

__all__ = ["site"]


def test_its_devices_are_listed_and_one_is_the_default(tmp_path: Path) -> None:
    site = install(tmp_path / "site")
    ended = tapml_in(site, "devices", "--platform", "abacus", "--json")
    assert ended.returncode == 0, ended.stderr
    (device,) = json.loads(ended.stdout)["devices"]
    assert (device["spec"], device["default"]) == ("abacus:0", True)
    assert device["vendor_platform"] == "Beads and rods"


def test_it_takes_less_than_300_lines_of_code() -> None:
    """Blank lines, comments and docstrings are none."""
    lines = sum(len(_lines_of_code(path.read_text())) for path in PACKAGE.glob("*.py"))
    header = (PACKAGE / "abacus.h").read_text().splitlines()
    assert 200 < lines + len(header) < 300


def _lines_of_code(text: str) -> set[int]:
    documentation = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    return {
        line
        for each in tokenize.generate_tokens(io.StringIO(text).readline)
        if each.type not in (*blank, tokenize.ENDMARKER)
        for line in range(each.start[0], each.end[0] + 1)
    } - documentation


def test_a_process_that_checks_lists_its_checker_though_a_list_was_kept(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site))

    def types() -> list[str]:
        return [each.device_type for each in list_devices("abacus")]

    assert types() == types() == ["cpu"]
    for name, value in checker_of("abacus").environment(Path(), tmp_path / "log.txt").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(CHECKS, "1")
    assert types() == ["checker"]


def test_its_name_is_a_factory_of_devices(site: Path) -> None:
    assert platforms.check_platform("abacus") == "abacus"
    assert tapml.abacus().platform == "abacus"


def test_its_folder_is_part_of_the_key_of_what_is_compiled(site: Path) -> None:
    folder = platforms.platform_folder("abacus")
    hash_now = generator_hash.__wrapped__
    found = [hash_now("abacus")]
    (folder / "words.inc").write_text("edited")
    found.append(hash_now("abacus"))
    # Nor is what it takes of another platform left out.
    language = folder / "language.py"
    language.write_text(f"from tapml_targets.rocm import prologue\n{language.read_text()}")
    found.append(hash_now("abacus"))
    assert len(set(found)) == 3
    of_language = imported_sources([language], {"tapml_targets": Path(platforms.__file__).parent})
    assert {"kernel_language.py", "prologue.py", "prologues.py"} <= {p.name for p in of_language}


def test_its_language_is_data_in_its_folder(site: Path) -> None:
    language = language_of("abacus")
    assert read_entries(language, SOURCE) == ["scale"]
    signature = read_signature(language, SOURCE, "scale")
    assert signature is not None and signature.line == 2
    assert [(a.name, a.kind, a.dtype, a.constant) for a in signature.arguments] == [
        ("o", "buffer", "float32", False),
        ("a", "buffer", "float32", True),
        ("m", "buffer", "uint32", True),
        ("n", "scalar", "int32", False),
    ]
    # Text that becomes machine code is loaded where machine code is.
    assert language.kind == "machine"


def test_a_skeleton_in_its_language_builds_and_a_fault_is_placed_in_it(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    language = language_of("abacus")
    parameters = [
        Parameter("given", ("n",), "float32", "input"),
        Parameter("made", ("n",), "float32", "output"),
    ]
    text = write_skeleton(language, "work_on", parameters, ["n"], 64)
    line = "// Write made[element] here."
    assert line in text
    monkeypatch.setenv("TAPML_ALLOW_SHARED_LIBRARIES", "1")
    module = platforms.load_driver_module("abacus")
    driver = module.open_device(module.list_devices()[0])
    kernels = [Kernel("work_on", "work_on", 0)]
    written = text.replace(line, "made[element] = 3 * given[element];")
    loaded = driver.load(
        CodeModule(language.dialect, written.encode(), kind=language.kind), kernels
    )
    given, made = driver.allocate(20), driver.allocate(20)
    driver.write(given, 0, memoryview(np.arange(5, dtype=np.float32).tobytes()))
    arguments = [
        BufferUse(given, 0, 20), BufferUse(made, 0, 20), ScalarUse(5, "int32"),
        ScalarUse(5, "int32"),
    ]  # fmt: skip
    driver.launch(loaded["work_on"], arguments, (1, 1, 1), (64, 1, 1))
    assert np.frombuffer(driver.read(made, 0, 20), np.float32).tolist() == [0, 3, 6, 9, 12]
    wrong = text.replace(line, "made[element] = nothing;")
    with pytest.raises(CompileError) as caught:
        driver.load(CodeModule(language.dialect, wrong.encode(), kind=language.kind), kernels)
    (message,) = [m for m in messages_of(str(caught.value), language.dialect) if m.kind == "error"]
    assert wrong.splitlines()[message.line - 1].strip() == "made[element] = nothing;"
    assert "nothing" in message.text


def test_it_has_the_kernels_of_the_conformance_suite(site: Path) -> None:
    assert kernel_table("abacus").POINTERS
    (site / "tapml_abacus" / "conformance.py").unlink()
    with pytest.raises(InputError, match=r"'abacus' has no kernels .*: write conformance\.py"):
        kernel_table("abacus")


@pytest.mark.parametrize(
    ("offers", "words"),
    [
        ({"cpu": "tapml_abacus"}, "tapml itself has a platform of this name"),
        ({"tracker": "tapml_abacus"}, "a name of lower-case letters"),
        ({"Abacus": "tapml_abacus"}, "a name of lower-case letters"),
        ({"abacus": "tapml_abacus:driver"}, "expected the name of an import package"),
    ],
)
def test_an_offer_that_is_no_platform_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offers: dict[str, str], words: str
) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", offers)))
    forget()
    assert platforms.platform_names() == platforms.own_platforms()
    (problem,) = platforms.left_out_platforms().values()
    assert problem.startswith("the platform of tapml-abacus 1.0 is left out: ") and words in problem
    monkeypatch.undo()
    forget()


def test_of_two_offers_of_a_name_one_is_used_and_the_other_said(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, {"abacus": "tapml_other"}, name="other")
    forget()
    assert "abacus" in platforms.platform_names()
    assert "has a platform of this name as well" in platforms.left_out_platforms()["abacus"]


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("driver.py", None, "there is no package 'tapml_abacus' with a driver.py"),
        ("driver.py", "1 / 0\n", "ZeroDivisionError"),
        ("__init__.py", "import beads\n", "No module named 'beads'"),
    ],
)
def test_a_broken_package_is_named_and_costs_no_other_platform(
    tmp_path: Path, file: str, text: str | None, words: str
) -> None:
    site = install(tmp_path / "site")
    place = site / "tapml_abacus" / file
    if text is None:
        place.unlink()
    else:
        place.write_text(text)
    ended = tapml_in(site, "devices", "--json")
    found = json.loads(ended.stdout)
    assert {device["platform"] for device in found["devices"]} >= {"cpu"}
    assert "the platform 'abacus' of tapml-abacus 1.0 cannot be used" in found["problems"]["abacus"]
    assert words in found["problems"]["abacus"]
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("text", ["", 'FUNCTION_KIND = "npu"\n'])
def test_a_package_that_says_no_form_of_operators_is_named(site: Path, text: str) -> None:
    (site / "tapml_abacus" / "__init__.py").write_text(text)
    with pytest.raises(SetupError, match=r"FUNCTION_KIND is .*, not 'cpu' or 'gpu'"):
        platforms.function_kind("abacus")


def test_a_missing_package_is_said_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", {"rods": "tapml_rods"})))
    forget()
    with pytest.raises(SetupError, match="there is no package 'tapml_rods'"):
        platforms.load_driver_module("rods")
    assert "rods" not in platforms.kernel_languages()
    monkeypatch.undo()
    forget()
