"""``tapml serve`` over HTTP: a real package on OpenCL, OpenAI's API, and who is refused."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tapml.package.load import load_package
from tapml.serving.server import MAX_CONNECTIONS, Connections
from tapml.serving.turns import LeftError
from tests.offload.commands import Started, run_here, started
from tests.offload.sessions import FinishedSession
from tests.package.packages import add_tokenizer, pack

SECONDS = 120.0
PROMPT = "Ab c"


@dataclass(frozen=True)
class Serving:
    """A server in a process of its own."""

    process: Started
    port: int

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """One request: a POST if it has a body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        connection.request("GET" if body is None else "POST", path, content, given)
        answer = connection.getresponse()
        found = answer.status, dict(answer.headers), answer.read()
        connection.close()
        return found

    def json(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and content of an answer."""
        status, _, content = self.ask(path, body, **headers)
        return status, json.loads(content)

    def events(self, path: str, body: Any) -> list[Any]:
        """The events of a stream; the last one is the text that ends it."""
        status, headers, content = self.ask(path, body | {"stream": True})
        assert status == 200, content
        assert headers["Content-Type"] == "text/event-stream; charset=utf-8"
        *lines, end = re.findall(rb"data: (.*)\n\n", content)
        assert end == b"[DONE]"
        return [json.loads(line) for line in lines]

    @contextmanager
    def begun(self, more: str = "") -> Iterator[socket.socket]:
        """A long stream whose first token is there."""
        content = json.dumps({"prompt": PROMPT, "max_tokens": 60, "stream": True}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost:{self.port}\r\n{more}"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as connection:
            connection.sendall(head.encode() + content)
            assert connection.recv(12) == b"HTTP/1.1 200"
            yield connection

    def device_process(self) -> int:
        """The process that drives the device."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            # A thread of the server, and with it its file, may end meanwhile.
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):
                    for child in (task / "children").read_text().split():
                        if b"tapml_rpc" in Path(f"/proc/{child}/cmdline").read_bytes():
                            return int(child)
        raise AssertionError("no process drives a device")


