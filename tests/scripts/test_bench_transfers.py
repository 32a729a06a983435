from __future__ import annotations

from typing import Any

import pytest

from scripts.bench_transfers import (
    CURVE,
    PLAIN,
    RAW,
    TVM,
    WEB,
    WEBSOCKETS,
    ZMQ,
    main,
    rows_of,
    table,
)

RATES = {RAW: 2000.0, ZMQ: 1000.0, PLAIN: 1100.0, TVM: 50.0}


def test_plain_zeromq_is_judged_beside_the_raw_socket_where_both_ends_are_held_still() -> None:
    assert _of(PLAIN, RATES)["met"] is False
    assert _of(PLAIN, RATES | {PLAIN: 1200.0})["met"] is True


def test_as_the_scheduler_likes_its_share_is_shown_and_the_bar_of_tvm_judged() -> None:
    found = _of(PLAIN, RATES, decided=True)
    assert found["share"] == "55 % of raw socket"
    assert found["bar"] == "10 times TVM's RPC (500); raw socket not judged here (1200)"
    assert found["met"] is True
    assert _of(PLAIN, RATES | {PLAIN: 400.0}, decided=True)["met"] is False
    without_tvm = {who: rate for who, rate in RATES.items() if who != TVM}
    assert _of(PLAIN, without_tvm, decided=True)["met"] is None


def test_curve_and_websocket_keep_their_bars_whoever_places_them() -> None:
    rates = RATES | {CURVE: 150.0, WEBSOCKETS: 1000.0, WEB: 900.0}
    for decided in (False, True):
        assert _of(CURVE, rates, decided)["met"] is False
        assert _of(WEB, rates, decided)["met"] is True


def test_a_binding_that_could_not_be_opened_is_named() -> None:
    rates = {RAW: 2000.0}
    rows = list(rows_of("one core: upload 1 MB", rates, (RAW, ZMQ, PLAIN)))
    assert [row["name"] for row in rows[1:]] == [
        f"one core: upload 1 MB, {x}" for x in (ZMQ, PLAIN)
    ]
    assert all((row["value"], row["met"]) == ("not built", None) for row in rows[1:])


def test_beside_a_peer_that_could_not_be_opened_nobody_is_judged() -> None:
    rates = {PLAIN: 1000.0, WEB: 900.0}
    for decided in (False, True):
        rows = list(rows_of("here", rates, (RAW, PLAIN, WEBSOCKETS, WEB), decided))
        assert [row["met"] for row in rows] == [None] * 4


def test_several_runs_give_medians_and_ranges_of_the_shares() -> None:
    rows: list[Any] = []
    for up, down in ((70, 61), (90, 64), (80, 75)):
        for direction, percent in (("upload", up), ("download", down)):
            rates = {RAW: 1000.0, PLAIN: 10.0 * percent}
            rows += rows_of(f"one core: {direction} 1 MB", rates, rates)
    *_, line = table(rows)
    shares = "80 % (70 to 90) / 64 % (61 to 75)"
    assert line == f"| one core: {PLAIN}, of {RAW} | {shares} | - | - | - |"


def _of(who: str, rates: dict[str, float], decided: bool = False) -> dict[str, Any]:
    rows = {row["name"]: row for row in rows_of("here", rates, rates, decided)}
    return rows[f"here, {who}"]


@pytest.mark.parametrize("runs", ["0", "-1", "many"])
def test_no_run_is_no_bench(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--runs", runs])
    assert f"expected a number of runs from 1, got '{runs}'" in capsys.readouterr().err
