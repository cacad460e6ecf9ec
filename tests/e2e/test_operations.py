"""Running the servers: health, signals, deadlines, cancellation, limits, metrics, logs, options."""

import contextlib
import json
import math
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from conftest import binary
from service import PLAIN, Server, error_details, generate, stubs, wait_until
from tiny_model import KV_HEADS, HEAD_DIM, write_tiny_llama

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = ("", "ripplekv.v1.DecodeService", "ripplekv.v1.CalibrationService")
LAYERS, CONTEXT = 8, 32768
ENDLESS = {"max_tokens": 30000, "ignore_eos": True}  # seconds of work
SHORT = {"max_tokens": 5, "ignore_eos": True}


@pytest.fixture(scope="module")
def long_model(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("long") / "long.gguf", layers=LAYERS, context=CONTEXT)


@pytest.fixture(scope="module")
def server(start_server, long_model):
    return start_server(
        model=long_model, calibration="off", min_positions=0, log_format="json", log_level="debug", drain_timeout=60
    )


@pytest.fixture
def start(tmp_path, long_model):
    """start(...) is a Server of this test alone."""
    servers = []

    def go(program="ripplekv-server", **options):
        options = {"model": long_model, "calibration": "off", "profile_dir": tmp_path / "profiles", **options}
        if program != "ripplekv-server":
            options.pop("calibration")
        servers.append(Server(binary(program), tmp_path / f"log-{len(servers)}", **{**PLAIN, **options}))
        return servers[-1]

    yield go
    for server in servers:
        if server.process.poll() is None:
            server.kill()


class Stream:
    """A Generate call whose first message was read."""

    def __init__(self, server, timeout=300, **fields):
        fields = {"text": "Once upon a time", "stopping": ENDLESS, **fields}
        self.call = server.decode.Generate(stubs().decode.GenerateRequest(**fields), timeout=timeout)
        self.ids = list(next(self.call).chunk.token_ids)

    def finish(self):
        """Reads all the rest: the completion, or the error raised."""
        for message in self.call:
            self.ids += message.chunk.token_ids
            if message.HasField("complete"):
                complete = message.complete
        return complete


def healthz(server):
    try:
        with urllib.request.urlopen(f"http://{server.metrics_address}/healthz", timeout=10) as reply:
            return reply.status, reply.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()


def is_empty(server):
    """Nothing runs, waits or holds KV memory."""
    m = server.metrics()
    return not any(
        m[f"ripplekv_{name}"]
        for name in ("requests_running", "requests_waiting", "kv_used_bytes", "kv_reserved_bytes", "kv_prefill_bytes")
    )


# --- Health and signals -------------------------------------------------------------------------------------------


class Watch:
    """grpc.health.v1 Watch of one service, read by a thread."""

    def __init__(self, server, service=""):
        self.states, self.code = [], None
        self.call = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest(service=service))
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        try:
            for reply in self.call:
                self.states.append(reply.status)
        except grpc.RpcError as error:
            self.code = error.code()


def test_health_from_start_to_end(start, model_path):
    server = start(wait=False, model=model_path)  # takes a moment to load
    server.wait_for_log(" listening ")
    assert server.health() == NOT_SERVING
    watches = [Watch(server, service) for service in SERVICES]
    wait_until(lambda: all(w.states for w in watches))
    assert healthz(server) == (503, "NOT_SERVING")
    assert server.metrics()["ripplekv_serving"] == 0
    for call in (server.model, lambda: generate(server, text="x")):
        with pytest.raises(grpc.RpcError) as loading:
            call()
        assert loading.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "loading" in loading.value.details()
    server.wait_until_serving()
    assert [server.health(service) for service in SERVICES] == [SERVING] * 3
    assert healthz(server) == (200, "SERVING")
    assert server.metrics()["ripplekv_serving"] == 1
    wait_until(lambda: all(len(w.states) == 2 for w in watches))

    stream = Stream(server, stopping={"max_tokens": 60, "ignore_eos": True})
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: all(len(w.states) == 3 for w in watches))
    assert healthz(server) == (503, "NOT_SERVING")
    assert server.health() == NOT_SERVING
    with pytest.raises(grpc.RpcError) as draining:
        generate(server, text="x")
    assert draining.value.code() == grpc.StatusCode.UNAVAILABLE
    complete = stream.finish()  # the running request goes on to its end
    assert len(stream.ids) == complete.usage.output_tokens == 60
    assert server.process.wait(timeout=30) == 0
    for watch in watches:
        watch.thread.join(timeout=10)
        assert watch.states == [NOT_SERVING, SERVING, NOT_SERVING]
        assert watch.code == grpc.StatusCode.UNAVAILABLE
    assert " draining " in server.log_text() and " stopped " in server.log_text()


