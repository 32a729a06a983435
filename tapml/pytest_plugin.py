"""The pytest plug-in: carved tests as pytest tests, on any device, and comparisons of backends.

    pytest tests/carved --tapml-device opencl:0 --tapml-device opencl:1 --junitxml report.xml

It is loaded by every pytest of the environment, so nothing but the standard library and pytest is
imported before a test asks for a device. A result of its own for each verdict: *pass* passes,
*degraded* and *fail* fail, and *not run* is skipped with its reason, for it is never a pass.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tapml_targets.platforms import DEFAULT_PLATFORM

if TYPE_CHECKING:
    from tapml.comparing.result import Comparison
    from tapml.distributed.results import Check
    from tapml.export.exported import ExportReplayer
    from tapml.replaying.results import ReplayResult
    from tapml.verdicts.policy import Policy
    from tapml_rpc.client import Session

REQUIRE_DEVICES: Final = "TAPML_REQUIRE_DEVICES"
_POLICY: Final[pytest.StashKey[Policy]] = pytest.StashKey()

__all__ = [
    "carved_cases",
    "tapml_compare",
    "tapml_device",
    "tapml_distributed",
    "tapml_distributed_compare",
    "tapml_replay",
]


def carved_cases(file: str) -> list[str]:
    """Ids of the tests and probes of an exported test file, for ``pytest.mark.parametrize``.

    Parameters
    ----------
    file
        The test file, ``__file__``; ``cases.json`` beside it lists its tests.

    Raises
    ------
    InputError
        If the folder is no exported one, or lists no such file.
    """
    from tapml.export.cases import read_cases
    from tapml_targets.errors import InputError

    path = Path(file)
    listed = read_cases(path.parent).files.get(path.name)
    if listed is None:
        raise InputError(f"{path.parent} lists no tests for {path.name}: export the suite again")
    return [*listed.tests, *listed.probes]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, in their own group."""
    group = parser.getgroup("tapml", "carved tests on a device (tapml)")
    group.addoption(
        "--tapml-device",
        action="append",
        default=None,
        metavar="NAME",
        help=f"device to run carved tests on: {DEFAULT_PLATFORM}, {DEFAULT_PLATFORM}:1, cpu, "
        "a server's address, tracker:NAME, browser; may be given several times "
        f"(default: {DEFAULT_PLATFORM})",
    )
    group.addoption(
        "--tapml-policy",
        default=None,
        metavar="FILE",
        help="a TOML file with the limits of the verdicts (default: the calibrated ones)",
    )
    group.addoption(
        "--tapml-repro",
        default=None,
        metavar="FOLDER",
        help="write a folder for each failure that replays alone: `tapml replay FOLDER/...`",
    )
    group.addoption(
        "--tapml-accept",
        action="store_true",
        help="comparisons of backends (tapml_compare): accept what is found, write the baselines",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check names of devices, read the policy: a mistake in them ends pytest before any test.

    Raises
    ------
    pytest.UsageError
        If a device has a name that none can have, or the file cannot be read or is no policy.
    """
    devices, file = config.getoption("--tapml-device"), config.getoption("--tapml-policy")
    if not devices and file is None:
        return
    from tapml.devices.reach import check_spec, is_remote
    from tapml_targets.errors import InputError
    from tapml_targets.ranking import parse_device

    try:
        for device in devices or ():
            check_spec(device)
            if not is_remote(device):
                parse_device(device)
    except InputError as error:
        raise pytest.UsageError(f"--tapml-device: {error}") from None
    if file is None:
        return
    from tapml.verdicts.policy_file import read_policy

    try:
        config.stash[_POLICY] = read_policy(Path(file))
    except InputError as error:
        raise pytest.UsageError(f"--tapml-policy: {error}") from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that needs a device runs on each of those asked for, one device after another."""
    if "tapml_device" in metafunc.fixturenames:
        devices = metafunc.config.getoption("--tapml-device") or [DEFAULT_PLATFORM]
        devices = list(dict.fromkeys(devices))
        metafunc.parametrize("tapml_device", devices, indirect=True, scope="session")


@pytest.fixture(scope="session")
def tapml_device(request: pytest.FixtureRequest) -> Iterator[Session]:
    """An open session with the device in hand, one per device for all tests.

    Where the device is absent its tests are skipped with the reason, or fail if
    ``TAPML_REQUIRE_DEVICES=1`` says that there must be one.
    """
    from tapml.devices.reach import open_device
    from tapml_targets.errors import NoSuchDeviceError

    try:
        session = open_device(request.param)
    except NoSuchDeviceError as error:
        if os.environ.get(REQUIRE_DEVICES) == "1":
            pytest.fail(f"{error}; {REQUIRE_DEVICES}=1 says there must be one", pytrace=False)
        pytest.skip(f"not run: {error}")
    with session:
        yield session


@pytest.fixture(scope="session")
def _tapml_replayer(
    request: pytest.FixtureRequest, tapml_device: Session
) -> Iterator[ExportReplayer]:
    """What replays exported tests on the device in hand."""
    from tapml.export.exported import ExportReplayer
    from tapml.verdicts.policy import Policy

    policy = request.config.stash.get(_POLICY, None) or Policy()
    with ExportReplayer(tapml_device, policy) as replayer:
        yield replayer


@pytest.fixture
def tapml_replay(
    request: pytest.FixtureRequest, _tapml_replayer: ExportReplayer
) -> Callable[[str], None]:
    """Replays one carved test by its id, and fails, skips or passes by its verdict.

    Status, ratio, operator and device go to JUnit as properties of the test.
    """
    from tapml.durable.strict_json import to_strict
    from tapml_targets.errors import DeviceLostError

    path = request.path

    def record(name: str, value: object) -> None:
        # What `record_property` does, without its warning about pytest's default JUnit family.
        request.node.user_properties.append((f"tapml_{name}", value))

    def replay(case: str) -> None:
        __tracebackhide__ = True
        try:
            result = _tapml_replayer.replay(path.parent, path.name, case)
        except DeviceLostError as error:
            record("status", "lost")
            pytest.fail(f"device lost: {error}", pytrace=False)
        verdict, device = result.verdict, _tapml_replayer.session.device
        record("status", verdict.status)
        record("ratio", to_strict(round(verdict.worst_ratio, 6)))
        record("operator", result.operator)
        record("device", device.name)
        record("driver", f"{device.vendor_platform} {device.driver_version}")
        if verdict.status == "not run":
            pytest.skip(f"not run: {verdict.reason}")
        if verdict.status != "pass":
            folder = request.config.getoption("--tapml-repro")
            pytest.fail(_failure(_tapml_replayer, path, result, folder), pytrace=False)

    return replay


def _failure(replayer: ExportReplayer, file: Path, result: ReplayResult, folder: str | None) -> str:
    """What a person reads: the verdict, where the errors are, and how to see it again."""
    verdict, device = result.verdict, replayer.session.device
    lines = [
        f"{verdict.status}: operator {result.operator} on {device.name} ({device.vendor_platform} "
        f"{device.driver_version}), test {result.test}",
        verdict.reason,
    ]
    lines += [
        f"{each.name}: {each.reason}"
        for each in verdict.outputs
        if each.status != "pass" and each.reason not in verdict.reason
    ]
    if folder is None:
        lines.append("--tapml-repro FOLDER writes a folder that replays this failure alone")
    else:
        lines.append(_write_repro(replayer, file, result, Path(folder)))
    return "\n".join(lines)


def _write_repro(replayer: ExportReplayer, file: Path, result: ReplayResult, folder: Path) -> str:
    from tapml.replaying.failure import Failure
    from tapml.repro.writing import write_repro

    library = replayer.kernels(file.parent, file.name)
    if library is None or not result.verdict.outputs:
        return "no repro folder: no kernel ran"
    device = replayer.session.device
    plain = re.sub(r"[^0-9A-Za-z]+", "_", f"{result.test}_{device.platform}_{device.index}")
    failure = Failure(
        operator=replayer.operator(file.parent, file.name),
        result=result,
        library=library,
        device=device,
        expectation=replayer.expectations(file.parent).appeal(result.case),
        policy=replayer.policy,
    )
    written = write_repro(folder / file.stem / plain, failure)
    return f"repro: tapml replay {written}"


@pytest.fixture(scope="module")
def tapml_distributed() -> Iterator[Callable[..., Check]]:
    """Checks a job as :func:`tapml.distributed.check` does, and fails unless all is equal.

    The tests of a module share one process that has PyTorch imported.
    """
    from tapml.distributed.checking import check, open_pool

    with open_pool() as pool:

        def run(job: str | os.PathLike[str], **options: Any) -> Check:
            __tracebackhide__ = True
            return _equal(check(job, pool=pool, **options))

        yield run


def _equal(found: Check) -> Check:
    """The check, if every setting is equal to one device; else the test fails with the mistakes."""
    __tracebackhide__ = True
    wrong = [
        f"{each.setting.name}: {each.outcome}: {each.reason} {each.mistake}".strip()
        for each in found.results
        if each.outcome != "equal"
    ]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)
    return found


