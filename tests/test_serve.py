"""Servers on loopback: OpenAI's client, Triton's client, and clients that are slow, gone, wrong or too large."""

from __future__ import annotations

import importlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import luminal
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.ir import Graph, input_
from luminal.core.types import f32
from luminal.llm import tokens
from luminal.llm.generate import Generator, Options
from luminal.llm.sampling import Sampling
from luminal.llm.tokens import Tokenizer
from tests.compiled_support import compiled_graph
from tests.language_support import Array, Bigrams, table, write_folder

MISSING = "not installed: pip install 'luminal[serve,test]'"
httpx, openai, uvicorn, _, _ = (
    pytest.importorskip(package, reason=f"{package} is {MISSING}")
    for package in ("httpx", "openai", "uvicorn", "starlette", "prometheus_client")
)
inference = importlib.import_module("luminal.llm.serve.inference")
language_model = importlib.import_module("luminal.llm.serve.app").language_model
Limits = importlib.import_module("luminal.llm.serve.http").Limits
heads = importlib.import_module("luminal.llm.serve.heads")
HEAD = 0.7  # seconds that the head of a request may take

TABLE = table() / 3
USER = [{"role": "user", "content": "Hello"}]


class Slow(Bigrams):
    """It takes a moment for each step, as a model does; ``fails`` makes the next step raise."""

    fails = False
    pause = 0.01

    def decode(self, given: Mapping[int, int]) -> None:
        time.sleep(self.pause)
        if self.fails:
            self.fails = False
            raise RuntimeError("the device is gone")
        super().decode(given)