def test_health_of_unknown_services(server):
    with pytest.raises(grpc.RpcError) as unknown:
        server.health("no.such.Service")
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
    watch = Watch(server, "no.such.Service")
    wait_until(lambda: watch.states)
    assert watch.states == [health_pb2.HealthCheckResponse.SERVICE_UNKNOWN]
    watch.call.cancel()
    watch.thread.join(timeout=10)


def test_sigterm_while_loading(start, model_path):
    server = start(wait=False, model=model_path)
    server.wait_for_log(" listening ")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=30) == 0
    assert "loading=true" in server.log_text() or " draining " in server.log_text()


@pytest.mark.parametrize("program", ["ripplekv-server", "ripplekv-calibration-server"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_of_an_idle_server(start, program, number):
    server = start(program)
    began = time.monotonic()
    server.process.send_signal(number)
    assert server.process.wait(timeout=30) == 0
    assert time.monotonic() - began < 15  # far below --drain-timeout: there was nothing to wait for


def test_requests_that_outlast_the_drain_timeout(start):
    server = start(drain_timeout=1, max_batch=1)
    running = Stream(server)
    waiting = server.decode.Generate(stubs().decode.GenerateRequest(text="x", stopping=SHORT))
    wait_until(lambda: server.metrics()["ripplekv_requests_waiting"] == 1)
    server.process.send_signal(signal.SIGTERM)
    for call in (running.finish, lambda: list(waiting)):
        with pytest.raises(grpc.RpcError) as ended:
            call()
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in ended.value.details()
    assert server.process.wait(timeout=30) == 0
    assert "drain_incomplete" in server.log_text()


def test_a_calibration_stream_at_shutdown(start):
    """Whoever waits for a measurement is told; nothing half-done is stored."""
    server = start("ripplekv-calibration-server", drain_timeout=1)
    settings = {"examples": 300, "prefix_tokens": 384, "window_tokens": 32}
    call = server.calibration.CalibrateModel(stubs().calibration.CalibrateModelRequest(settings=settings))
    next(call)
    server.process.send_signal(signal.SIGTERM)
    with pytest.raises(grpc.RpcError) as ended:
        list(call)
    assert ended.value.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
    assert server.process.wait(timeout=30) == 0


def test_reflection_by_option(start, server):
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    with pytest.raises(grpc.RpcError) as refused:
        list(ProtoReflectionDescriptorDatabase(server.channel).get_services())
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    reflecting = start(reflection=True)
    database = ProtoReflectionDescriptorDatabase(reflecting.channel)
    assert {*SERVICES[1:], "grpc.health.v1.Health"} <= set(database.get_services())
    file = database.FindFileContainingSymbol("ripplekv.v1.DecodeService")
    assert "Generate" in {method.name for service in file.service for method in service.method}


# --- Deadlines, cancellation, company -----------------------------------------------------------------------------


def output_tokens(server):
    return server.metrics()["ripplekv_output_tokens_total"]


def test_cancellation_frees_everything(server):
    before = output_tokens(server)
    stream = Stream(server)
    metrics = server.metrics()
    assert metrics["ripplekv_requests_running"] == 1
    assert metrics["ripplekv_kv_used_bytes"] > 0 and metrics["ripplekv_kv_reserved_bytes"] > 0
    stream.call.cancel()
    wait_until(lambda: is_empty(server), 5, "free KV memory")
    assert output_tokens(server) - before < ENDLESS["max_tokens"], "it must have been stopped, not finished"
    codes = 'ripplekv_requests_total{code="CANCELLED",method="Generate"}'
    assert server.metrics()[codes] >= 1
    # A client that vanishes without a word is the same.
    address = server.address
    program = (
        "import grpc, sys, os\n"
        "channel = grpc.insecure_channel(sys.argv[1])\n"
        "call = channel.unary_stream('/ripplekv.v1.DecodeService/Generate')(bytes.fromhex(sys.argv[2]))\n"
        "next(call)\n"
        "os._exit(9)\n"
    )
    request = stubs().decode.GenerateRequest(text="a", stopping=ENDLESS).SerializeToString().hex()
    assert subprocess.run([sys.executable, "-c", program, address, request], timeout=60).returncode == 9
    wait_until(lambda: is_empty(server), 10, "free KV memory")


def test_a_deadline_stops_the_work(server):
    before = output_tokens(server)
    with pytest.raises(grpc.RpcError) as late:
        Stream(server, timeout=0.5).finish()
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: is_empty(server), 5, "free KV memory")
    assert output_tokens(server) - before < ENDLESS["max_tokens"]


def test_a_deadline_in_the_queue_and_a_cancelled_waiter(start):
    server = start(max_batch=1)
    before = server.metrics()["ripplekv_prompt_tokens_total"]
    running = Stream(server)
    request = stubs().decode.GenerateRequest(text="never begun", stopping=SHORT)
    late = server.decode.Generate(request, timeout=0.3)
    cancelled = server.decode.Generate(request)
    wait_until(lambda: server.metrics()["ripplekv_requests_waiting"] == 2)
    cancelled.cancel()
    with pytest.raises(grpc.RpcError) as passed:
        list(late)
    assert passed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: server.metrics()["ripplekv_requests_waiting"] == 0)
    assert server.metrics()["ripplekv_requests_running"] == 1, "the running one goes on"
    running.call.cancel()
    wait_until(lambda: is_empty(server))
    assert server.metrics()["ripplekv_prompt_tokens_total"] == before + len("Once upon a time")


