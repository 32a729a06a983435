"""What a report says about an operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tapml.compiler.compiler import Compiler
from tapml.session.report_data import FORMAT
from tapml_targets.library import CodeModule, Library
from tapml_targets.limits import Limits
from tapml_targets.target import Target
from tests.compiler.operators import softmax
from tests.offload.sessions import FinishedSession
from tests.session.reports import KERNEL, REASON, SUSPECT, small_report


def test_it_is_strict_json_of_the_third_format(tmp_path: Path) -> None:
    report = small_report(tmp_path)
    json.dumps(report, allow_nan=False)
    assert report["format"] == FORMAT == "tapml-report/3"


def test_every_attempt_is_told_once_with_what_changed(tmp_path: Path) -> None:
    moved, failed = small_report(tmp_path)["operators"]
    told = [(each["status"], each["kernel"], each["changed"]) for each in moved["attempts"]]
    assert told == [("fail", "k1", []), ("pass", "k2", ["the kernel"])]
    assert [each["stage"] for each in failed["attempts"]] == ["failure"]
    assert all(each["time"] > 1e9 for each in moved["attempts"])


def test_times_and_picture_are_told_once(tmp_path: Path) -> None:
    moved, failed = small_report(tmp_path)["operators"]
    assert moved["times"]["entries"]["e"]["calls"] == 4
    assert moved["picture"]["histogram"]["over"] == 1
    assert not {"times", "picture"} & set(moved["replay"])
    assert failed["times"] is None
    assert failed["picture"] is None


def test_who_made_the_kernel_and_both_sources_are_there(tmp_path: Path) -> None:
    moved, failed = small_report(tmp_path)["operators"]
    assert moved["written"] == "/kernels/"
    assert moved["again"] == ["the policy"]
    assert KERNEL in moved["source"]
    assert (failed["written"], failed["source"]) == ("", "")
    assert "reference_source" in failed


@pytest.mark.parametrize(
    ("platform", "line"), [("opencl", "__kernel void"), ("webgpu", "@compute @workgroup_size")]
)
def test_compiled_kernels_are_shown_in_the_language_of_any_platform(
    platform: str, line: str, tmp_path: Path
) -> None:
    library = compiled(platform, tmp_path)
    shown = small_report(tmp_path, library=library)["operators"][0]
    assert line in shown["source"]
    assert all(module.code.decode() in shown["source"] for module in library.modules)
    assert shown["binaries"] == []


@pytest.mark.parametrize("dialect", ["metal", "glsl", "cuda-c", "a language of tomorrow"])
def test_a_source_is_shown_whatever_its_language_is_called(dialect: str, tmp_path: Path) -> None:
    text = "kernel void f() {\n\treturn; // é\n}"
    shown = shown_modules(tmp_path, CodeModule(dialect, text.encode()))
    assert (shown["source"], shown["binaries"]) == (text, [])


def test_a_binary_is_named_and_not_shown(tmp_path: Path) -> None:
    processor = compiled("cpu", tmp_path)
    shown = small_report(tmp_path, library=processor)["operators"][0]
    size = len(processor.modules[0].code)
    assert shown["source"] == ""
    assert shown["binaries"] == [f"elf-shared-object, {size:,} bytes"]


@pytest.mark.parametrize("code", [b"\x03\x02\x23\x07", b"\xff\xfe", b"text\0"])
def test_a_binary_beside_a_source_is_named(code: bytes, tmp_path: Path) -> None:
    modules = (CodeModule("spirv", code), CodeModule("glsl", b"void main() {}"))
    shown = shown_modules(tmp_path, *modules)
    assert shown["source"] == "void main() {}"
    assert shown["binaries"] == [f"spirv, {len(code)} bytes"]


def compiled(platform: str, folder: Path) -> Library:
    """An operator's kernels for a platform."""
    with Compiler(folder / "cache") as compiler:
        return compiler.compile(
            softmax(), Target(platform, limits=Limits(max_binding_bytes=1 << 27))
        )


def shown_modules(folder: Path, *modules: CodeModule) -> dict[str, Any]:
    """The first operator of a report whose kernel has these modules."""
    library = Library("anything", modules, {}, {})
    shown: dict[str, Any] = small_report(folder, library=library)["operators"][0]
    return shown


def test_reasons_suspects_and_limits_are_those_of_the_worst(tmp_path: Path) -> None:
    moved, failed = small_report(tmp_path)["operators"]
    assert (moved["reason"], failed["suspects"]) == (REASON, [SUSPECT])
    assert moved["limits"] == {"degraded": 4.0, "fail": 16.0}
    assert moved["max_abs_error"] == 0.25


def test_places_that_differ_in_their_layer_only_are_one(tmp_path: Path) -> None:
    moved = small_report(tmp_path, layers=3)["operators"][0]
    assert [(each["module_path"], each["alike"]) for each in moved["origins"]] == [
        ("layers", 0),
        ("layers.0.norm", 2),
    ]
    assert moved["entries"] == {"e": 2 + 4 * 3}


def test_what_a_run_says_of_itself_is_there(tmp_path: Path) -> None:
    report = small_report(tmp_path)
    assert report["strategy"]["model_runs"] == 2
    assert report["moved_bytes"] == {"e": {"moved": 2048, "minimum": 1024}}
    assert report["verdicts"]["why"] == {"the policy": 1}
    assert report["session"] == str(tmp_path)


def test_a_finished_session_tells_all_of_it(finished: FinishedSession) -> None:
    report = finished.report
    for operator in report["operators"]:
        assert operator["picture"]["histogram"], operator["name"]
        assert operator["times"]["entries"], operator["name"]
        assert operator["attempts"], operator["name"]
        assert operator["parameters"], operator["name"]
        assert operator["reference_source"], operator["name"]
        assert operator["class"], operator["name"]
    assert report["strategy"]["model_runs"] <= report["strategy"]["promised"]
    assert all(each["moved"] >= each["minimum"] for each in report["moved_bytes"].values())


def test_what_the_device_was_measured_to_do_is_there(tmp_path: Path) -> None:
    found = small_report(tmp_path)["target"]["self_test"]
    assert found["traits"] == ["flushes float32 denormals"]
    assert [fact["name"] for fact in found["facts"]] == ["float32_denormal_results"] * 2
    assert all(each["device_effects"] == [] for each in small_report(tmp_path)["operators"])