@pytest.fixture(scope="session")
def tapml_distributed_compare() -> Callable[..., Check]:
    """Compares recordings as :func:`tapml.distributed.compare` does, and fails if they differ."""
    from tapml.distributed.recorded_runs import compare

    def run(*folders: str | os.PathLike[str], **options: Any) -> Check:
        __tracebackhide__ = True
        return _equal(compare(*folders, **options))

    return run


@pytest.fixture
def tapml_compare(request: pytest.FixtureRequest) -> Callable[..., Comparison]:
    """Compares backends as :func:`tapml.compare` does, and fails for every pair that differs.

    ``baseline=FILE``, beside the test's own file unless absolute, holds what is accepted, as that
    of ``tapml compare --baseline``; ``pytest --tapml-accept`` writes it. Other arguments are those
    of :func:`tapml.compare`; the result is the comparison.
    """

    def run(*arguments: Any, baseline: str | os.PathLike[str] = "", **options: Any) -> Comparison:
        __tracebackhide__ = True
        from tapml.comparing.baseline import new_findings, read_baseline, write_baseline
        from tapml.comparing.run import compare

        file = request.path.parent / baseline if baseline else None
        writes = file is not None and request.config.getoption("--tapml-accept")
        hint = f"`pytest --tapml-accept` writes {file} with what is found today"
        if file is not None and not writes and not file.exists():
            pytest.fail(f"there is no {file}; {hint}", pytrace=False)
        accepted = read_baseline(file) if file is not None and not writes else None
        comparison = compare(*arguments, **options)
        for pair in comparison.pairs:
            name = f"tapml_{' / '.join(pair.backends)}"
            said = f"{pair.status} {pair.layer} {pair.blamed}".strip()
            request.node.user_properties.append((name, said))
        if file is not None and writes:
            write_baseline(comparison, file)
        elif lines := new_findings(comparison, accepted):
            if file is not None:
                lines.append(hint)
            pytest.fail("\n".join(lines), pytrace=False)
        return comparison

    return run
