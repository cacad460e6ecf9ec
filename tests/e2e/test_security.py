"""TLS, mutual TLS and tokens: who gets in, as whom, and what becomes of connections when files change."""

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from certificates import Authority, openssl
from conftest import binary
from service import Server, stubs, wait_until
from tiny_model import write_tiny_llama

ALICE, BOB = "alices-token-0001", "bobs-token-000002"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """Another CA, which nobody here trusts."""
    return Authority(tmp_path_factory.mktemp("stranger"), "Another CA")


@pytest.fixture(scope="module")
def server_pair(authority):
    return authority.issue("server")


@pytest.fixture(scope="module")
def long_model_path(tmp_path_factory):
    """One whose output may be so long that it does not end."""
    return write_tiny_llama(tmp_path_factory.mktemp("long") / "tiny.gguf", layers=2, context=1 << 17)


@pytest.fixture(scope="module")
def start(tiny_model_path, start_server):
    """start_server with what the tests here have in common."""

    def go(program="ripplekv-server", **options):
        options = {"model": tiny_model_path, "threads": 1, "log_format": "json", "log_level": "debug", **options}
        if program == "ripplekv-server":
            options.setdefault("calibration", "off")
        return start_server(program, **options)

    return go


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


def get_model(channel, metadata=(), wait=False):
    stub = stubs().decode_grpc.DecodeServiceStub(channel)
    return stub.GetModel(stubs().decode.GetModelRequest(), metadata=metadata, timeout=20, wait_for_ready=wait)


def error_of(call, *arguments, **more):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **more)
    return caught.value


def make_context(channel, metadata=()):
    stub = stubs().decode_grpc.DecodeServiceStub(channel)
    request = stubs().decode.CreateContextRequest(text="A document that is kept.")
    return stub.CreateContext(request, metadata=metadata, timeout=20).context.context_id


def see_context(channel, context_id, metadata=()):
    """Its id where the caller has it, else the code of the error; the list must agree."""
    stub = stubs().decode_grpc.DecodeServiceStub(channel)
    request = stubs().decode.GetContextRequest(context_id=context_id)
    listed = stub.ListContexts(stubs().decode.ListContextsRequest(), metadata=metadata, timeout=20).contexts
    try:
        seen = stub.GetContext(request, metadata=metadata, timeout=20).context.context_id
    except grpc.RpcError as error:
        assert context_id not in [each.context_id for each in listed]
        request = stubs().decode.DeleteContextRequest(context_id=context_id)
        assert error_of(stub.DeleteContext, request, metadata=metadata, timeout=20).code() == error.code()
        return error.code()
    assert context_id in [each.context_id for each in listed]
    return seen


# --- files at start ---