def test_cancellation_within_a_prefill(start, model_path, tokenize, corpus_texts):
    """The work stops within one layer of thirty."""
    server = start(model=model_path)
    ids = [i for text in corpus_texts[:4] for i in tokenize(text)][:4000]
    request = stubs().decode.GenerateRequest(token_ids={"ids": ids}, stopping={"max_tokens": 1})
    call = server.decode.Generate(request)
    wait_until(lambda: server.metrics()["ripplekv_kv_used_bytes"] > 0)
    call.cancel()
    wait_until(lambda: is_empty(server), 10, "free KV memory")
    assert server.metrics()["ripplekv_prompt_tokens_total"] == 0, "the prefill must not have come to its end"


def test_a_slow_reader_holds_up_nobody(server):
    tokens = 8000
    slow = Stream(server, stopping={"max_tokens": tokens, "ignore_eos": True})  # and reads no more for now
    for _ in range(2):
        text, ids, _, complete = generate(server, text="x", stopping=SHORT, timeout=120)
        assert len(ids) == 5
    complete = slow.finish()
    assert len(slow.ids) == complete.usage.output_tokens == tokens
    wait_until(lambda: is_empty(server))


def test_a_full_queue(start):
    server = start(max_queue=1, max_batch=1)
    running = Stream(server)
    waiting = server.decode.Generate(stubs().decode.GenerateRequest(text="x", stopping=SHORT))
    wait_until(lambda: server.metrics()["ripplekv_requests_waiting"] == 1)
    with pytest.raises(grpc.RpcError) as full:
        generate(server, text="x")
    assert full.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "--max-queue 1" in full.value.details()
    delay = error_details(full.value)["RetryInfo"].retry_delay
    assert delay.seconds + delay.nanos * 1e-9 > 0
    running.call.cancel()
    assert list(waiting)[-1].complete.usage.output_tokens == 5
    assert generate(server, text="x", stopping=SHORT)[1]
    assert server.metrics()['ripplekv_requests_total{code="RESOURCE_EXHAUSTED",method="Generate"}'] == 1


def test_a_request_that_can_never_fit(start, tiny_model_path):
    server = start(model=tiny_model_path, kv_memory="1MiB", min_positions=0, compute="fp32")
    fields = {"token_ids": {"ids": [65] * 900}, "kv": {"size": {"full": {}}}}
    with pytest.raises(grpc.RpcError) as never:
        generate(server, **fields, stopping={"max_tokens": 124})
    assert never.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "RetryInfo" not in error_details(never.value), "waiting would not help"
    message = never.value.details()
    for words in ("needs", "pages", "900 prompt tokens", "max_tokens 124", "--kv-memory"):
        assert words in message, message
    # What the message offers fits, one more does not.
    offered = int(re.search(r"prompt of up to (\d+) tokens would fit", message).group(1))
    fits = {"kv": fields["kv"], "stopping": {"max_tokens": 124, "ignore_eos": True}}
    assert generate(server, token_ids={"ids": [65] * offered}, **fits)[1]
    with pytest.raises(grpc.RpcError):
        generate(server, token_ids={"ids": [65] * (offered + 1)}, **fits)
    # And so does the same prompt compressed.
    assert generate(server, token_ids=fields["token_ids"], kv={"size": {"retention": 0.2}}, stopping=SHORT)[1]


# --- Request ids --------------------------------------------------------------------------------------------------


