"""Options about who may come in are refused where they would change nothing."""

from __future__ import annotations

import pytest

from tapml_rpc.security.bind import check_effects
from tapml_rpc.supervisor.options import SupervisorOptions
from tapml_rpc.tracker.options import TrackerOptions
from tapml_targets.errors import InputError


@pytest.mark.parametrize("kind", [SupervisorOptions, TrackerOptions])
def test_a_list_of_clients_without_a_key_would_lock_nothing(
    kind: type[SupervisorOptions | TrackerOptions],
) -> None:
    with pytest.raises(
        InputError, match=r"--clients without --key: .* clients are not asked for theirs"
    ):
        check_effects(kind(clients="clients"))
    check_effects(kind(clients="clients", key="board.secret"))


@pytest.mark.parametrize("kind", [SupervisorOptions, TrackerOptions])
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tokens": "tokens"}, "--tokens"),
        ({"origins": ("https://page",)}, "--origin"),
        (
            {"certificate": "a.pem", "certificate_key": "b.pem"},
            "--certificate and --certificate-key",
        ),
    ],
)
def test_what_is_said_of_websockets_takes_one(
    kind: type[SupervisorOptions | TrackerOptions], options: dict[str, object], named: str
) -> None:
    with pytest.raises(InputError, match=f"{named} without --websocket: no WebSocket is served"):
        check_effects(kind(**options))  # type: ignore[arg-type]
    check_effects(kind(**options, websocket="wss://127.0.0.1:0"))  # type: ignore[arg-type]