def test_a_server_does_not_start_with_files_it_cannot_use(tmp_path, tiny_model_path, authority, server_pair):
    certificate, key = server_pair
    _, other_key = authority.issue("other")
    missing, tokens = tmp_path / "missing.pem", tmp_path / "tokens"
    tokens.write_text(f"alice {ALICE}\nbob short\n")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    cases = (
        ("ripplekv-server", {"tls_certificate": certificate, "tls_key": missing}, missing, "No such file"),
        ("ripplekv-server", {"tls_certificate": certificate, "tls_key": other_key}, other_key, "is not the key of"),
        (
            "ripplekv-server",
            {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": key},
            key,
            "no certificate",
        ),
        ("ripplekv-server", {"token_file": tokens}, tokens, "line 2"),
        ("ripplekv-server", {"token_file": pipe}, pipe, "must be a regular file"),
        ("ripplekv-server", {"tls_certificate": certificate, "tls_key": tmp_path}, tmp_path, "must be a regular file"),
        ("ripplekv-server", {"calibration": "127.0.0.1:1", "calibration_tls_ca": missing}, missing, "No such file"),
        ("ripplekv-calibration-server", {"token_file": missing}, missing, "No such file"),
    )
    with contextlib.ExitStack() as stack:
        servers = []
        for number, (program, options, _, _) in enumerate(cases):
            options = {**options, "model": tiny_model_path, "profile_dir": tmp_path / "profiles"}
            server = Server(binary(program), tmp_path / f"log{number}", wait=False, **options)
            servers.append(stack.enter_context(server))
        for server, (_, options, file, reason) in zip(servers, cases, strict=True):
            assert server.process.wait(timeout=30) == 2, options
            assert str(file) in server.log_text() and reason in server.log_text(), server.log_text()
            assert ALICE not in server.log_text()


# --- tokens ---


@pytest.fixture(scope="module")
def tokens_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("tokens") / "tokens"
    file.write_text(f"# who may call\nalice {ALICE}\nbob {BOB}\n")
    return file


@pytest.fixture(scope="module")
def with_tls(start, authority, server_pair, tokens_file):
    certificate, key = server_pair
    options = {"tls_certificate": certificate, "tls_key": key, "token_file": tokens_file, "reflection": True}
    return start(**options, credentials=authority.credentials())


def test_calls_need_a_token_and_probes_none(with_tls):
    server, d, c = with_tls, stubs().decode, stubs().calibration
    calls = [
        lambda **how: get_model(server.channel, **how),
        lambda **how: next(iter(server.decode.Generate(d.GenerateRequest(text="x"), timeout=20, **how))),
        lambda **how: server.decode.Score(d.ScoreRequest(text="x"), timeout=20, **how),
        lambda **how: server.decode.CreateContext(d.CreateContextRequest(text="x"), timeout=20, **how),
        lambda **how: server.decode.ListContexts(d.ListContextsRequest(), timeout=20, **how),
        lambda **how: server.decode.Tokenize(d.TokenizeRequest(text="x"), timeout=20, **how),
        lambda **how: server.calibration.ListProfiles(c.ListProfilesRequest(), timeout=20, **how),
        lambda **how: next(iter(server.calibration.CalibrateModel(c.CalibrateModelRequest(), timeout=20, **how))),
        lambda **how: server.calibration.DeleteProfile(c.DeleteProfileRequest(profile_id="x"), timeout=20, **how),
    ]
    for call in calls:
        for metadata in (
            (),
            bearer(ALICE[:-1]),
            bearer(ALICE + "1"),
            bearer(""),
            bearer("alice"),
            (("authorization", ALICE),),
            (("authorization", f"Basic {ALICE}"),),
            bearer(ALICE) + bearer(BOB),
        ):
            error = error_of(call, metadata=metadata)
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED, metadata
            assert "token" in error.details()
            assert not any(secret in error.details() for secret in (ALICE[:-1], BOB, "alice", "bob"))
    assert get_model(server.channel, bearer(ALICE)).model.layers > 0
    assert get_model(server.channel, (("authorization", f"bearer {BOB}"),)).model.layers > 0
    assert server.health("ripplekv.v1.DecodeService") == health_pb2.HealthCheckResponse.SERVING
    watch = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest(), timeout=5)
    assert next(iter(watch)).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()
    reflection = server.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    assert b"ripplekv.v1.DecodeService" in next(iter(reflection(iter([b":\x00"]), timeout=5)))
    callers = {line["caller"] for line in server.events("call")}
    assert callers == {"alice", "bob", "unauthenticated"}
    assert ALICE not in server.log_text() and BOB not in server.log_text()


def test_contexts_belong_to_the_token(with_tls):
    channel = with_tls.channel
    own = make_context(channel, bearer(ALICE))
    assert see_context(channel, own, bearer(ALICE)) == own
    assert see_context(channel, own, bearer(BOB)) == grpc.StatusCode.NOT_FOUND
    request = stubs().decode.GenerateRequest(text="x", context_id=own)
    error = error_of(lambda: next(iter(with_tls.decode.Generate(request, metadata=bearer(BOB), timeout=20))))
    assert error.code() == grpc.StatusCode.NOT_FOUND


def running_stream(server, metadata=()):
    """A Generate whose end no test sees, with its first message read."""
    request = stubs().decode.GenerateRequest(text="x", stopping={"max_tokens": 100_000, "ignore_eos": True})
    stream = server.decode.Generate(request, metadata=metadata, timeout=120)
    next(stream)
    return stream