def test_request_ids(server):
    def ask(metadata=(), **fields):
        call = server.decode.Generate(
            stubs().decode.GenerateRequest(text="x", stopping=SHORT, **fields), metadata=metadata
        )
        returned = dict(call.initial_metadata())["x-request-id"]
        assert {message.request_id for message in call} == {returned}
        return returned

    assert ask(request_id="from-the-field", metadata=[("x-request-id", "not-this")]) == "from-the-field"
    assert ask([("x-request-id", "from-metadata"), ("x-correlation-id", "nor-this")]) == "from-metadata"
    assert ask([("x-correlation-id", "correlated")]) == "correlated"
    made = {ask() for _ in range(3)}
    assert len(made) == 3 and all(re.fullmatch(r"[0-9a-f]{32}", i) for i in made)
    # Unary and failed calls too.
    _, call = server.decode.GetModel.with_call(
        stubs().decode.GetModelRequest(), metadata=[("x-request-id", "unary-one")]
    )
    assert dict(call.initial_metadata())["x-request-id"] == "unary-one"
    failed = server.decode.Generate(stubs().decode.GenerateRequest(), metadata=[("x-request-id", "failed-one")])
    with pytest.raises(grpc.RpcError):
        list(failed)
    assert dict(failed.trailing_metadata())["x-request-id"] == "failed-one"
    assert "x-request-id" not in dict(failed.initial_metadata())
    wait_until(lambda: "failed-one" in server.log_text())
    logged = {e["request_id"]: e["code"] for e in server.events("call")}
    assert logged["from-the-field"] == logged["unary-one"] == "OK"
    assert logged["failed-one"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("method", ["Generate", "Score", "CreateContext", "GetContext", "Tokenize", "CalibrateModel"])
def test_refusals_are_tried_again_by_grpcs_own_policy(server, method):
    """Only a refusal that is all trailers may be: gRPC takes any header for the beginning of an answer."""
    service = "CalibrationService" if method == "CalibrateModel" else "DecodeService"
    codes = ["INVALID_ARGUMENT", "FAILED_PRECONDITION"]
    policy = {
        "maxAttempts": 3,
        "initialBackoff": "0.01s",
        "maxBackoff": "0.02s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": codes,
    }
    config = {"methodConfig": [{"name": [{"service": f"ripplekv.v1.{service}"}], "retryPolicy": policy}]}
    empty = {"CalibrateModel": stubs().calibration.CalibrateModelRequest()}.get(method)
    empty = getattr(stubs().decode, f"{method}Request")() if empty is None else empty

    def refusals():
        found = server.metrics()
        return sum(found.get(f'ripplekv_requests_total{{code="{code}",method="{method}"}}', 0) for code in codes)

    before = refusals()
    with grpc.insecure_channel(server.address, options=[("grpc.service_config", json.dumps(config))]) as channel:
        stub = {
            "DecodeService": stubs().decode_grpc.DecodeServiceStub,
            "CalibrationService": stubs().calibration_grpc.CalibrationServiceStub,
        }[service](channel)
        with pytest.raises(grpc.RpcError) as refused:
            answer = getattr(stub, method)(empty, timeout=20, metadata=[("x-request-id", "tried-thrice")])
            list(answer)
    assert refused.value.code().name in codes
    assert dict(refused.value.trailing_metadata())["x-request-id"] == "tried-thrice"
    wait_until(lambda: refusals() == before + 3)


# --- Metrics and logs ---------------------------------------------------------------------------------------------


def scrape(server):
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=10) as reply:
        assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return reply.read().decode()


def test_exposition_format(server):
    generate(server, text="Hello", stopping=SHORT, output={"next_token_kl": True})
    kinds, samples = {}, {}
    for line in scrape(server).splitlines():
        if line.startswith("# HELP "):
            assert len(line.split(" ", 3)[3]) > 10, line
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds and name.startswith(("ripplekv_", "process_"))
            kinds[name] = kind
        elif line:
            match = re.fullmatch(r'([a-z_]+)(\{(?:[a-z_]+="[^"\\]*",?)+\})? (\S+)', line)
            assert match, line
            samples.setdefault(match[1], []).append((match[2] or "", float(match[3])))
    for name, found in samples.items():
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in kinds or kinds.get(base) == "histogram", name
        if kinds.get(name) == "counter":
            assert name.endswith("_total") and all(value >= 0 for _, value in found)
    for name, kind in kinds.items():
        if kind != "histogram":
            continue
        series = {}  # by the labels besides the bucket's
        for labels, value in samples.get(f"{name}_bucket", []):
            bucket = re.search(r',?le="([^"]+)"', labels)
            series.setdefault(labels.replace(bucket[0], ""), []).append((bucket[1], value))
        assert len(series) == len(samples.get(f"{name}_count", []))
        totals = [value for _, value in samples.get(f"{name}_count", [])]
        for buckets, total in zip(series.values(), totals, strict=True):
            counts = [value for _, value in buckets]
            assert counts == sorted(counts) and buckets[-1] == ("+Inf", total), name


