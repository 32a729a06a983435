"""The conformance suite of Python's servers, spoken to a page through its tracker, on raw sockets.

What asks for kernels in OpenCL is left out, and a message over the bound, which its relay refuses.
"""

# ruff: noqa: F401

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tapml_rpc.tracker.request import request_device
from tests.rpc.conformance.clients import Client
from tests.rpc.conformance.conftest import Connect, client
from tests.rpc.conformance.test_flow import (
    test_a_blob_is_put_once_attached_and_pasted,
    test_a_long_read_comes_in_pieces_of_a_bounded_size,
    test_a_long_read_of_a_program_says_where_it_belongs,
    test_a_program_is_run_by_its_name,
    test_a_program_pastes_what_each_run_says_of_a_blob,
    test_a_session_of_nobody_is_refused,
    test_goodbye_on_either_connection_frees_all,
    test_the_largest_chunk_is_taken,
    test_without_credit_nothing_more_comes_while_control_is_answered,
)
from tests.rpc.conformance.test_messages import (
    test_a_batch_out_of_order_is_refused_and_disturbs_nothing,
    test_a_command_of_the_wrong_form_poisons_as_any_other,
    test_a_failure_poisons_its_session_until_reset_and_free_always_works,
    test_a_header_that_is_none_or_too_long_is_refused_in_words,
    test_a_hello_that_cannot_be_taken_is_refused_in_words,
    test_a_malformed_message_is_refused_by_its_number,
    test_a_stale_epoch_means_a_restarted_device,
    test_a_welcome_states_all_that_is_granted,
    test_batches_are_sent_ahead_and_answered_in_their_order,
    test_payloads_come_and_go_at_multiples_of_eight,
    test_the_golden_conversation_is_answered_with_the_golden_answers,
    test_unknown_keys_are_ignored_everywhere,
)
from tests.web.pages import NAME, DevicePage


@pytest.fixture(scope="module")
def binding() -> str:
    return "websocket"


@pytest.fixture(scope="module")
def connect(shown: DevicePage) -> Iterator[Connect]:
    """Sessions under one lease."""
    with request_device(shown.tracker.address, name=NAME) as lease:
        line = {"websocket": shown.tracker.websocket}
        yield partial(Client, line, "websocket", lease.token)


@pytest.fixture(scope="module")
def shared(connect: Connect) -> Iterator[Client]:
    with connect(versions=[7, 3], features=["later"], later={"a": [1, None]}) as session:
        yield session