def goes_on(server, stream):
    """Reads on; true where the call has not ended."""
    for _ in range(200):
        assert next(stream).HasField("chunk")
    return not [line for line in server.events("call") if line["method"] == "Generate"]


def test_tokens_change_while_a_stream_runs(start, long_model_path, tmp_path):
    file = tmp_path / "tokens"
    file.write_text(f"alice {ALICE}\n")
    server = start(token_file=file, model=long_model_path)
    stream = running_stream(server, bearer(ALICE))
    file.write_text(f"alice {ALICE}\nalice {BOB}\n")  # a mistake
    wait_until(lambda: server.events("tokens_reload_failed"), 10, "the log of a broken file")
    (failed,) = server.events("tokens_reload_failed")
    assert failed["level"] == "error" and str(file) in failed["error"] and "line 2" in failed["error"]
    assert get_model(server.channel, bearer(ALICE)).model.layers > 0
    file.with_suffix(".new").write_text(f"bob {BOB}\n")
    file.with_suffix(".new").rename(file)
    wait_until(lambda: server.events("tokens_reloaded"), 10, "the log of new tokens")
    assert get_model(server.channel, bearer(BOB)).model.layers > 0
    assert error_of(get_model, server.channel, bearer(ALICE)).code() == grpc.StatusCode.UNAUTHENTICATED
    assert goes_on(server, stream)
    stream.cancel()
    file.unlink()
    os.mkfifo(file)  # which nobody writes to
    wait_until(lambda: "regular file" in server.events("tokens_reload_failed")[-1]["error"], 10, "the log of a pipe")
    assert get_model(server.channel, bearer(BOB)).model.layers > 0
    assert server.stop(timeout=20) == 0


# --- TLS ---


def test_a_server_of_another_ca_is_not_trusted(with_tls, stranger):
    assert get_model(with_tls.channel, bearer(ALICE)).model.layers > 0
    assert error_of(get_model, with_tls.channel).code() == grpc.StatusCode.UNAUTHENTICATED
    with with_tls.connect(stranger.credentials()) as channel:
        error = error_of(get_model, channel, bearer(ALICE))
        assert error.code() == grpc.StatusCode.UNAVAILABLE and "CERTIFICATE_VERIFY_FAILED" in error.details()


def test_plain_text_is_refused_and_the_server_goes_on(with_tls):
    for _ in range(20):
        with with_tls.connect() as channel:
            assert error_of(get_model, channel, bearer(ALICE)).code() == grpc.StatusCode.UNAVAILABLE
    host, port = with_tls.address.split(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\x00" * 1000, b""):
        with socket.create_connection((host, int(port)), timeout=10) as plain:
            plain.sendall(garbage)
    assert get_model(with_tls.channel, bearer(ALICE)).model.layers > 0


def shown_certificate(server):
    """What a new connection sees, in DER."""
    host, port = server.address.split(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port)), timeout=10) as plain, context.wrap_socket(plain) as tls:
        return tls.getpeercert(binary_form=True)


def der(certificate):
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


def expiry(certificate):
    """Of the first one in a file, in seconds since the Unix epoch."""
    done = subprocess.run(["openssl", "x509", "-enddate", "-noout", "-in", certificate], capture_output=True, text=True)
    return ssl.cert_time_to_seconds(done.stdout.removeprefix("notAfter=").strip())


def shown_expiry(server):
    """What the metrics say of the files in force: (server, client_ca)."""
    name, shown = "ripplekv_tls_certificate_expiry_timestamp_seconds", server.metrics()
    return tuple(shown.get(f'{name}{{file="{file}"}}') for file in ("server", "client_ca"))


def put(source, target):
    """As tools that renew certificates do: whole files, one after the other."""
    shutil.copy(source, target.with_suffix(".new"))
    target.with_suffix(".new").rename(target)


