"""Settings: every combination, why some are pruned, and the paper's one by one."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tapml.cli.distributed_settings import audit_settings
from tapml.cli.main import main
from tapml.distributed.checking import check
from tapml.distributed.engine import Rule, find_engine
from tapml.distributed.results import Setting
from tapml.distributed.settings_space import candidates, settings_of
from tapml.isolate.pool import Pool
from tapml.runs.events import ignore
from tapml_targets.errors import InputError
from tests.distributed.conftest import PLAIN_JOB, CheckJob


def test_every_combination_is_listed_with_what_becomes_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["distributed", "settings", "--engine", "torchrec", "--json"]) == 0

    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 5 * 7 * 3 * 2 * 3 * 3 * 2
    valid = [row for row in rows if row["rule"] is None]
    trained = [
        row
        for row in valid
        if row["options"]["sharder"] != "quantized" and row["options"]["device"] == "cpu"
    ]
    assert len(trained) == 35 + 25
    served = [row for row in valid if row not in trained and row["options"]["device"] == "cpu"]
    formats = Counter(
        (row["options"]["sharding"], row["options"]["weights"], row["options"]["activations"])
        for row in served
    )
    assert formats == {
        (sharding, weights, activations): 5
        for sharding, weights in (
            *(("TW", weights) for weights in ("int8", "float16", "float32")),
            ("RW", "int8"),
            ("CW", "int8"),
        )
        for activations in ("float16", "float32")
    }
    assert all(row["reason"] for row in rows if not row["runs"])


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        (
            "ddp",
            {"hook": {"none", "allreduce", "fp16", "powersgd"}, "accumulation": {"1", "2", "4"}},
        ),
        ("ddp", {"compile": {"no", "aot_eager", "inductor"}}),
        ("fsdp2", {"saved_by": {"none", "1", "2", "4"}}),
        ("tensor_parallel", {"sequence": {"whole", "sharded"}}),
        ("pipeline", {"schedule": {"gpipe", "1f1b", "interleaved", "looped_bfs"}}),
        ("jax", {"mesh": {"data", "data+model"}}),
        ("hsdp", {}),
        ("zero", {}),
    ],
)
def test_every_engine_lists_its_values(engine: str, options: dict[str, set[str]]) -> None:
    listed = candidates(find_engine(engine))

    assert {each.setting.world for each in listed} == {1, 2, 3, 4, 8}
    for name, values in options.items():
        assert {each.setting.options[name] for each in listed} == values


def test_torchrec_that_is_missing_is_named_with_the_commands(
    check_job: CheckJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "tapml.distributed.engines.torchrec.settings"
    monkeypatch.setattr(f"{settings}.find_spec", lambda _: None)
    found = check_job(engines=["torchrec"], worlds=[2], options={"sharding": ["RW"]})

    assert {str(each.outcome) for each in found.results} == {"not run"}
    assert found.results[0].reason.startswith(
        "torchrec and fbgemm_gpu: pip install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0, and "
    )
    assert found.exit_code == 2


def test_the_77_and_24_settings_of_the_paper_are_listed_one_by_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["distributed", "settings", "--published", "--json", "--engine"]
    assert main([*command, "torchrec"]) == 0

    rows = json.loads(capsys.readouterr().out)
    here = Setting(engine="torchrec", world=1, options={"device": "cpu"})
    reason = find_engine("torchrec").settings.missing(here)
    assert len({row["setting"] for row in rows}) == 77
    kinds = Counter(row["setting"].split(" ")[0] for row in rows)
    assert kinds == {"one": 6, "EBCS": 35, "EBS": 20, "quantized": 16}
    assert sum("gpu" in row["setting"] for row in rows) == 46
    lacking = {row["reason"] for row in rows if "gpu" in row["setting"]}
    assert len(lacking) == 1 and lacking.pop().startswith("a GPU and NCCL")
    assert {row["reason"] for row in rows if "gpu" not in row["setting"]} == {reason}

    assert main([*command, "mirrored"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len({row["setting"] for row in rows}) == 24
    assert sum("quantize_8_8" in row["setting"] for row in rows) == 12


def test_values_that_contradict_each_other_are_refused_by_the_rule() -> None:
    engine = find_engine("torchrec")
    asked = {"kernel": ("dense",), "sharding": ("RW",)}

    assert {each.rule is None for each in candidates(engine, [2], asked)} == {False}
    with pytest.raises(InputError, match="no valid setting"):
        settings_of(engine, [2], asked)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"colour": ["red"]}, "no parameter 'colour'"), ({"sharding": ["XY"]}, "sharding can be TW")],
)
def test_an_unknown_parameter_or_value_is_refused(
    check_job: CheckJob, options: dict[str, list[str]], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        check_job(engines=["torchrec"], options=options)


def test_a_setting_that_cannot_run_here_says_what_is_missing(check_job: CheckJob) -> None:
    found = check_job(engines=["torchrec"], worlds=[1], options={"device": ["gpu"]})

    assert {str(each.outcome) for each in found.results} == {"not run"}
    assert "a GPU and NCCL" in found.results[0].reason
    assert found.exit_code == 2


def test_an_audit_runs_what_rules_prune_and_names_one_that_is_out_of_date(
    warm_pool: Pool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = tmp_path / "job.py"
    job.write_text(PLAIN_JOB + "\nWORLDS = [1, 2]\n")
    monkeypatch.setattr(
        "tapml.distributed.listing.check",
        lambda job, pool, **asked: check(job, pool=warm_pool, **asked),
    )
    audit = partial(audit_settings, ["hsdp"], {}, job, ignore, as_json=True)
    assert audit() == 0
    (pruned,) = json.loads(capsys.readouterr().out)
    assert (pruned["setting"], pruned["rule"]) == ("hsdp x 1", "hybrid-has-pairs")
    assert pruned["outcome"] != "equal"
    assert pruned["reason"]

    rule = Rule("no-pairs", "one pair alone", lambda setting: setting.world == 2)
    monkeypatch.setattr(find_engine("hsdp").settings, "RULES", (rule,))
    assert audit() == 1
    (stale,) = json.loads(capsys.readouterr().out)
    assert (stale["setting"], stale["rule"], stale["outcome"]) == ("hsdp x 2", "no-pairs", "equal")
