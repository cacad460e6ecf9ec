"""Calls of the Python client that are cancelled and asked again, over a server that is written here."""

import concurrent.futures
import sys
import threading
import time
import types

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from certificates import Authority
from service import stubs

d = stubs().decode

import ripplekv  # noqa: E402
from ripplekv import requests  # noqa: E402
from ripplekv.harness import Harness  # noqa: E402


class Service(stubs().decode_grpc.DecodeServiceServicer):
    """Texts are their characters after 1. A continuation that begins with a digit: see Score."""

    def __init__(self):
        self.cancelled = threading.Semaphore(0)
        self.waiting = threading.Semaphore(0)
        self.busy = 0
        self.asked = 0
        self.authorization = None  # of the last Detokenize
        self.servers = []

    def listen(self, credentials=None):
        """Its address, of a server that is new."""
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(12))
        stubs().decode_grpc.add_DecodeServiceServicer_to_server(self, server)
        address = "127.0.0.1:0"
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        server.start()
        self.servers.append(server)
        return f"127.0.0.1:{port}"

    def _until_cancelled(self, context):
        over = threading.Event()
        if not context.add_callback(over.set):
            over.set()  # it ended before
        self.waiting.release()
        assert over.wait(20)
        self.cancelled.release()

    def GetModel(self, request, context):
        return d.GetModelResponse(model={"context_length": 1000}, limits={"max_continuations": 4})

    def Tokenize(self, request, context):
        text = f"<{request.chat.messages[0].content}>" if request.HasField("chat") else request.text
        return d.TokenizeResponse(token_ids=[1, *map(ord, text)])

    def Detokenize(self, request, context):
        self.authorization = dict(context.invocation_metadata()).get("authorization")
        return d.DetokenizeResponse(text="".join(map(chr, request.token_ids)))

    def Score(self, request, context):
        self.asked += 1
        kind = chr(request.continuations[0].token_ids.ids[0])
        if kind == "0":
            self._until_cancelled(context)
        if kind == "1":
            assert self.waiting.acquire(timeout=20)
            context.abort(grpc.StatusCode.INTERNAL, "broken")
        if self.busy:
            self.busy -= 1
            detail = any_pb2.Any()
            detail.Pack(error_details_pb2.RetryInfo(retry_delay={"nanos": 20_000_000}))
            status = status_pb2.Status(code=8, message="full", details=[detail])
            context.set_trailing_metadata([("grpc-status-details-bin", status.SerializeToString())])
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        if kind == "2":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "never")
        return d.ScoreResponse(continuations=[{"logprob": -1.0, "greedy": True} for _ in request.continuations])

    def Generate(self, request, context):
        over = threading.Event()
        context.add_callback(over.set)
        context.add_callback(self.cancelled.release)  # it may be cancelled before this goes on behind the yield
        yield d.GenerateResponse(chunk={"text": "a"})
        assert over.wait(20)


@pytest.fixture
def service():
    service = Service()
    service.address = service.listen()
    yield service
    for server in service.servers:
        server.stop(0).wait()


@pytest.fixture
def client(service):
    with ripplekv.Client(service.address, timeout=15) as client:
        yield client


def test_an_error_cancels_what_is_in_flight(service, client):
    harness = Harness(client, concurrency=2)
    with pytest.raises(ripplekv.RippleKVError, match="broken"):
        harness.loglikelihood([("a", "0"), ("b", "1"), ("c", "0"), ("d", "0")])
    assert service.cancelled.acquire(timeout=10)
    assert service.asked <= 3 and not any("ripplekv-harness" in thread.name for thread in threading.enumerate())
    # It can be asked again.
    assert harness.loglikelihood([("a", "x"), ("a", "y")]) == [(-1.0, True)] * 2