def test_certificates_change_while_a_stream_runs(start, long_model_path, authority, stranger, server_pair, tmp_path):
    certificate, key, client_ca = tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "ca.crt"
    for source, target in zip((*server_pair, authority.ca), (certificate, key, client_ca)):
        put(source, target)
    client = authority.issue("client")
    server = start(
        model=long_model_path,
        tls_certificate=certificate,
        tls_key=key,
        tls_client_ca=client_ca,
        credentials=authority.credentials(client),
    )
    stream = running_stream(server)
    assert shown_certificate(server) == der(server_pair[0])
    assert shown_expiry(server) == (expiry(server_pair[0]), expiry(authority.ca))

    certificate.write_text("broken")
    wait_until(lambda: server.events("tls_reload_failed"), 10, "the log of a broken certificate")
    assert str(certificate) in server.events("tls_reload_failed")[0]["error"]
    new = authority.issue("server-2", days=4)
    put(new[0], certificate)  # beside the old key
    wait_until(lambda: len(server.events("tls_reload_failed")) == 2, 10, "the log of a key that does not match")
    assert str(key) in server.events("tls_reload_failed")[1]["error"]
    time.sleep(1.2)  # longer than gRPC takes to read what it is given
    assert shown_certificate(server) == der(server_pair[0])
    assert shown_expiry(server) == (expiry(server_pair[0]), expiry(authority.ca))

    put(new[1], key)
    # Two CAs, the second of which ends first.
    both = tmp_path / "both.crt"
    both.write_text(stranger.ca.read_text() + Authority(tmp_path / "short", days=1).ca.read_text())
    put(both, client_ca)
    wait_until(lambda: server.events("tls_reloaded"), 10, "the log of new certificates")
    assert shown_expiry(server) == (expiry(new[0]), expiry(tmp_path / "short" / "ca.crt"))
    wait_until(lambda: shown_certificate(server) == der(new[0]), 10, "the new certificate")
    visitor = grpc.ssl_channel_credentials(
        authority.ca.read_bytes(), *(each.read_bytes() for each in reversed(stranger.issue("visitor")))
    )

    def visitor_gets_in():
        with server.connect(visitor) as channel:
            try:
                return get_model(channel)
            except grpc.RpcError:
                return None

    wait_until(visitor_gets_in, 10, "a client of the new CA")
    with server.connect(authority.credentials(client)) as channel:
        assert error_of(get_model, channel).code() == grpc.StatusCode.UNAVAILABLE
    assert goes_on(server, stream)
    stream.cancel()
    wait_until(lambda: {line["caller"] for line in server.events("call")} == {"client", "visitor"}, what="both names")

    assert not server.events("tls_certificate_ended")
    for made, used in zip(authority.issue("ended", days=0), (certificate, key)):
        put(made, used)
    wait_until(lambda: server.events("tls_certificate_ended"), 10, "the log of a certificate that has ended")
    (line,) = server.events("tls_certificate_ended")
    assert (line["level"], line["option"], line["file"]) == ("warning", "--tls-certificate", str(certificate))


# --- mutual TLS ---


@pytest.fixture(scope="module")
def mutual(start, authority, server_pair):
    certificate, key = server_pair
    credentials = authority.credentials(authority.issue("alice"))
    return start(
        tls_certificate=certificate, tls_key=key, tls_client_ca=authority.ca, credentials=credentials, reflection=True
    )


def test_a_client_needs_a_certificate_of_the_ca(mutual, authority, stranger):
    wrong = grpc.ssl_channel_credentials(
        authority.ca.read_bytes(), *(each.read_bytes() for each in reversed(stranger.issue("alice")))
    )
    for credentials in (authority.credentials(), wrong, None):
        with mutual.connect(credentials) as channel:
            assert error_of(get_model, channel).code() == grpc.StatusCode.UNAVAILABLE
            health = health_pb2_grpc.HealthStub(channel)
            assert (
                error_of(health.Check, health_pb2.HealthCheckRequest(), timeout=5).code() == grpc.StatusCode.UNAVAILABLE
            )
    assert get_model(mutual.channel).model.layers > 0


