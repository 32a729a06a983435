"""``tapml distributed fuzz`` and ``rerun``: generated models, clusters, and what a fix resolves."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tapml.cli.model_arguments import number, positive
from tapml.cli.setting_arguments import add_settings, listed
from tapml_targets.errors import EXIT_MISMATCH

if TYPE_CHECKING:
    from tapml.distributed.fuzzing.campaign import ModelResult
    from tapml.distributed.fuzzing.clusters import Cluster
    from tapml.runs.events import Event

_FUZZ_EPILOG: Final = """\
examples:
  tapml distributed fuzz found                           DDP and FSDP2, all kinds but dlrm
  tapml distributed fuzz found --engine torchrec --kind dlrm --models 20 --world 1,2,3,4,8
  tapml distributed fuzz found --engine ddp --kind chain --mixing --models 100
  tapml distributed fuzz found --with bug.py             what bug.py defines or changes holds

Ended with Ctrl-C or killed, the same command goes on where it was. Findings lie in
FOLDER/clusters, a folder for each kind, with a page and a script that shows it without tapml.
FOLDER/report.html has a map of models and settings.

exit codes:
  0 no finding
  1 a finding   2 usage, input or environment   130 interrupted
"""
_RERUN_EPILOG: Final = """\
examples:
  tapml distributed rerun found/clusters/1f0c9a77 --fix fix.py

A fix is a Python file that each job loads last: what it defines replaces the job's functions, and
what it changes in a library holds for the run.

exit codes:
  0 every finding is equal to one device with the fix
  1 some are not   2 usage, input or environment   130 interrupted