class Served:
    """A server that listens."""

    def __init__(self, server: Any, thread: threading.Thread) -> None:
        self.server, self.thread = server, thread
        self.port: int = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def counted(self, name: str) -> float:
        """What the metrics say of ``name``."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return float(next(line.split()[-1] for line in lines if line.startswith(f"luminal_{name} ")))

    def until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.01)


@contextmanager
def served(app: Any) -> Iterator[Served]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", http=heads.timed(HEAD)))
    thread = threading.Thread(target=server.run)
    thread.start()
    end = time.monotonic() + 20
    while not server.started and time.monotonic() < end:
        time.sleep(0.01)
    assert server.started
    try:
        yield Served(server, thread)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokens.load(write_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
def model() -> Slow:
    return Slow(TABLE, slots=2, context=400)


@pytest.fixture
def service(model: Slow, tokenizer: Tokenizer) -> Iterator[Served]:
    limits = Limits(body=20_000, prompt=300, waiting=4, choices=4, body_seconds=0.5, seconds=30)
    with served(language_model("bigrams", model, tokenizer, limits)) as found:
        yield found


def alone(tokenizer: Tokenizer, prompt: list[int], **options: Any) -> str:
    """What the loop makes of a prompt without a server."""
    pieces = Generator(Bigrams(TABLE, 2, 400), tokenizer).stream(prompt, Options(**options))
    return "".join(piece.text for piece in pieces)


# ---- OpenAI's client -------------------------------------------------------------------------------------------------


def test_a_chat_is_answered_whole_and_in_parts(service: Served, tokenizer: Tokenizer) -> None:
    asked: dict[str, Any] = {"model": "bigrams", "messages": USER, "max_tokens": 30, "seed": 5, "temperature": 0.7}
    whole = service.client.chat.completions.create(**asked)
    prompt = tokenizer.chat_tokens(USER)
    text = alone(tokenizer, prompt, max_tokens=30, sampling=Sampling(0.7, seed=5))
    assert whole.choices[0].message.content == text and whole.choices[0].message.role == "assistant"
    assert whole.object == "chat.completion" and whole.model == "bigrams" and whole.usage is not None
    assert whole.usage.prompt_tokens == len(prompt) and 0 < whole.usage.completion_tokens <= 30
    parts = list(service.client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].delta.content or "" for part in parts[:-1]) == text
    assert parts[0].choices[0].delta.role == "assistant" and len(parts) > 10
    assert [part.choices[0].finish_reason for part in parts[:-1]][-1] == whole.choices[0].finish_reason
    assert parts[-1].choices == [] and parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens
    details = parts[-1].usage.prompt_tokens_details
    assert details is not None and details.cached_tokens == len(prompt) - 1


def test_completions_are_those_of_each_prompt(service: Served, tokenizer: Tokenizer) -> None:
    own = tokenizer.encode("world")
    found = service.client.completions.create(
        model="bigrams", prompt=["Hello", "world"], max_tokens=12, n=2, seed=3, extra_body={"top_k": 50}
    )
    texts = [
        alone(tokenizer, prompt, max_tokens=12, sampling=Sampling(1.0, top_k=50, seed=3 + number))
        for prompt in (tokenizer.encode("Hello"), own) for number in range(2)
    ]  # fmt: skip
    assert [choice.text for choice in found.choices] == texts and len(set(texts)) == 4
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    by_tokens = service.client.completions.create(model="bigrams", prompt=own, max_tokens=12, temperature=0, echo=True)
    assert by_tokens.choices[0].text == "world" + alone(tokenizer, own, max_tokens=12)
    parts = list(
        service.client.completions.create(model="bigrams", prompt=own, max_tokens=12, temperature=0, stream=True)
    )
    assert "".join(part.choices[0].text for part in parts) == alone(tokenizer, own, max_tokens=12)


def test_stops_biases_and_logprobs_are_heard(service: Served, tokenizer: Tokenizer) -> None:
    asked: dict[str, Any] = {"model": "bigrams", "prompt": "Hello", "temperature": 0, "max_tokens": 20}
    text = service.client.completions.create(**asked).choices[0].text
    cut = service.client.completions.create(**asked, stop=[text[5:8]]).choices[0]
    assert cut.text == text[: text.index(text[5:8])] and cut.finish_reason == "stop"
    forced = service.client.completions.create(**{**asked, "max_tokens": 3}, logit_bias={"77": 100})
    assert forced.choices[0].text == tokenizer.decode([77, 77, 77])
    shown = service.client.chat.completions.create(
        model="bigrams", messages=USER, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    content = shown.choices[0].logprobs and shown.choices[0].logprobs.content
    assert content is not None and len(content) == 4
    for entry in content:
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0 and len(entry.top_logprobs) == 3
    old = service.client.completions.create(**{**asked, "max_tokens": 4}, logprobs=2).choices[0].logprobs
    assert old is not None and old.text_offset is not None and old.text_offset[0] == 0
    assert old.tokens is not None and len(old.tokens) == 4


def test_an_answer_fits_a_schema(service: Served) -> None:
    pytest.importorskip("llguidance", reason="no llguidance is installed, which constraints on answers need")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}},
              "required": ["n"], "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    found = service.client.chat.completions.create(
        model="bigrams", messages=USER, response_format=form, max_tokens=100, seed=1
    )  # fmt: skip
    assert 0 <= json.loads(found.choices[0].message.content or "")["n"] <= 99


def test_models_and_health(service: Served) -> None:
    assert [found.id for found in service.client.models.list()] == ["bigrams"]
    assert service.client.models.retrieve("bigrams").id == "bigrams"
    with pytest.raises(openai.NotFoundError):
        service.client.models.retrieve("other")
    assert httpx.get(f"{service.url}/health").json() == {"status": "ok"}
    service.client.completions.create(model="bigrams", prompt="a", max_tokens=2)
    assert service.counted("generated_tokens_total") >= 2


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"model": "other"}, 404, "there is no model 'other': there is 'bigrams'"),
    ({"messages": []}, 400, "messages: expected a list of messages"),
    ({"messages": [{"role": "user", "content": 3}]}, 400, "messages: expected a text as the content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "the model reads nothing else"),
    ({"messages": [{"content": "a"}]}, 400, "messages: expected a role"),
    ({"messages": [{"role": "system", "content": "a"}]}, 400, "no system messages here"),
    ({"messages": [{"role": "user", "content": "ab " * 400}]}, 400, "expected at most 300"),
    ({"max_tokens": 0}, 400, "max_tokens: expected 1 or more"),
    ({"max_tokens": "4"}, 400, 'max_tokens: expected an integer, found "4"'),
    ({"temperature": -1}, 400, "temperature: expected a number, at least 0"),
    ({"temperature": True}, 400, "temperature: expected a number"),
    ({"top_p": 2}, 400, "top_p: expected a number"),
    ({"n": 5}, 400, "n: expected 1 .. 4"),
    ({"stop": [1]}, 400, "stop: expected a text or a list of texts"),
    ({"stop": ""}, 400, "stop: expected texts that are not empty"),
    ({"stop": ["a"] * 17}, 400, "stop: expected at most 16 texts of at most 1000 letters"),
    ({"stop": "a" * 1001}, 400, "stop: expected at most 16 texts"),
    ({"logit_bias": {"a": 1}}, 400, "logit_bias: expected a number for each token"),
    ({"logit_bias": {"600": 1}}, 400, "bias: token 600 is none of the 600 tokens"),
    ({"response_format": {"type": "xml"}}, 400, "response_format: expected the type text"),
    ({"top_logprobs": 3}, 400, "top_logprobs: expected 0 .. 20, and logprobs true"),
    ({"tools": [{"type": "function"}]}, 400, "the field 'tools' is not supported"),
    ({"seed": 2**70}, 400, "seed: expected an integer"),
    ({"stream": "yes"}, 400, "stream: expected true or false"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_make_no_sense_are_refused(service: Served, stream: bool) -> None:
    for changes, status, message in WRONG:
        asked = {"model": "bigrams", "messages": USER, "max_tokens": 4, "stream": stream, **changes}
        answer = httpx.post(f"{service.url}/v1/chat/completions", json=asked)
        assert answer.status_code == status and message in answer.json()["error"]["message"], (changes, answer.text)
    assert service.client.chat.completions.create(model="bigrams", messages=USER, max_tokens=1).choices


# ---- many clients ----------------------------------------------------------------------------------------------------


def test_answers_at_once_are_what_they_are_alone(model: Slow, tokenizer: Tokenizer) -> None:
    """Six clients for two slots: each gets its own answer, and steps serve two at a time."""

    def asked(number: int) -> str | None:
        found = service.client.chat.completions.create(
            model="bigrams", messages=[{"role": "user", "content": f"Hello {number}"}], max_tokens=20, seed=number
        )
        return found.choices[0].message.content

    with served(language_model("bigrams", model, tokenizer)) as service, ThreadPoolExecutor(6) as pool:
        texts = list(pool.map(asked, range(6)))
    for number, text in enumerate(texts):
        prompt = tokenizer.chat_tokens([{"role": "user", "content": f"Hello {number}"}])
        assert text == alone(tokenizer, prompt, max_tokens=20, sampling=Sampling(1.0, seed=number))
    assert sum(count == 2 for name, count in model.steps if name == "decode") > 20


def test_more_than_may_wait_are_told_to_come_again(service: Served) -> None:
    def asked(number: int) -> int:
        body = {"prompt": "a", "max_tokens": 40, "ignore_eos": True}
        return httpx.post(f"{service.url}/v1/completions", json=body, timeout=60).status_code

    with ThreadPoolExecutor(12) as pool:
        statuses = sorted(pool.map(asked, range(12)))
    assert set(statuses) == {200, 429} and 6 <= statuses.count(200) <= 11
    assert asked(0) == 200


def opened(service: Served, path: str, body: Mapping[str, Any], receive: int = 0) -> socket.socket:
    """A connection on which a request was sent, by hand."""
    text = json.dumps(body).encode()
    made = socket.socket()
    if receive:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    made.connect(("127.0.0.1", service.port))
    made.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
    return made


LONG = {"prompt": "a", "max_tokens": 380, "ignore_eos": True, "stream": True, "temperature": 0}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_frees_its_slot(service: Served, model: Slow, stream: bool) -> None:
    model.pause = 0.02
    gone = [opened(service, "/v1/completions", {**LONG, "stream": stream}) for _ in range(3)]
    service.until(lambda: service.counted("running") == 2 and service.counted("waiting") == 1)
    for connection in gone:
        connection.close()
    started = time.monotonic()
    assert service.client.completions.create(model="bigrams", prompt="b", max_tokens=3).choices[0].text is not None
    assert time.monotonic() - started < 5 < 380 * model.pause
    service.until(lambda: service.counted("cancelled_total") == 3)
    assert service.counted("running") == service.counted("waiting") == 0


def test_a_client_that_does_not_read_makes_nobody_wait(service: Served) -> None:
    idle = opened(service, "/v1/completions", {**LONG, "n": 2, "logprobs": 20}, receive=1024)
    for _ in range(3):
        found = service.client.completions.create(model="bigrams", prompt="b", max_tokens=5)
        assert found.usage is not None
    service.until(lambda: service.counted("running") == 0)
    content = b""
    while not content.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
        part = idle.recv(1 << 16)
        assert part
        content += part
    assert content.count(b"data: ") >= 2 * 380  # nothing of it was lost
    idle.close()


def test_bodies_that_are_late_large_or_wrong_are_refused(service: Served) -> None:
    url = f"{service.url}/v1/completions"
    large = b'{"prompt": "' + b"a" * 30_000 + b'"}'

    def chunks() -> Iterator[bytes]:
        yield from (large[at : at + 1000] for at in range(0, len(large), 1000))

    assert httpx.post(url, content=large).status_code == 413
    assert httpx.post(url, content=chunks()).status_code == 413
    for content in (b"", b"{", b"[1]", b"\xff\xfe", b"nonsense", b'{"a": NaN}', b"[" * 9000):
        answer = httpx.post(url, content=content)
        assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"
    late = socket.create_connection(("127.0.0.1", service.port))
    late.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n{"prompt')
    assert late.recv(100).startswith(b"HTTP/1.1 408")
    late.close()
    garbage = socket.create_connection(("127.0.0.1", service.port))
    garbage.sendall(b"\x16\x03\x01\x02\x00\x01\x00" * 20 + b"\r\n\r\n")
    assert garbage.recv(100).startswith(b"HTTP/1.1 400")
    garbage.close()
    assert httpx.get(url).status_code == 405 and httpx.get(f"{service.url}/nothing").status_code == 404
    assert "nothing is at GET /nothing: there are /health, " in httpx.get(f"{service.url}/nothing").text
    assert httpx.post(url, json={"prompt": "a", "max_tokens": 1}).status_code == 200


def test_heads_that_are_late_are_not_waited_for(service: Served) -> None:
    half = b"GET /health HTTP/1.1\r\nHost: "
    first = socket.create_connection(("127.0.0.1", service.port))
    first.sendall(half)
    again = socket.create_connection(("127.0.0.1", service.port))
    again.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert again.recv(4000).startswith(b"HTTP/1.1 200")
    again.sendall(half)
    for each in (first, again):
        each.settimeout(20)
        while each.recv(4000):
            pass
        each.close()
    slow = {"prompt": "a", "max_tokens": 150, "ignore_eos": True}  # its answer takes longer than a head may
    assert httpx.post(f"{service.url}/v1/completions", json=slow, timeout=60).status_code == 200


def test_an_answer_that_cannot_begin_is_told_so(service: Served, model: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(slot: int, length: int) -> None:
        raise RuntimeError("no room")

    body = {"prompt": "a b c", "max_tokens": 2}
    for prompt in ("a b c", "d e f"):  # both slots hold something
        assert httpx.post(f"{service.url}/v1/completions", json={**body, "prompt": prompt}).status_code == 200
    with monkeypatch.context() as patched:
        patched.setattr(model, "rewind", fails)
        assert httpx.post(f"{service.url}/v1/completions", json={**body, "prompt": "g h i"}).status_code == 500
    assert httpx.post(f"{service.url}/v1/completions", json=body).status_code == 200


def test_a_request_that_takes_too_long_ends(model: Slow, tokenizer: Tokenizer) -> None:
    model.pause = 0.05
    with served(language_model("bigrams", model, tokenizer, Limits(seconds=0.6))) as service:
        answer = httpx.post(f"{service.url}/v1/completions", json={**LONG, "stream": False}, timeout=20)
        assert answer.status_code == 504
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"{service.url}/v1/completions", json=LONG, timeout=20)
        service.until(lambda: service.counted("cancelled_total") == 2 and service.counted("running") == 0)


def test_an_engine_that_fails_once_goes_on(service: Served, model: Slow) -> None:
    model.fails = True
    answer = httpx.post(f"{service.url}/v1/completions", json={**LONG, "stream": False})
    assert answer.status_code == 500 and "the device is gone" in answer.json()["error"]["message"]
    assert httpx.post(f"{service.url}/v1/completions", json={"prompt": "a", "max_tokens": 3}).status_code == 200
    with httpx.stream("POST", f"{service.url}/v1/completions", json=LONG) as stream:
        lines = stream.iter_lines()
        next(lines)
        model.fails = True
        rest = [line for line in lines if line]
    assert "the device is gone" in rest[-2] and rest[-1] == "data: [DONE]"


def test_an_engine_that_is_lost_is_said(service: Served, model: Slow) -> None:
    def lost(slot: int, length: int) -> None:
        raise RuntimeError("no way back")

    model.fails, model.rewind = True, lost  # type: ignore[method-assign]
    for status in (503, 503):
        answer = httpx.post(f"{service.url}/v1/completions", json={**LONG, "stream": False})
        assert answer.status_code == status, answer.text
    assert httpx.get(f"{service.url}/health").status_code == 503


def test_a_stop_loses_no_answer(model: Slow, tokenizer: Tokenizer) -> None:
    """Streams, whole answers and those that still wait for a slot all come to their end."""
    results: list[tuple[int, str]] = []

    def asked(body: dict[str, Any]) -> None:
        with httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=60) as answer:
            results.append((answer.status_code, answer.read().decode()))

    bodies = [{**LONG, "max_tokens": 150}, {**LONG, "max_tokens": 150, "stream": False}] * 2
    threads = [threading.Thread(target=asked, args=(body,)) for body in bodies]
    with served(language_model("bigrams", model, tokenizer)) as service:
        for thread in threads:
            thread.start()
        service.until(lambda: service.counted("running") == 2 and service.counted("waiting") == 2)
    for thread in threads:
        thread.join(30)
    assert [status for status, _ in results] == [200] * 4
    streams = [text for _, text in results if text.startswith("data: ")]
    assert len(streams) == 2 and all(text.endswith("data: [DONE]\n\n") for text in streams)
    whole = [json.loads(text) for _, text in results if not text.startswith("data: ")]
    assert [answer["usage"]["completion_tokens"] for answer in whole] == [150, 150]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.url}/health")


# ---- plain models ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    rows = sym.Var("rows", 1, 8)
    x = input_("x", (sym.expr(rows), 3), f32)
    graph = Graph("plain", (x,), (("double", x * 2.0), ("positive", x > 0.0)), (rows,))
    folder = tmp_path_factory.mktemp("plain")
    compiled_graph(graph, targets.detect()).export(folder / "m", python_module=False)
    with served(inference.application({"plain": folder / "m"}, 1, Limits(body=10_000))) as found:
        yield found


X = np.array([[1, -2, 3], [0.5, 0, -0.25]], np.float32)


@pytest.mark.parametrize("binary", [True, False])
def test_triton_s_client_gets_what_a_model_computes(plain: Served, binary: bool) -> None:
    triton = pytest.importorskip("tritonclient.http", reason="no tritonclient[http] is installed")
    client = triton.InferenceServerClient(f"127.0.0.1:{plain.port}")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("plain")
    about = client.get_model_metadata("plain")
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    given = triton.InferInput("x", list(X.shape), "FP32")
    given.set_data_from_numpy(X, binary_data=binary)
    wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("positive", "double")]
    found = client.infer("plain", [given], outputs=wanted, request_id="7")
    assert found.get_response()["id"] == "7"
    np.testing.assert_array_equal(found.as_numpy("double"), X * 2)
    np.testing.assert_array_equal(found.as_numpy("positive"), X > 0)
    with pytest.raises(triton.InferenceServerException if hasattr(triton, "InferenceServerException") else Exception):
        client.infer("other", [given])
    client.close()


def infer(plain: Served, body: Any, **headers: str) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(f"{plain.url}/v2/models/plain/infer", content=content, headers=headers)


def tensor(**changes: Any) -> dict[str, Any]:
    row = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X.tolist(), **changes}
    return {"inputs": [{name: value for name, value in row.items() if value is not None}]}


def test_a_request_of_json_is_answered_so(plain: Served) -> None:
    for data in (X.tolist(), X.reshape(-1).tolist()):
        found = infer(plain, tensor(data=data)).json()
        assert found["model_name"] == "plain"
        assert found["outputs"][0] == {
            "name": "double", "datatype": "FP32", "shape": [2, 3], "data": (X * 2).reshape(-1).tolist(),
        }  # fmt: skip
    assert httpx.get(f"{plain.url}/v2").json()["extensions"] == ["binary_tensor_data"]
    assert httpx.get(f"{plain.url}/v1/models").json()["data"][0]["id"] == "plain"


BAD: list[tuple[Any, str]] = [
    ({}, "takes x; missing: x"),
    (tensor(name="y"), "y"),
    (tensor(datatype="FP31"), "expected a datatype of BOOL"),
    (tensor(datatype="FP64"), "float64"),
    (tensor(shape=[2, 4]), "expected a list of 8 elements"),
    (tensor(shape=[3, 2]), "x"),
    (tensor(shape=[9, 3], data=[0.0] * 27), "rows"),
    (tensor(shape=[-2, 3]), "expected a shape of sizes"),
    (tensor(shape=[2**40, 2**40]), "expected a list of"),
    (tensor(data=["a"] * 6), "expected elements of FP32"),
    (tensor(data=None), "expected a list of 6 elements"),
    (tensor(data=None, parameters={"binary_data_size": 24}), "a binary_data_size of at most 0 bytes"),
    ({"inputs": 3}, "inputs: expected a list of tensors"),
    ({"inputs": [*tensor()["inputs"]] * 2}, "inputs: expected each name once"),
    ({**tensor(), "outputs": [{"name": "z"}]}, "there is no output 'z': there are double, positive"),
    (tensor(data=[1e39] * 6), "expected elements of FP32"),
    (tensor(data=[3e38] * 6), "double has NaN or infinities"),
    (b"{", "the body is not JSON"),
    (b"x" * 20_000, "expected a body of at most 10000 bytes"),
]


def test_tensors_that_do_not_fit_are_refused(plain: Served) -> None:
    for body, message in BAD:
        answer = infer(plain, body)
        assert answer.status_code in (400, 413) and message in answer.json()["error"], (body, answer.text)
    assert infer(plain, tensor(), **{"inference-header-content-length": "9999"}).status_code == 400
    assert infer(plain, tensor()).status_code == 200


class Encoder(torch.nn.Module):
    """An embedding and a layer for each token; what is masked is far off."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer = torch.nn.Embedding(600, 16), torch.nn.Linear(16, 12)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(input_ids)) + (1 - attention_mask[..., None]) * 1e3