def test_contexts_belong_to_the_certificates_name(mutual, authority):
    own = make_context(mutual.channel)
    assert see_context(mutual.channel, own) == own
    nameless = authority.issue("nameless", "/O=No common name")
    for pair, seen in (
        (authority.issue("bob"), grpc.StatusCode.NOT_FOUND),
        (nameless, grpc.StatusCode.NOT_FOUND),
        (authority.issue("alice-renewed", "/CN=alice"), own),
    ):
        with mutual.connect(authority.credentials(pair)) as channel:
            assert see_context(channel, own) == seen
    assert {line["caller"] for line in mutual.events("call")} == {"alice", "bob", "anonymous"}


# --- the clients ---


@pytest.fixture(scope="module")
def plain(start):
    return start()


@pytest.fixture(scope="module")
def elsewhere(start, authority):
    """A server whose certificate is for another name than it is called by."""
    certificate, key = authority.issue("elsewhere", hosts="DNS:elsewhere.example.com")
    return start(tls_certificate=certificate, tls_key=key, wait=False)


@pytest.fixture(scope="module")
def mistakes(with_tls, mutual, plain, elsewhere, authority, stranger):
    """(server, CA, certificate and key, token, what the error says)."""
    wait_until(lambda: "model_loaded" in elsewhere.log_text(), what="a server that listens")
    return [
        (with_tls, None, None, ALICE, "call it by TLS"),
        (with_tls, stranger.ca, None, ALICE, "is of no CA that is trusted here"),
        (with_tls, authority.ca, None, None, "needs a token"),
        (with_tls, authority.ca, None, BOB[::-1], "none that this server takes"),
        (mutual, authority.ca, None, None, "may want a client's certificate"),
        (mutual, authority.ca, stranger.issue("alice"), None, "may want a client's certificate"),
        (plain, authority.ca, None, None, "does not speak TLS"),
        (elsewhere, authority.ca, None, None, "is for another name"),
    ]