@pytest.mark.parametrize(
    "kv_type, key, value, channels",
    [("int8", "INT8", "INT8", 2 * (32 + 4)), ("int8:int4", "INT8", "INT4", 32 + 4 + 16 + 4), ("fp32", "FP32", "FP32", 8 * HEAD_DIM)],
)
def test_stored_kv_types(start, kv_type, key, value, channels):
    """What is reported, kept and counted is of the type; heads are stored in whole groups of 32 channels. A request may
    choose the type of another server: it gets that one's answer."""
    server = start(min_positions=0, retention=0.5, kv_type=kv_type)
    model = server.model()
    assert model.kv_type == stubs().profile.KvType.Value(f"KV_TYPE_{key}")
    assert model.value_kv_type == stubs().profile.KvType.Value(f"KV_TYPE_{value}")
    assert model.kv_bytes_per_position_layer == KV_HEADS * (channels + 4)
    ids = {"ids": [65 + i % 26 for i in range(300)]}
    run = {"token_ids": ids, "stopping": {"max_tokens": 20, "ignore_eos": True}}
    _, first, _, complete = generate(server, output={"next_token_kl": True}, **run)
    assert complete.cache.kv_bytes == LAYERS * 150 * model.kv_bytes_per_position_layer
    assert math.isfinite(complete.next_token_kl)
    assert generate(server, **run)[1] == first
    plain = start(min_positions=0, retention=0.5)
    types = {"key_type": model.kv_type, "value_type": model.value_kv_type}
    _, own, _, chosen = generate(plain, output={"next_token_kl": True}, kv=types, **run)
    assert own == first
    assert chosen.next_token_kl == complete.next_token_kl
    assert chosen.cache.kv_bytes == complete.cache.kv_bytes
    assert chosen.cache.full_kv_bytes == LAYERS * 300 * plain.model().kv_bytes_per_position_layer
    for layer in [*complete.cache.layers, *chosen.cache.layers]:
        assert (layer.key_type, layer.value_type) == (model.kv_type, model.value_kv_type)


def test_metrics_of_one_request(start, long_model):
    server = start(min_positions=0, retention=0.25, kv_memory="32MiB")
    before = server.metrics()
    assert before["ripplekv_kv_memory_bytes"] == 32 << 20
    (build,) = [name for name in before if name.startswith("ripplekv_build_info")]
    assert before[build] == 1
    versions = server.model().versions
    for text in (f'version="{versions.ripplekv}"', f'grpc="{versions.grpc}"', f'libtorch="{versions.libtorch}"', 'compute="bf16"'):
        assert text in build
    assert versions.ripplekv and versions.grpc and versions.libtorch
    quotas = [before[f'ripplekv_kv_layer_quota_bytes{{layer="{i}"}}'] for i in range(LAYERS)]
    assert 0 < sum(quotas) <= 32 << 20 and max(quotas) - min(quotas) <= 65536  # uniform

    tokens, out = 401, 30
    _, _, _, complete = generate(
        server,
        token_ids={"ids": [65 + i % 26 for i in range(tokens)]},
        stopping={"max_tokens": out, "ignore_eos": True},
        output={"next_token_kl": True},
    )
    m = wait_until(lambda: (is_empty(server) and server.metrics()))
    kept = LAYERS * math.floor(0.25 * tokens)
    assert m['ripplekv_requests_total{code="OK",method="Generate"}'] == 1
    assert m['ripplekv_request_duration_seconds_count{method="Generate"}'] == 1
    assert m["ripplekv_prompt_tokens_total"] == tokens
    assert m["ripplekv_output_tokens_total"] == out
    assert m["ripplekv_prompt_positions_kept_total"] == kept
    assert m["ripplekv_prompt_positions_dropped_total"] == LAYERS * tokens - kept
    assert m["ripplekv_time_to_first_token_seconds_count"] == 1
    assert m["ripplekv_time_to_first_token_seconds_sum"] == pytest.approx(complete.timings.first_token_seconds)
    assert m["ripplekv_time_per_output_token_seconds_count"] == out - 1
    assert 0 < m["ripplekv_time_per_output_token_seconds_sum"] <= complete.timings.decode_seconds
    assert m["ripplekv_queue_time_seconds_count"] == 1
    assert m["ripplekv_next_token_kl_nats_count"] == 1
    assert m["ripplekv_next_token_kl_nats_sum"] == pytest.approx(complete.next_token_kl)
    assert m["ripplekv_calibration_running"] == 0
    assert m['ripplekv_plan_info{source="uniform"}'] == 1

    # While a request runs: its layers' pages, and what is promised to it.
    stream = Stream(server, stopping={"max_tokens": 20000, "ignore_eos": True})
    m = server.metrics()
    assert m["ripplekv_requests_running"] == 1
    used = [m[f'ripplekv_kv_layer_used_bytes{{layer="{i}"}}'] for i in range(LAYERS)]
    reserved = [m[f'ripplekv_kv_layer_reserved_bytes{{layer="{i}"}}'] for i in range(LAYERS)]
    assert all(used) and sum(used) == m["ripplekv_kv_used_bytes"]
    assert sum(reserved) == m["ripplekv_kv_reserved_bytes"]
    row = KV_HEADS * (2 * HEAD_DIM * 2 + 4)
    assert sum(used) + sum(reserved) >= LAYERS * 20000 * row
    stream.call.cancel()
    wait_until(lambda: is_empty(server))
    for name in ("used", "reserved"):
        assert not any(server.metrics()[f'ripplekv_kv_layer_{name}_bytes{{layer="{i}"}}'] for i in range(LAYERS))