@pytest.mark.parametrize("first", [False, True])
def test_embeddings_are_those_of_the_model(tmp_path: Path, tokenizer: Tokenizer, first: bool) -> None:
    encoder, ids = Encoder().eval(), torch.ones(2, 5, dtype=torch.int64)
    dims = {"rows": (1, 4), "length": (4, 20), "input_ids": ("rows", "length"), "attention_mask": ("rows", "length")}
    module = luminal.compile(encoder, (ids, ids), dims=dims, name="encoder")
    folder = write_folder(module.export(tmp_path / "encoder", python_module=False))
    if first:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    texts = ["Hello", "Compile from PyTorch, please"]
    with served(inference.application({"encoder": folder}, 1)) as service:
        found = service.client.embeddings.create(model="encoder", input=texts)  # asks for base64
        plain = service.client.embeddings.create(
            model="encoder", input=tokenizer.encode("Hello"), encoding_format="float"
        )
        for text, row in zip(texts, found.data, strict=True):
            given = torch.tensor([tokenizer.encode(text)])
            with torch.no_grad():
                rows = encoder(given, torch.ones_like(given))[0].double()
            expected = torch.nn.functional.normalize(rows[0] if first else rows.mean(0), dim=0)
            np.testing.assert_allclose(row.embedding, expected.numpy(), atol=1e-6)
        np.testing.assert_allclose(plain.data[0].embedding, found.data[0].embedding, atol=1e-7)
        assert found.usage.prompt_tokens == sum(len(tokenizer.encode(text)) for text in texts)
        for changes, status in (({"model": "x"}, 404), ({"input": []}, 400), ({"input": [600]}, 400),
                                ({"input": "a b c d e f " * 9}, 400), ({"encoding_format": "x"}, 400)):  # fmt: skip
            body = {"model": "encoder", "input": "a", **changes}
            assert httpx.post(f"{service.url}/v1/embeddings", json=body).status_code == status, changes
        assert service.client.models.list().data[0].id == "encoder"
    with served(inference.application({"encoder": folder}, 1, Limits(inputs=2))) as service:
        body = {"model": "encoder", "input": ["a"] * 3}
        answer = httpx.post(f"{service.url}/v1/embeddings", json=body)
        assert answer.status_code == 400 and "at most 2 texts, found 3" in answer.json()["error"]["message"]