@pytest.fixture(scope="module")
def package(finished: FinishedSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package that takes text and conversations."""
    folder = pack(finished, tmp_path_factory.mktemp("packages")).folder
    add_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def cache(finished: FinishedSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the session compiled is not compiled again."""
    return finished.copy_cache(tmp_path_factory.mktemp("compiled") / "cache")


@pytest.fixture(scope="module")
def serving(package: Path, cache: Path) -> Iterator[Serving]:
    """The package, served."""
    with started("serve", package, "--port", "0", "--waiting", "1", cache=cache) as process:
        yield Serving(process, port_of(process))


def port_of(process: Started) -> int:
    line = process.stdout.readline()
    found = re.search(r"at http://127\.0\.0\.1:(\d+)/v1 ", line)
    assert found, line + process.stderr.read()
    return int(found[1])


@pytest.fixture(scope="module")
def expected(package: Path) -> str:
    """What the package itself writes."""
    with load_package(package) as model:
        return model.generate(PROMPT, max_new_tokens=8)


def test_the_model_is_listed(serving: Serving) -> None:
    status, found = serving.json("/v1/models")
    assert (status, found["object"]) == (200, "list")
    (model,) = found["data"]
    assert serving.json(f"/v1/models/{model['id']}") == (200, model)
    assert serving.json("/v1/models/other")[0] == 404


def test_a_completion_is_what_the_package_writes(serving: Serving, expected: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "n": 1, "user": "somebody"}
    status, found = serving.json("/v1/completions", body)
    assert (status, found["object"]) == (200, "text_completion")
    (choice,) = found["choices"]
    assert (choice["text"], choice["finish_reason"]) == (expected, "length")
    assert found["usage"] == {"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12}
    ids = {"prompt": [33, 66, 0, 67], "max_tokens": 8}
    assert serving.json("/v1/completions", ids)[1]["choices"] == found["choices"]


def test_a_stream_has_the_same_text_and_then_ends(serving: Serving, expected: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": 8, "stream_options": {"include_usage": True}}
    *events, last, usage = serving.events("/v1/completions", body)
    assert len(events) > 1
    assert "".join(each["choices"][0]["text"] for each in events) == expected
    assert last["choices"][0]["finish_reason"] == "length"
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 8)
    assert len({each["id"] for each in [*events, last, usage]}) == 1


def test_a_conversation_goes_through_the_chat_template(serving: Serving) -> None:
    said = [{"role": "system", "content": "Hm"}, {"role": "user", "content": "Hi"}]
    parts = [said[0], {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    plain = serving.json("/v1/completions", {"prompt": "s: Hm/u: Hi/a:", "max_tokens": 6})[1]
    text = plain["choices"][0]["text"]
    for messages in (said, parts):
        body = {"messages": messages, "max_completion_tokens": 6}
        status, found = serving.json("/v1/chat/completions", body)
        assert (status, found["object"]) == (200, "chat.completion")
        assert found["choices"][0]["message"] == {"role": "assistant", "content": text}
    first, *rest = serving.events("/v1/chat/completions", {"messages": said, "max_tokens": 6})
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in rest) == text


def test_a_stop_ends_the_text_before_it(serving: Serving, expected: str) -> None:
    body = {"prompt": PROMPT, "max_tokens": 8, "stop": ["\x00", expected[3:5]]}
    (choice,) = serving.json("/v1/completions", body)[1]["choices"]
    cut = expected.index(expected[3:5])
    assert (choice["text"], choice["finish_reason"]) == (expected[:cut], "stop")
    streamed = serving.events("/v1/completions", body)
    assert "".join(each["choices"][0]["text"] for each in streamed) == expected[:cut]


def test_several_texts_have_their_places_and_the_prompt_counts_once(
    serving: Serving, expected: str
) -> None:
    assert serving.json("/health") == (200, {"status": "ok"})
    body = {"prompt": [PROMPT, "x"], "n": 2, "max_tokens": 8, "echo": True}
    status, found = serving.json("/v1/completions", body)
    texts = [each["text"] for each in found["choices"]]
    assert (status, [each["index"] for each in found["choices"]]) == (200, [0, 1, 2, 3])
    assert texts[:2] == [PROMPT + expected] * 2
    assert texts[2].startswith("x")
    assert found["usage"]["prompt_tokens"] == 5
    # Of the largest seed, too, each text has its own.
    drawn = {
        "prompt": PROMPT,
        "n": 2,
        "max_tokens": 8,
        "temperature": 5,
        "seed": (1 << 63) - 1,
    }
    first, second = serving.json("/v1/completions", drawn)[1]["choices"]
    assert first["text"] != second["text"]
    *events, _ = serving.events("/v1/completions", drawn | {"stream_options": {}})
    streamed = ["", ""]
    for each in events:
        streamed[each["choices"][0]["index"]] += each["choices"][0]["text"]
    assert streamed == [first["text"], second["text"]]


def test_the_probability_of_each_token_is_told(serving: Serving) -> None:
    body = {"prompt": PROMPT, "max_tokens": 4, "logprobs": 3}
    (choice,) = serving.json("/v1/completions", body)[1]["choices"]
    told = choice["logprobs"]
    # The most probable one is taken, and texts of equal tokens would be one key.
    for token, value, best in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert best[token] == value == max(best.values()) < 0
    assert told["text_offset"][0] == 0
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "top_logprobs": 2}
    assert serving.json("/v1/chat/completions", chat)[0] == 400
    chat["logprobs"] = True
    whole = serving.json("/v1/chat/completions", chat)[1]["choices"][0]["logprobs"]["content"]
    assert [len(each["top_logprobs"]) for each in whole] == [2] * 3
    assert whole[0]["bytes"] == list(whole[0]["token"].encode())
    streamed = [
        entry
        for event in serving.events("/v1/chat/completions", chat)
        for entry in (event["choices"][0].get("logprobs") or {"content": []})["content"]
    ]
    assert streamed == whole


def test_a_seed_repeats_a_text(serving: Serving) -> None:
    body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 5, "top_p": 0.9}
    first, again, other = (
        serving.json("/v1/completions", body | {"seed": seed})[1]["choices"] for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "the request cannot be used"),
        (b"[" * 100_000, 400, "the request cannot be used"),
        ({"max_tokens": 3}, 400, "missing required field `prompt`"),
        ({"prompt": ["a", 3]}, 400, "prompt: expected a text, token ids, or a list of texts"),
        ({"prompt": ""}, 400, "the prompt has no token"),
        ({"prompt": "a" * 1000}, 400, "shorten the prompt"),
        ({"prompt": [4000]}, 400, "4000"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": "a", "temperature": -1}, 400, "temperature: expected 0 to 100"),
        ({"prompt": "a", "n": 17}, 400, r"\$.n"),
        ({"prompt": ["a", "b"], "n": 9}, 400, "n: 18 texts in all, expected at most 16"),
        ({"prompt": "a", "best_of": 2}, 400, "best_of: this server does not do that, got 2"),
        ({"prompt": "a", "logprobs": 21}, 400, "logprobs"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias: 'x' is no token id"),
        ({"prompt": "a", "logit_bias": {"999": 1}}, 400, "999 is not in the vocabulary"),
        # Before the first text of a stream is written.
        (
            {"prompt": "a", "echo": True, "stream": True, "logit_bias": {"999": 1}},
            400,
            "999 is not in the vocabulary",
        ),
        ({"prompt": [[1], [9999]], "stream": True}, 400, "token 9999 is not in the vocabulary"),
        ({"prompt": "a", "stop": ["x"] * 5}, 400, "stop"),
        ({"prompt": "a", "model": "gpt"}, 404, "the model 'gpt' is not here: expected 'tiny-llama"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    serving: Serving, body: Any, status: int, said: str
) -> None:
    found, answer = serving.json("/v1/completions", body)
    assert found == status
    assert re.search(said, answer["error"]["message"]), answer
    assert "\n" not in answer["error"]["message"]


def test_a_conversation_that_the_template_refuses_is_said(serving: Serving) -> None:
    refused = {"messages": [{"role": "refused", "content": ""}]}
    status, found = serving.json("/v1/chat/completions", refused)
    assert (status, "no such role" in found["error"]["message"]) == (400, True)
    image = {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}
    status, found = serving.json("/v1/chat/completions", image)
    assert (status, "takes text alone" in found["error"]["message"]) == (400, True)


def test_pages_of_other_sites_and_large_bodies_are_refused(serving: Serving) -> None:
    body = {"prompt": "a"}
    assert serving.ask("/v1/completions", body, Host="evil.example")[0] == 421
    assert serving.ask("/v1/completions", body, Content_Type="text/plain")[0] == 415
    assert serving.ask("/v1/completions", b"{}", Content_Length="99999999")[0] == 413
    assert serving.ask("/v1/completions", b"{}", Content_Length="-1")[0] == 411
    assert serving.ask("/", None)[0] == 404
    assert serving.ask("/v1/embeddings", body)[0] == 404


def test_more_than_may_wait_are_told_to_come_again(serving: Serving) -> None:
    body = {"prompt": PROMPT, "max_tokens": 60}
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(serving.ask, "/v1/completions", body) for _ in range(12)]
        answers = [each.result() for each in asked]
    statuses = [status for status, _, _ in answers]
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) >= 2
    assert len({content for status, _, content in answers if status == 429}) <= 2
    texts = {json.loads(c)["choices"][0]["text"] for s, _, c in answers if s == 200}
    assert len(texts) == 1


def test_a_client_that_leaves_makes_room(serving: Serving, expected: str) -> None:
    with serving.begun():
        pass
    found = serving.json("/v1/completions", {"prompt": PROMPT, "max_tokens": 8})[1]
    assert found["choices"][0]["text"] == expected


def test_a_client_that_has_ended_its_side_gets_its_answer(serving: Serving, expected: str) -> None:
    content = json.dumps({"prompt": PROMPT, "max_tokens": 8}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost:{serving.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", serving.port), timeout=SECONDS) as connection:
        connection.sendall(head.encode() + content)
        connection.shutdown(socket.SHUT_WR)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 200
        assert json.loads(answer.read())["choices"][0]["text"] == expected


def test_silent_connections_give_way_the_oldest_first(serving: Serving) -> None:
    address = ("127.0.0.1", serving.port)
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(address, timeout=SECONDS))
            for _ in range(MAX_CONNECTIONS)
        ]
        for _ in range(2):
            assert serving.ask("/v1/models")[0] == 200
        assert silent[0].recv(1) == b""
        # The last one is still there, and is answered.
        silent[-1].sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert silent[-1].recv(8) == b"HTTP/1.1"


def test_who_is_answered_gives_no_place_away() -> None:
    places = Connections(1)
    (first, _), (second, _) = pairs = socket.socketpair(), socket.socketpair()
    with ExitStack() as stack:
        for one, other in pairs:
            stack.enter_context(one)
            stack.enter_context(other)
        assert places.admit(first)
        with places.answering(first):
            assert not places.admit(second)
        assert places.admit(second)
        with pytest.raises(LeftError), places.answering(first):
            pass
        places.leave(first)
        places.leave(second)
        assert places.admit(first)


def test_a_lost_device_is_a_503_and_the_next_request_opens_it_again(
    serving: Serving, expected: str
) -> None:
    os.kill(serving.device_process(), signal.SIGKILL)
    body = {"prompt": PROMPT, "max_tokens": 8}
    status, found = serving.json("/v1/completions", body)
    assert status == 503
    assert found["error"]["message"].startswith("the device was lost (")
    assert "\n" not in found["error"]["message"]
    status, found = serving.json("/v1/completions", body)
    assert (status, found["choices"][0]["text"]) == (200, expected)


def test_a_device_lost_in_a_stream_is_told_in_it(serving: Serving, expected: str) -> None:
    content = b""
    # A stream may be over before its device is killed: then another one is begun.
    for _ in range(20):
        with serving.begun() as connection:
            os.kill(serving.device_process(), signal.SIGKILL)
            content = connection.makefile("rb").read()
        body = {"prompt": PROMPT, "max_tokens": 8}
        while serving.ask("/v1/completions", body)[0] != 200:
            pass
        if b"[DONE]" not in content:
            break
    last = json.loads(content.rpartition(b"data: ")[2])
    assert last["error"]["message"].startswith("the device was lost (")
    found = serving.json("/v1/completions", body)[1]
    assert found["choices"][0]["text"] == expected


def test_off_loopback_it_takes_a_token(package: Path, tmp_path: Path) -> None:
    ended = run_here("serve", package, "--host", "0.0.0.0", "--port", "0", cache=tmp_path)
    assert ended.exit_code == 2
    assert "refusing to listen on 0.0.0.0: without a token" in ended.errors


def test_with_a_token_every_request_carries_it_and_ctrl_c_ends_it(
    package: Path, cache: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("a-secret-of-ours\n")
    token.chmod(0o600)
    arguments = ("serve", package, "--port", "0", "--token-file", token)
    with started(*arguments, cache=cache) as process:
        serving = Serving(process, port_of(process))
        for wrong in ({}, {"Authorization": "Bearer no"}, {"Authorization": "a-secret-of-ours"}):
            assert serving.ask("/v1/models", None, **wrong)[0] == 401
        right = {"Authorization": "Bearer a-secret-of-ours"}
        assert serving.ask("/v1/models", None, **right)[0] == 200
        device = serving.device_process()
        with serving.begun("Authorization: Bearer a-secret-of-ours\r\n"):
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert output.endswith("ended\n")
    assert "Traceback" not in errors
    assert not Path(f"/proc/{device}").exists()