"""


def add_fuzz(commands: Any) -> None:
    """Register both commands."""
    fuzz: argparse.ArgumentParser = commands.add_parser(
        "fuzz",
        help="check generated models, and put findings together",
        description="Check generated models on ranks against one device, put findings that look\n"
        "alike together, and write each kind's smallest model and script.",
        epilog=_FUZZ_EPILOG,
    )
    fuzz.add_argument("folder", type=Path, metavar="FOLDER", help="for models and findings")
    add_settings(fuzz, engines="ddp,fsdp2", worlds="1,2,4")
    fuzz.set_defaults(engine=["ddp", "fsdp2"], world=[1, 2, 4])
    fuzz.add_argument(
        "--kind",
        type=listed("a list of kinds of models such as chain,cell", str),
        metavar="NAME,...",
        help="dlrm, bags, chain, cell, block (default: all that engines and libraries here take)",
    )
    fuzz.add_argument(
        "--models", type=positive, default=4, metavar="N", help="of each kind (default: 4)"
    )
    fuzz.add_argument(
        "--seed",
        type=number("a whole number", int, 0, 2**63),
        default=0,
        metavar="N",
        help="another gives other models (default: 0)",
    )
    fuzz.add_argument(
        "--samples", type=positive, metavar="N", help="of a batch (default: 2400 of tables, or 48)"
    )
    fuzz.add_argument(
        "--mixing", action="store_true", help="generate BatchNorm and dropout as well"
    )
    fuzz.add_argument(
        "--with", dest="patch", type=Path, metavar="FILE.py", help="a file every job loads last"
    )
    fuzz.add_argument(
        "--workers",
        default="",
        metavar="ADDRESS",
        help="check on the workers of a Dask scheduler: tcp://127.0.0.1:8786, or tls://HOST:8786",
    )
    fuzz.add_argument(
        "--shrink",
        type=number("a whole number", int, 0, 10000),
        default=40,
        metavar="N",
        help="smaller models to try for each kind of finding; 0 for none (default: %(default)s)",
    )
    fuzz.add_argument("--json", action="store_true", help="print JSON")
    fuzz.set_defaults(run=run_fuzz)
    rerun: argparse.ArgumentParser = commands.add_parser(
        "rerun",
        help="count what a fix resolves of a kind of finding",
        description="Run all findings of a kind again with a fix, and count what it resolves.",
        epilog=_RERUN_EPILOG,
    )
    rerun.add_argument("cluster", type=Path, metavar="CLUSTER", help="a folder below clusters")
    rerun.add_argument("--fix", type=Path, required=True, metavar="FILE.py", help="the fix")
    rerun.add_argument("--json", action="store_true", help="print JSON")
    rerun.set_defaults(run=run_rerun)


def run_fuzz(arguments: argparse.Namespace) -> int:
    """Check generated models; 1 on a finding."""
    import msgspec

    from tapml.distributed.fuzzing.fuzz import fuzz
    from tapml.durable.strict_json import to_strict

    found = fuzz(
        arguments.folder,
        engines=arguments.engine,
        worlds=arguments.world,
        options=dict(arguments.set),
        kinds=arguments.kind or (),
        models=arguments.models,
        seed=arguments.seed,
        samples=arguments.samples,
        mixing=arguments.mixing,
        patch=arguments.patch,
        deadline_seconds=arguments.deadline,
        trials=arguments.shrink,
        workers=arguments.workers,
        watcher=_tell,
    )
    if arguments.json:
        plain = {"models": found.models, "clusters": found.clusters}
        print(json.dumps(to_strict(msgspec.to_builtins(plain)), indent=1, allow_nan=False))
    else:
        _print(found.models, found.clusters, found.place)
        print(f"report: {found.page}")
    return EXIT_MISMATCH if found.clusters else 0


def run_rerun(arguments: argparse.Namespace) -> int:
    """Run a cluster with a fix; 1 if a finding stays."""
    import msgspec

    from tapml.distributed.fuzzing.rerunning import rerun

    found = rerun(arguments.cluster, arguments.fix)
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(found), indent=1))
    else:
        for model, setting, verdict in found.settings:
            print(f"{model} under {setting}: {verdict}")
        total = found.resolved + found.remaining + found.changed
        print(
            f"\nthe fix resolves {found.resolved} of {total} findings; {found.remaining} are as "
            f"before, {found.changed} have changed"
        )
    return 0 if not found.remaining and not found.changed else EXIT_MISMATCH


def _tell(event: Event) -> None:
    """A line on stderr for each model and cluster."""
    from tapml.distributed.fuzzing.campaign import ModelChecked
    from tapml.distributed.fuzzing.report import ClusterWritten

    if isinstance(event, ModelChecked):
        told = event.result.failure or _counted(event.result)
        print(f"[{event.done}/{event.total}] {event.result.name}: {told}", file=sys.stderr)
    elif isinstance(event, ClusterWritten):
        print(f"{event.folder}: {event.cluster.signature}", file=sys.stderr)


def _counted(result: ModelResult) -> str:
    counts: dict[str, int] = {}
    for each in () if result.check is None else result.check.results:
        counts[str(each.outcome)] = counts.get(str(each.outcome), 0) + 1
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def _print(results: list[ModelResult], clusters: list[Cluster], place: Path) -> None:
    for each in clusters:
        print(f"{each.name}  {each.signature}")
        print(f"  {len(each.findings)} findings: {each.models} models, {each.settings} settings")
        if each.triggers:
            print(f"  triggers: {', '.join(each.triggers)}")
        if each.published:
            print(f"  largest rate of change: {', '.join(each.published[:3])}")
        if each.remedy:
            print(f"  remedy: {each.remedy}")
        sampled = "; ".join(f"{one.model} under {one.result.setting.name}" for one in each.sampled)
        print(f"  look at: {sampled}")
        print(f"  script: {place / each.name / 'script.py'}\n")
    runs = sum(len(each.check.results) for each in results if each.check is not None)
    failed = sum(bool(each.failure) for each in results)
    findings = sum(len(each.findings) for each in clusters)
    print(
        f"{len(results)} models, {runs} settings: {findings} findings of {len(clusters)} kinds"
        + (f"; {failed} models do not run on one device" if failed else "")
    )