def test_texts_come_after_their_lengths() -> None:
    from luminal.llm.serve import tensors
    from luminal.llm.serve.http import RefusedError

    texts: Array = np.array([["a", "ü🙂"], ["", "b" * 300]], object)
    about, content = tensors.written("t", texts, True)
    found, taken = tensors.read(about, memoryview(content + b"rest"))
    assert taken == len(content) and found.tolist() == texts.tolist()
    about, _ = tensors.written("t", texts, False)
    assert tensors.read(about, memoryview(b""))[0].tolist() == texts.tolist()
    row = {"name": "t", "datatype": "BYTES", "shape": [10**10], "parameters": {"binary_data_size": 0}}
    with pytest.raises(RefusedError, match="texts"):
        tensors.read(row, memoryview(b""))
    for damaged in (content[:-1], content + b"x", b"\xff" * len(content)):
        row = {"name": "t", "datatype": "BYTES", "shape": [2, 2], "parameters": {"binary_data_size": len(damaged)}}
        with pytest.raises(RefusedError, match="texts"):
            tensors.read(row, memoryview(damaged))


def test_the_folder_s_name_is_that_of_the_model(tmp_path: Path) -> None:
    from luminal.llm.opening import name_of

    (tmp_path / "some").mkdir()
    assert (name_of(tmp_path / "some"), name_of(tmp_path / "file.gguf")) == ("some", "file")