def test_the_http_endpoint_is_small(server):
    for path, method, codes in (("/", "GET", {404}), ("/metrics/x", "GET", {404}), ("/metrics", "POST", {404, 405})):
        request = urllib.request.Request(f"http://{server.metrics_address}{path}", method=method)
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=10)
        assert error.value.code in codes
    # A connection that says nothing holds nobody up.
    host, port = server.metrics_address.split(":")
    with socket.create_connection((host, int(port))):
        assert healthz(server) == (200, "SERVING")


def test_more_connections_than_the_limit_it_was_started_with(start):
    """gRPC listens no more once it was out of file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        server = start(wait=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    server.wait_until_serving()
    host, port = server.address.split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        wait_until(lambda: server.metrics()["process_open_fds"] > 200)
    with server.connect() as channel:
        request = stubs().decode.GetModelRequest()
        assert stubs().decode_grpc.DecodeServiceStub(channel).GetModel(request, timeout=10).model.layers == LAYERS


SECRET = "xyzzy-plugh-secret"


def test_logs_hold_no_prompt_and_no_answer(server, start):
    """At any level, in both formats, whatever the outcome."""
    text_server = start(log_level="debug")
    for each in (server, text_server):
        asked = [
            {"text": SECRET},
            {"chat": {"messages": [{"role": 2, "content": SECRET}]}},
            {"chat": {"messages": [{"role": 9, "content": SECRET}]}},
            {"text": SECRET, "stopping": {"stop_strings": [SECRET, "\udcff".encode("utf8", "replace").decode() * 300]}},
            {"text": SECRET * 5000},
            {"token_ids": {"ids": list(SECRET.encode())}, "sampling": {"temperature": -1}},
        ]
        for fields in asked:
            try:
                generate(each, stopping=fields.pop("stopping", SHORT), **fields)
            except grpc.RpcError as error:
                assert SECRET not in error.details()
        each.decode.Tokenize(stubs().decode.TokenizeRequest(text=SECRET))
        with pytest.raises(grpc.RpcError):
            corpus = {"texts": {"texts": [SECRET]}}
            list(each.calibration.CalibrateModel(stubs().calibration.CalibrateModelRequest(corpus=corpus)))
        wait_until(lambda: "CalibrateModel" in each.log_text())
        assert SECRET not in each.log_text()
        assert "xyzzy" not in each.log_text()


def test_log_lines(server, start, model_path):
    generate(server, text="One", stopping=SHORT, request_id="log-line-1")
    wait_until(lambda: "log-line-1" in server.log_text())
    for line in server.log_text().splitlines():
        event = json.loads(line)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["time"])
        assert event["level"] in ("debug", "info", "warning", "error")
        assert re.fullmatch(r"[a-z_]+", event["event"])
    (loaded,) = server.events("model_loaded")
    assert loaded["layers"] == LAYERS and loaded["context"] == CONTEXT
    (options,) = server.events("options")
    assert options["drain_timeout"] == "60" and options["log_format"] == "json"

    text_server = start(log_level="warning")
    generate(text_server, text="One", stopping=SHORT)
    assert text_server.log_text() == ""
    assert text_server.stop() == 0
    text_server = start()
    generate(text_server, text="One", stopping=SHORT, request_id="in-text")
    wait_until(lambda: "in-text" in text_server.log_text())
    for line in text_server.log_text().splitlines():
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (debug|info|warning|error) [a-z_]+( |$)", line), line


TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def access_line(server, request_id):
    """The line of the call; there is one."""
    lines = wait_until(lambda: [e for e in server.events("call") if e["request_id"] == request_id], 10, request_id)
    assert len(lines) == 1
    return lines[0]


def test_the_access_log(start):
    server = start(log_format="json", min_positions=0)
    decode = stubs().decode
    header = [("traceparent", f"00-{TRACE}-{PARENT}-01"), ("x-request-id", "whole")]
    request = decode.GenerateRequest(text="One two", stopping=SHORT)
    complete = list(server.decode.Generate(request, metadata=header, timeout=20))[-1].complete
    line = access_line(server, "whole")
    assert line["level"] == "info" and line["trace_id"] == TRACE and line["caller"] == "anonymous"
    assert line["method"] == "Generate" and line["code"] == "OK" and "error" not in line
    assert line["prompt_tokens"] == complete.usage.prompt_tokens == 7 and line["output_tokens"] == 5
    assert line["kept_positions"] == sum(layer.positions_kept for layer in complete.cache.layers) == 7 * LAYERS
    assert 0 <= line["queue_seconds"] <= line["first_token_seconds"] <= line["seconds"]

    # Every call has one: unary ones, refused ones, and those that their caller leaves.
    server.decode.GetModel(decode.GetModelRequest(), metadata=[("x-request-id", "unary")], timeout=20)
    assert access_line(server, "unary")["method"] == "GetModel"
    with pytest.raises(grpc.RpcError):
        generate(server, request_id="refused")
    refused = access_line(server, "refused")
    assert refused["code"] == "INVALID_ARGUMENT" and refused["error"] and "output_tokens" not in refused
    left = server.decode.Generate(decode.GenerateRequest(text="x", stopping=ENDLESS, request_id="left"), timeout=20)
    next(left)
    left.cancel()
    left = access_line(server, "left")
    assert left["code"] == "CANCELLED" and 0 < left["output_tokens"] < 30000
    assert 0 < left["first_token_seconds"] <= left["seconds"]
    scored = decode.ScoreRequest(text="One", continuations=[{"text": " two"}], request_id="scored")
    server.decode.Score(scored, timeout=20)
    assert access_line(server, "scored")["output_tokens"] == 4
    made = decode.CreateContextRequest(text="One two", request_id="made")
    server.decode.CreateContext(made, timeout=20)
    assert access_line(server, "made")["kept_positions"] == 7 * LAYERS


def test_a_malformed_traceparent_starts_a_trace(start):
    server = start(log_format="json")
    right = f"00-{TRACE}-{PARENT}-01"
    wrong = {
        "none": [],
        "zeros": [("traceparent", f"00-{'0' * 32}-{PARENT}-01")],
        "upper-case": [("traceparent", right.upper())],
        "cut": [("traceparent", right[:-1])],
    }
    traces = []
    for name, metadata in wrong.items():
        metadata = [*metadata, ("x-request-id", name)]
        server.decode.GetModel(stubs().decode.GetModelRequest(), metadata=metadata, timeout=20)
        traces.append(access_line(server, name)["trace_id"])
    assert all(re.fullmatch(r"[0-9a-f]{32}", trace) for trace in traces)
    assert len(set(traces)) == len(wrong) and TRACE not in traces


def test_every_line_of_a_call_has_its_trace(start):
    server = start("ripplekv-calibration-server", log_format="json", calibration_examples=1, calibration_prefix=64)
    header = [("traceparent", f"00-{TRACE}-{PARENT}-00"), ("x-request-id", "measure")]
    request = stubs().calibration.CalibrateModelRequest()
    assert list(server.calibration.CalibrateModel(request, metadata=header, timeout=60))[-1].complete.profile.profile_id
    (started,) = server.events("calibration_started")
    for line in (started, access_line(server, "measure")):
        assert line["trace_id"] == TRACE and line["request_id"] == "measure"


# --- Options ------------------------------------------------------------------------------------------------------


def output_of(program, *arguments):
    done = subprocess.run([str(binary(program)), *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_help_names_every_option(start, server):
    calibrating = start("ripplekv-calibration-server", log_format="json")
    for program, running in (("ripplekv-server", server), ("ripplekv-calibration-server", calibrating)):
        code, out, err = output_of(program, "--help")
        assert code == 0 and err == ""
        (event,) = running.events("options")
        names = [key for key in event if key not in ("time", "level", "event", "version")]
        assert len(names) > 20
        for name in names:
            flag = name.replace("_", "-")
            assert re.search(rf"^ +--{flag}\b(?!-).*RIPPLEKV_{name.upper()}\b", out, flags=re.M), name
        code, out, _ = output_of(program, "--version")
        assert code == 0 and out.strip() == server.model().versions.ripplekv
    for name in ("model", "listen", "metrics_listen", "kv_memory", "retention", "min_positions", "profile_dir",
                 "compute", "threads", "calibration"):  # fmt: skip
        assert name in server.events("options")[0]


def test_environment_and_the_flag_wins(start, long_model):
    environment = {
        "RIPPLEKV_RETENTION": "0.37",
        "RIPPLEKV_MIN_POSITIONS": "123",
        "RIPPLEKV_SNAPKV_WINDOW": "16",
        "RIPPLEKV_KV_MEMORY": "64MiB",
        "RIPPLEKV_LOG_FORMAT": "json",
    }
    server = start(environment=environment, snapkv_window=8)
    model = server.model()
    assert model.plan.size.retention == 0.37
    assert model.plan.min_positions == 123
    assert model.selector.snapkv.window == 8
    assert model.limits.kv_memory_bytes == 64 << 20
    (options,) = server.events("options")
    assert options["retention"] == "0.37" and options["snapkv_window"] == "8"


@pytest.mark.parametrize("program", ["ripplekv-server", "ripplekv-calibration-server"])
def test_a_config_file_has_the_last_word_only(start, program, tmp_path):
    file = tmp_path / "options.toml"
    file.write_text('retention = 0.31\nmin-positions = 77\nsnapkv-window = 8\nlog-format = "json"\n')
    server = start(program, config=file, snapkv_window=16, environment={"RIPPLEKV_RETENTION": "0.37"})
    (options,) = server.events("options")
    assert options["config"] == str(file) and options["min_positions"] == "77"
    assert options["retention"] == "0.37" and options["snapkv_window"] == "16"

    for line, words in (
        ("retention = 7", ("--retention", "'7'", "above 0 to 1")),
        ("retenton = 0.5", ("no option retenton", "retention?")),
        ("max-queue = 0", ("max-queue",)),
        ("[server]", ("without sections",)),
    ):
        file.write_text(f'model = "m.gguf"\n{line}\nsinks = 4\n')
        code, out, err = output_of(program, "--config", str(file))
        assert code == 2 and out == "" and str(file) in err, err
        assert all(word in err for word in words), err


def test_selectors_of_the_server_and_of_requests(start):
    server = start(selector="mixed", selector_queries=100, mixed_weight=0.25, snapkv_window=8, retention=0.3,
                   min_positions=0)  # fmt: skip
    model = server.model()
    mixed = model.selector.mixed
    assert (mixed.snapkv.window, mixed.queries, mixed.weight) == (8, 100, 0.25)
    assert model.plan.floor_positions == 4 + 8 + 1
    prompt = {"ids": [i * 7919 % 256 for i in range(300)]}
    kept = set()
    for selector in ({}, {"snapkv": {}}, {"h2o": {"normalised": True}}, {"recent_attention": {"queries": 9}},
                     {"mixed": {"weight": 1.0}}, {"streaming_llm": {}}, {"random": {"seed": 3}}):  # fmt: skip
        complete = generate(server, token_ids=prompt, kv={"selector": selector}, stopping={"max_tokens": 2})[3]
        kept.add(tuple(layer.positions_kept for layer in complete.cache.layers))
    assert len(kept) == 1 and sum(kept.pop()) == len(complete.cache.layers) * 90


def test_any_free_port(start):
    server = start(wait=False, listen="127.0.0.1:0", metrics_listen="127.0.0.1:0", log_format="json")
    wait_until(lambda: server.log_text() and server.events("listening"))
    (event,) = server.events("listening")
    for key in ("grpc", "http"):
        assert int(event[key].rpartition(":")[2]) > 0
    with grpc.insecure_channel(event["grpc"]) as channel:
        request = health_pb2.HealthCheckRequest()
        wait_until(lambda: health_pb2_grpc.HealthStub(channel).Check(request).status == SERVING)
    assert server.stop() == 0


def test_the_model_is_described(server):
    model = server.model()
    architecture = model.model
    assert architecture.name == "Tiny llama" and architecture.architecture == "llama"
    assert (architecture.layers, architecture.context_length) == (LAYERS, CONTEXT)
    assert (architecture.kv_heads, architecture.head_dim) == (KV_HEADS, HEAD_DIM)
    assert set(architecture.weight_types) == {"Q4_1", "Q8_0", "F32"}
    assert model.kv_bytes_per_position_layer == KV_HEADS * (2 * HEAD_DIM * 2 + 4)
    assert model.limits.max_prompt_tokens == CONTEXT - 1
    assert model.limits.max_queue == 64 and model.limits.kv_memory_bytes == 256 << 20
    assert model.chat and list(model.eos_token_ids) == [258]
    assert model.plan.size.retention == 0.2
    assert list(model.plan.multipliers) == [1.0] * LAYERS