def ripplekv(server, *arguments, token=None, **variables):
    environment = {**os.environ, "RIPPLEKV_TOKEN": token or "", "NO_COLOR": "1", **variables}
    return subprocess.run(
        [binary("ripplekv"), "--server", getattr(server, "address", server), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )


def test_the_command(with_tls, mutual, authority, server_pair, mistakes, tmp_path):
    token = tmp_path / "token"
    token.write_text(f"{ALICE}\n")
    for done in (
        ripplekv(with_tls, "--tls-ca", authority.ca, "model", token=BOB),
        ripplekv(with_tls, "model", "--tls-ca", authority.ca, "--token-file", token),
        ripplekv(with_tls, "health", "--tls-ca", authority.ca),
        ripplekv(with_tls, "health", RIPPLEKV_TLS_CA=str(authority.ca)),
        ripplekv(
            mutual, "--tls-ca", authority.ca, "--tls-certificate", server_pair[0], "--tls-key", server_pair[1], "model"
        ),
    ):
        assert done.returncode == 0, done.stderr
    for server, ca, pair, token, says in mistakes:
        flags = (["--tls-ca", ca] if ca else []) + (
            ["--tls-certificate", pair[0], "--tls-key", pair[1]] if pair else []
        )
        done = ripplekv(server, *flags, "model", token=token)
        assert done.returncode == 1 and says in done.stderr, (flags, done.stderr)
        assert "--token-file" in done.stderr if "token" in says or "takes" in says else "--tls-ca FILE" in done.stderr
        assert "E1" not in done.stderr  # gRPC's own lines


def test_what_the_command_cannot_use(tmp_path, authority, server_pair):
    certificate, key = server_pair
    files = {name: tmp_path / name for name in ("garbage", "empty", "encrypted", "weak", "short")}
    files["garbage"].write_text("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    files["empty"].write_text("")
    files["short"].write_text("short\n")
    openssl("ec", "-in", key, "-aes128", "-passout", "pass:x", "-out", files["encrypted"])
    weak_key = tmp_path / "weak.key"
    openssl(
        "req", "-x509", "-newkey", "rsa:512", "-nodes", "-subj", "/CN=w", "-keyout", weak_key, "-out", files["weak"]
    )
    pair = ["--tls-certificate", certificate, "--tls-key"]
    for flags, says in (
        (["--tls-ca", tmp_path / "missing"], "No such file"),
        (["--tls-ca", tmp_path], "cannot be read"),
        (["--tls-ca", files["garbage"]], "cannot be read"),
        (["--tls-ca", files["empty"]], "holds no certificate"),
        (["--tls-certificate", certificate], "--tls-key FILE"),
        (["--tls-key", key], "--tls-certificate FILE"),
        (pair + [certificate], "holds no private key"),
        (pair + [files["encrypted"]], "without a passphrase"),
        (pair + [authority.issue("other")[1]], "is not the key of"),
        (["--tls-certificate", files["weak"], "--tls-key", weak_key], "TLS does not take it"),
        (["--token-file", files["short"]], "16 to 512"),
    ):
        done = ripplekv("127.0.0.1:1", *flags, "model")
        assert done.returncode == 2 and says in done.stderr, (flags, done.stderr)
        assert str(flags[1 if files["weak"] in flags else -1]) in done.stderr
    done = ripplekv("10.0.0.7:1", "model", token=ALICE)
    assert done.returncode == 2 and "plain text" in done.stderr and ALICE not in done.stderr
    done = ripplekv("127.0.0.1:1", "model", token="short")
    assert done.returncode == 2 and "RIPPLEKV_TOKEN" in done.stderr


def test_the_python_client(with_tls, mutual, authority, mistakes):
    stubs()
    from ripplekv import Client, RippleKVError, Unauthenticated

    with Client(with_tls.address, tls_ca=authority.ca, token=ALICE) as client:
        context = client.create_context("A document.")
        assert client.context(context.context_id).context_id == context.context_id
        assert client.generate("x", max_tokens=2).complete.usage.output_tokens > 0
    certificate, key = authority.issue("carol")
    with Client(mutual.address, tls_ca=authority.ca, tls_certificate=certificate, tls_key=key) as client:
        assert not list(client.contexts())
    for server, ca, pair, token, says in mistakes:
        certificate, key = pair or (None, None)
        arguments = {"tls_ca": ca, "tls_certificate": certificate, "tls_key": key, "token": token, "timeout": 20}
        with Client(server.address, **arguments) as client, pytest.raises(RippleKVError, match=says) as caught:
            client.model()
        assert isinstance(caught.value, Unauthenticated) == ("token" in says or "takes" in says)
    with pytest.raises(ValueError, match="plain text"):
        Client("example.com:1", token=ALICE)
    with pytest.raises(ValueError, match="go together"):
        Client(tls_key=authority.ca)
    with pytest.raises(ValueError, match="holds no certificate"):
        Client(tls_ca=authority.issue("dave")[1])


# --- a calibration server ---


def test_a_profile_is_fetched_by_mutual_tls_with_a_token(
    start, authority, stranger, server_pair, tokens_file, tmp_path
):
    certificate, key = server_pair
    small = {"calibration_examples": 2, "calibration_prefix": 64, "calibration_window": 8}
    pair = {"tls_certificate": certificate, "tls_key": key}
    other = start(
        "ripplekv-calibration-server",
        **small,
        **pair,
        tls_client_ca=authority.ca,
        token_file=tokens_file,
        credentials=authority.credentials(server_pair),
    )
    ca, token = tmp_path / "ca.crt", tmp_path / "token"
    shutil.copy(stranger.ca, ca)
    token.write_text(BOB[::-1])
    server = start(
        **small,
        **pair,
        calibration=other.address,
        calibration_tls_ca=ca,
        calibration_token_file=token,
        credentials=authority.credentials(),
    )

    def failed(text):
        return [line for line in server.events("calibration_server_failed") if text in line["error"]]

    wait_until(lambda: failed("is of no CA that is trusted here"), what="the log of a CA that is not trusted")
    put(authority.ca, ca)
    wait_until(lambda: failed("none that this server takes"), what="the log of a wrong token")
    token.write_text(f"{ALICE}\n")
    wait_until(lambda: server.model().plan.source == stubs().profile.PLAN_SOURCE_PROFILE, 60, "a profile")
    assert {line["caller"] for line in other.events("call") if line["code"] == "OK"} == {"server"}
