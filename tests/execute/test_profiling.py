"""What a profile adds up, and how a trace lays it out."""

from __future__ import annotations

from tapml.execute.profiling import TimedRun, chrome_trace, operator_times

RUNS = (
    TimedRun("prefill", 0.5, 0.25, (("add", 1000), ("matmul", 3000), ("add", 0))),
    TimedRun("decode", 0.75, 0.001, (("matmul", 500),)),
    TimedRun("decode", 0.8, 0.001, (("matmul", 1500),)),
)


def test_times_add_up_by_entry_and_operator_with_the_slowest_first() -> None:
    found = [(r.entry, r.operator, r.calls, r.nanoseconds, r.share) for r in operator_times(RUNS)]
    assert found == [
        ("prefill", "matmul", 1, 3000, 0.75),
        ("prefill", "add", 2, 1000, 0.25),
        ("decode", "matmul", 2, 2000, 1.0),
    ]


def test_a_device_without_a_clock_has_no_shares() -> None:
    (row,) = operator_times([TimedRun("decode", 0, 1, (("add", 0),))])
    assert row.share == 0


def test_operators_follow_each_other_from_the_beginning_of_their_run() -> None:
    events = [each for each in chrome_trace(RUNS, "GPU")["traceEvents"] if each["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"]) for e in events if e["args"]["run"] == 0] == [
        ("prefill", 500_000.0, 250_000.0),
        ("add", 500_000.0, 1.0),
        ("matmul", 500_001.0, 3.0),
        ("add", 500_004.0, 0.0),
    ]
    assert len({e["tid"] for e in events}) == 2