def test_an_interruption_cancels_what_is_in_flight(service, client):
    def interrupt(_):
        assert service.waiting.acquire(timeout=10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Harness(client).loglikelihood([("a", "0"), ("b", "x")], interrupt)
    assert service.cancelled.acquire(timeout=10)


def test_closing_ends_what_others_wait_for(service, client):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with Harness(client) as harness:
            running = pool.submit(harness.loglikelihood, [("a", "0")])
            assert service.waiting.acquire(timeout=10)
        with pytest.raises(ripplekv.Cancelled):
            running.result(timeout=10)
    assert service.cancelled.acquire(timeout=10)
    with pytest.raises(ValueError, match="closed"):
        harness.loglikelihood([("a", "x")])


def test_a_full_server_is_asked_again(service, client):
    harness = Harness(client)
    service.busy = 3
    begin = time.monotonic()
    assert harness.loglikelihood([("a", "x")]) == [(-1.0, True)]
    assert service.asked == 4 and time.monotonic() - begin >= 0.06
    # As long as the timeout lasts, and only where waiting helps.
    client.timeout, service.busy, service.asked = 0.5, 10**6, 0
    with pytest.raises((ripplekv.ResourceExhausted, ripplekv.DeadlineExceeded)):
        harness.loglikelihood([("a", "x")])
    assert 1 < service.asked < 30
    service.busy, service.asked = 0, 0
    with pytest.raises(ripplekv.ResourceExhausted, match="never"):
        harness.loglikelihood([("a", "2")])
    assert service.asked == 1


def test_an_interrupted_answer_is_cancelled(service, client, monkeypatch):
    chunks = ripplekv.GenerationStream.__iter__

    def interrupted(stream):
        kept.append(stream)
        yield next(chunks(stream))
        raise KeyboardInterrupt

    kept = []  # so that it is not the collection of garbage that ends the call
    monkeypatch.setattr(ripplekv.GenerationStream, "__iter__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.generate("x")
    assert service.cancelled.acquire(timeout=10)


def test_a_cancelled_call_says_so(service, client):
    from ripplekv.client import call_started

    calls = []
    token = call_started.set(lambda call: (calls.append(call), call.cancel()))
    try:
        with pytest.raises(ripplekv.Cancelled):
            client.score("a", [[ord("0")]])
    finally:
        call_started.reset(token)
    assert len(calls) == 1


def test_what_encode_puts_before_a_text_is_left_out(service, client):
    harness = Harness(client)
    assert harness.without_lead([1, 97, 98]) == [97, 98] and harness.without_lead([97, 1]) == [97, 1]


@pytest.fixture
def lm_class(monkeypatch):
    # lm-eval as far as the adapter needs it: it may not be installed.
    fakes = {name: types.ModuleType(name) for name in ("lm_eval", "lm_eval.models", "lm_eval.api", "lm_eval.api.model", "lm_eval.api.registry")}  # fmt: skip
    fakes["lm_eval.api.model"].LM = object
    fakes["lm_eval.api.registry"].register_model = lambda name: lambda cls: cls
    fakes["lm_eval"].models = fakes["lm_eval.models"]
    for name, module in fakes.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "ripplekv.lm_eval", raising=False)
    from ripplekv.lm_eval import RippleKVLM

    yield RippleKVLM
    del sys.modules["ripplekv.lm_eval"]


def test_a_chat_rendered_for_lm_eval_has_no_bos(service, lm_class):
    with lm_class(service.address) as model:
        assert model.apply_chat_template([{"role": "user", "content": "hi"}]) == "<hi>"


def test_lm_eval_calls_by_tls_with_a_token(service, lm_class, monkeypatch, tmp_path):
    authority = Authority(tmp_path / "ca")
    pairs = authority.issue("server"), authority.issue("me")
    (server_certificate, server_key), (certificate, key) = pairs
    address = service.listen(
        grpc.ssl_server_credentials(
            [(server_key.read_bytes(), server_certificate.read_bytes())], authority.ca.read_bytes(), True
        )
    )
    token = tmp_path / "token"
    token.write_text("of-a-file-0123456\n")
    files = {"tls_ca": str(authority.ca), "tls_certificate": str(certificate), "tls_key": str(key)}
    monkeypatch.setenv("RIPPLEKV_TOKEN", "of-the-environment")
    for given, sent in (({}, "of-the-environment"), ({"token_file": str(token)}, "of-a-file-0123456")):
        with lm_class(address, **files, **given) as model:
            assert model.apply_chat_template([{"role": "user", "content": "hi"}]) == "<hi>"
        assert service.authorization == f"Bearer {sent}"
    with pytest.raises(ValueError, match="go together"):
        lm_class(address, tls_ca=files["tls_ca"], tls_key=files["tls_key"])


def test_bytes_and_single_texts_are_refused(client):
    for value in (b"ab", bytearray(b"ab"), memoryview(b"ab")):
        for call in (
            lambda: requests.prompt_fields(value),
            lambda: requests.continuation_of(value),
            lambda: client.generate("a", stop_token_ids=value),
            lambda: client.detokenize(value),
        ):
            with pytest.raises(TypeError, match=f"of type {type(value).__name__}"):
                call()
    for call in (
        lambda: client.score("a", "yes"),
        lambda: client.generate("a", stop_strings="end"),
        lambda: client.calibrate(texts="one"),
    ):
        with pytest.raises(TypeError, match="of type str: must be a list"):
            call()
