"""Input that is wrong: which code, and which field, value and range the message names; and the server lives on."""

import pathlib
import random
import socket
import subprocess

import gguf
import grpc
import pytest

from conftest import binary
from service import Server, error_details, flags, free_port, generate, stubs
from tiny_model import TH, VOCABULARY, write_tiny_llama

NAN, INFINITY = float("nan"), float("inf")
INT_MIN, INT_MAX = -(2**31), 2**31 - 1
CONTEXT = 1024


@pytest.fixture(scope="module")
def server(start_server, tiny_model_path):
    return start_server(
        model=tiny_model_path, calibration_examples=2, calibration_prefix=128, calibration_window=16, kv_memory="64MiB"
    )


@pytest.fixture(autouse=True)
def still_serves(request):
    """After each test that used the server: it runs, and answers a good request."""
    yield
    if "server" in request.fixturenames:
        server = request.getfixturevalue("server")
        assert server.process.poll() is None, server.log_text()
        _, ids, _, _ = generate(server, text="Good.", stopping={"max_tokens": 3, "ignore_eos": True})
        assert len(ids) == 3


def refused(call, code=grpc.StatusCode.INVALID_ARGUMENT):
    with pytest.raises(grpc.RpcError) as failure:
        call()
    assert failure.value.code() == code, failure.value.details()
    return failure.value


def check_violation(error, field, *words):
    """The error's one field violation is about `field`, and its text holds `words`: value and range."""
    violation = error_details(error)["BadRequest"].field_violations[0]
    assert violation.field == field, violation
    for text in (violation.description, error.details()):
        assert text.startswith(field)
        for word in words:
            assert word in text, text


PROMPT = {"text": "Hello"}


def sampling(**fields):
    return {**PROMPT, "sampling": fields}


def stopping(**fields):
    return {**PROMPT, "stopping": fields}


def size(**fields):
    return {**PROMPT, "kv": {"size": fields}}


def ripple(**fields):
    return {**PROMPT, "kv": {"allocator": {"ripple": fields}}}


def selector(**fields):
    return {**PROMPT, "kv": {"selector": fields}}


def snapkv(**fields):
    return selector(snapkv=fields)


# Request, field, words of the message: the value and its range.
GENERATE = [
    ({}, "prompt", "absent", "text, chat or token_ids"),
    ({"text": ""}, "text", "empty"),
    ({"text": "a" * CONTEXT}, "prompt", f"is {CONTEXT} tokens", f"1 to {CONTEXT - 1}"),
    ({"text": "a" * 1_000_000}, "text", "is 1000000 bytes", f"1 to {CONTEXT - 1} tokens"),
    ({"token_ids": {"ids": []}}, "prompt", "empty", f"1 to {CONTEXT - 1}"),
    ({"token_ids": {"ids": [7] * CONTEXT}}, "prompt", f"is {CONTEXT} tokens", f"1 to {CONTEXT - 1}"),
    ({"token_ids": {"ids": [1, -1]}}, "token_ids.ids[1]", "is -1", f"[0, {VOCABULARY - 1}]"),
    ({"token_ids": {"ids": [VOCABULARY]}}, "token_ids.ids[0]", f"is {VOCABULARY}", f"[0, {VOCABULARY - 1}]"),
    ({"token_ids": {"ids": [INT_MIN]}}, "token_ids.ids[0]", f"is {INT_MIN}"),
    ({"chat": {"messages": []}}, "chat.messages", "has 0", "1 to 1024"),
    ({"chat": {"messages": [{"role": 2, "content": "x"}] * 1025}}, "chat.messages", "has 1025", "1 to 1024"),
    ({"chat": {"messages": [{"content": "x"}]}}, "chat.messages[0].role", "is 0", "ROLE_USER"),
    ({"chat": {"messages": [{"role": 2, "content": "x"}, {"role": 9}]}}, "chat.messages[1].role", "is 9", "ROLE_SYSTEM"),
    ({"chat": {"messages": [{"role": 2, "content": "x" * CONTEXT}]}}, "prompt", "tokens", f"1 to {CONTEXT - 1}"),
    ({"request_id": "two words", **PROMPT}, "request_id", "9 bytes", "1 to 128"),
    ({"request_id": "x" * 129, **PROMPT}, "request_id", "129 bytes", "1 to 128"),
    ({"request_id": "é", **PROMPT}, "request_id", "printable ASCII"),
    *((sampling(temperature=v), "sampling.temperature", "[0, 100]") for v in (-0.1, 100.5, NAN, INFINITY)),
    *((sampling(top_p=v), "sampling.top_p", "(0, 1]") for v in (0.0, 1.01, -1.0, NAN)),
    *((sampling(top_k=v), "sampling.top_k", f"is {v}", f"[0, {VOCABULARY}]") for v in (-1, VOCABULARY + 1, INT_MIN)),
    *((sampling(min_p=v), "sampling.min_p", "[0, 1]") for v in (-0.01, 1.5, NAN)),
    *(
        (sampling(repetition_penalty=v), "sampling.repetition_penalty", "[0.01, 10]")
        for v in (0.0, 0.005, -1.0, 10.5, NAN, 1e-40)
    ),
    *((sampling(presence_penalty=v), "sampling.presence_penalty", "[-10, 10]") for v in (-10.5, 11.0, NAN)),
    *((sampling(frequency_penalty=v), "sampling.frequency_penalty", "[-10, 10]") for v in (-10.5, INFINITY)),
    (sampling(logit_bias={VOCABULARY: 1.0}), "sampling.logit_bias[0]", f"is {VOCABULARY}", f"[0, {VOCABULARY - 1}]"),
    (sampling(logit_bias={5: 100.5}), "sampling.logit_bias", "token 5", "is 100.5", "[-100, 100]"),
    (sampling(logit_bias={5: NAN}), "sampling.logit_bias", "token 5", "is nan"),
    (sampling(logit_bias={i: 0.0 for i in range(1025)}), "sampling.logit_bias", "has 1025", "1024"),
    *((stopping(max_tokens=v), "stopping.max_tokens", f"is {v}", "[1, ") for v in (0, -1, CONTEXT, INT_MAX)),
    (stopping(min_tokens=-1), "stopping.min_tokens", "is -1", "[0, 256]"),
    (stopping(max_tokens=5, min_tokens=6), "stopping.min_tokens", "is 6", "[0, 5]"),
    (stopping(stop_strings=[""]), "stopping.stop_strings[0]", "is 0", "1 to 256 bytes"),
    (stopping(stop_strings=["a", "é" * 129]), "stopping.stop_strings[1]", "is 258", "1 to 256 bytes"),
    (stopping(stop_strings=["a"] * 17), "stopping.stop_strings", "has 17", "16"),
    (stopping(stop_token_ids=[1, VOCABULARY]), "stopping.stop_token_ids[1]", f"is {VOCABULARY}"),
    (stopping(stop_token_ids=[-5]), "stopping.stop_token_ids[0]", "is -5", f"[0, {VOCABULARY - 1}]"),
    (stopping(stop_token_ids=[1] * 257), "stopping.stop_token_ids", "has 257", "256"),
    *((size(retention=v), "kv.size.retention", "above 0 and at most 1") for v in (0.0, -0.5, 1.0001, NAN, INFINITY)),
    *((size(total_positions=v), "kv.size.total_positions", f"is {v}", "at least 1") for v in (0, -(2**63))),
    *((ripple(r=v), "kv.allocator.ripple.r", "between 1 and 1000000") for v in (0.99, 1e7, -1.0, NAN)),
    *((ripple(gamma=v), "kv.allocator.ripple.gamma", "between 1 and 1000000") for v in (0.5, INFINITY)),
    *((snapkv(window=v), "kv.selector.snapkv.window", f"is {v}", "between 1 and 1024") for v in (0, -1, 1025)),
    *((snapkv(kernel=v), "kv.selector.snapkv.kernel", f"is {v}", "odd", "63") for v in (0, 2, 65, -7)),
    (snapkv(pooling=9), "kv.selector.snapkv.pooling", "is 9", "POOLING_MAX"),
    (selector(h2o={"queries": 0}), "kv.selector.h2o.queries", "is 0", "between 1 and 512"),
    (selector(h2o={"window": 1025}), "kv.selector.h2o.window", "is 1025", "between 1 and 1024"),
    (selector(recent_attention={"queries": 513}), "kv.selector.recent_attention.queries", "is 513", "512"),
    (selector(recent_attention={"kernel": 2}), "kv.selector.recent_attention.kernel", "is 2", "odd"),
    *((selector(mixed={"weight": v}), "kv.selector.mixed.weight", "between 0 and 1") for v in (-0.1, 1.1, NAN)),
    (selector(mixed={"snapkv": {"kernel": 4}}), "kv.selector.mixed.snapkv.kernel", "is 4", "odd"),
    (selector(streaming_llm={"window": 0}), "kv.selector.streaming_llm.window", "is 0", "between 1 and 1024"),
    (selector(random={"window": -1}), "kv.selector.random.window", "is -1", "between 1 and 1024"),
    *(({**PROMPT, "kv": {field: 9}}, f"kv.{field}", "is 9", "KV_TYPE_INT8") for field in ("key_type", "value_type")),
    *(({**PROMPT, "output": {"logprobs": v}}, "output.logprobs", f"is {v}", "0 to 20") for v in (-1, 21)),
]


@pytest.mark.parametrize("request_fields, field, words", [(r, f, w) for r, f, *w in GENERATE])
def test_generate_refuses(server, request_fields, field, words):
    error = refused(lambda: generate(server, **request_fields))
    check_violation(error, field, *words)


def calibrate(server, settings=None, **more):
    request = stubs().calibration.CalibrateModelRequest(settings=settings or {}, **more)
    return list(server.calibration.CalibrateModel(request, timeout=60))


CALIBRATE = [
    *(({"examples": v}, "settings.examples", f"is {v}", "4096") for v in (0, -1, 4097)),
    *(({"prefix_tokens": v}, "settings.prefix_tokens", f"is {v}", "1048576") for v in (1, -1, 1048577)),
    *(({"window_tokens": v}, "settings.window_tokens", f"is {v}", "65536") for v in (0, 65537)),
    *(({"eta": v}, "settings.eta", "10") for v in (-0.1, 10.5, NAN, INFINITY)),
    *(({"sinks": v}, "settings.sinks", f"is {v}", "65536") for v in (-1, 65537)),
    *(({"recent": v}, "settings.recent", f"is {v}", "65536") for v in (-1, 65537)),
    ({"prefix_tokens": 1010}, "settings.prefix_tokens", "1024"),  # with the window beyond the context
    ({"prefix_tokens": 36}, "settings.", "36"),  # nothing left between sinks and recent
]


@pytest.mark.parametrize("settings, field, words", [(r, f, w) for r, f, *w in CALIBRATE])
def test_calibrate_refuses(server, settings, field, words):
    error = refused(lambda: calibrate(server, settings))
    violation = error_details(error)["BadRequest"].field_violations[0]
    assert violation.field.startswith(field), violation
    for word in words:
        assert word in violation.description, violation.description


def test_calibrate_refuses_texts(server):
    def texts(*all_texts):
        return refused(lambda: calibrate(server, corpus={"texts": {"texts": all_texts}}))

    check_violation(texts(), "corpus.texts.texts", "empty", "1 to 4096")
    check_violation(texts(*["a"] * 4097), "corpus.texts.texts", "has 4097", "1 to 4096")
    check_violation(texts("a" * 400, ""), "corpus.texts.texts[1]", "empty", "non-empty UTF-8")
    check_violation(texts("too short"), "settings.examples", "is 2", "144 tokens")
    for name in ("../etc", "a/b", "UPPER", "x" * 65):
        error = refused(lambda: calibrate(server, corpus={"name": name}))
        check_violation(error, "corpus.name", f"is '{name}'", "1 to 64")
    unknown = lambda: calibrate(server, corpus={"name": "no-such"})  # noqa: E731
    error = refused(unknown, grpc.StatusCode.NOT_FOUND)
    for word in ("no-such", "default", "--corpus-dir"):
        assert word in error.details()
    assert error_details(error)["ResourceInfo"].resource_name == "no-such"
    check_violation(refused(lambda: calibrate(server, corpus={"name": ""})), "corpus.name", "empty", "1 to 64")


def test_calibrations_refuse(server):
    pb, calls = stubs().calibration, server.calibration
    for size in (-1, 1001, INT_MIN):
        request = pb.ListCalibrationsRequest(page_size=size)
        check_violation(refused(lambda: calls.ListCalibrations(request)), "page_size", f"is {size}", "0 to 1000")
    for token in ("x", "-1", "0", "1.5", "calibration-1", "9" * 30):
        request = pb.ListCalibrationsRequest(page_token=token)
        check_violation(refused(lambda: calls.ListCalibrations(request)), "page_token", f"is '{token}'", "next_page_token")
    check_violation(refused(lambda: calls.CancelCalibration(pb.CancelCalibrationRequest())), "job_id", "empty")
    for job in ("calibration-999", "calibration-", "\n"):
        request = pb.CancelCalibrationRequest(job_id=job)
        error = refused(lambda: calls.CancelCalibration(request), grpc.StatusCode.NOT_FOUND)
        resource = error_details(error)["ResourceInfo"]
        assert resource.resource_type == "ripplekv.v1.Calibration" and resource.resource_name == job


@pytest.mark.parametrize("size", (200, 2_000_000))
def test_an_error_repeats_little_of_what_was_sent_and_whole_characters(server, size):
    """A client takes 8 KiB of trailers at most, and details that are UTF-8."""
    c, d = stubs().calibration, stubs().decode
    for start in range(4):
        text = ("a" * start + "é€😀" * size)[:size]
        for call in (
            lambda: server.calibration.GetProfile(c.GetProfileRequest(profile_id=text), timeout=20),
            lambda: server.calibration.DeleteProfile(c.DeleteProfileRequest(profile_id=text), timeout=20),
            lambda: server.calibration.ListProfiles(c.ListProfilesRequest(page_token=text), timeout=20),
            lambda: server.calibration.PlanBudgets(c.PlanBudgetsRequest(profile_id=text, **TOKENS), timeout=20),
            lambda: server.calibration.CancelCalibration(c.CancelCalibrationRequest(job_id=text), timeout=20),
            lambda: server.calibration.ListCalibrations(c.ListCalibrationsRequest(page_token=text), timeout=20),
            lambda: calibrate(server, corpus={"name": text}),
            lambda: server.decode.GetContext(d.GetContextRequest(context_id=text), timeout=20),
            lambda: server.health(text),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            error = caught.value
            assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), error
            assert error_details(error) and len(error.details()) < 300


TOKENS = {"prompt_tokens": 1000}
PLAN = [
    *(({"prompt_tokens": v}, "prompt_tokens", f"is {v}", "2147483647") for v in (0, -1, INT_MIN)),
    ({**TOKENS, "min_positions": -1}, "min_positions", "is -1", "2147483647"),
    ({**TOKENS, "profile_id": "abc"}, "profile_id", "'abc'", "64"),
    ({**TOKENS, "inline": {"mean_kl": []}}, "inline.mean_kl", "has 0", "4096"),
    ({**TOKENS, "inline": {"mean_kl": [0.1] * 4097}}, "inline.mean_kl", "has 4097", "4096"),
    *(
        ({**TOKENS, "inline": {"mean_kl": [0.1, v]}}, "inline.mean_kl[1]", "finite and at least 0")
        for v in (-0.1, NAN, INFINITY)
    ),
    ({**TOKENS, "size": {"retention": 0.0}}, "size.retention", "is 0", "above 0"),
    ({**TOKENS, "size": {"total_positions": 0}}, "size.total_positions", "is 0", "at least 1"),
    ({**TOKENS, "allocator": {"ripple": {"r": 0.5}}}, "allocator.ripple.r", "is 0.5", "1000000"),
    ({**TOKENS, "allocator": {"ripple": {"gamma": 2e6}}}, "allocator.ripple.gamma", "1000000"),
]


@pytest.mark.parametrize("fields, field, words", [(r, f, w) for r, f, *w in PLAN])
def test_plan_budgets_refuses(server, fields, field, words):
    request = stubs().calibration.PlanBudgetsRequest(**fields)
    check_violation(refused(lambda: server.calibration.PlanBudgets(request)), field, *words)


def test_profile_queries_refuse(server):
    pb, calls = stubs().calibration, server.calibration
    for size in (-1, 1001):
        error = refused(lambda: calls.ListProfiles(pb.ListProfilesRequest(page_size=size)))
        check_violation(error, "page_size", f"is {size}", "0 to 1000")
    error = refused(lambda: calls.ListProfiles(pb.ListProfilesRequest(page_token="nonsense")))
    check_violation(error, "page_token", "'nonsense'", "next_page_token")
    for name in ("x", "A" * 64, "../" + "a" * 61, "a" * 65):
        for call, request in (
            (calls.GetProfile, pb.GetProfileRequest(profile_id=name)),
            (calls.DeleteProfile, pb.DeleteProfileRequest(profile_id=name)),
        ):
            check_violation(refused(lambda: call(request)), "profile_id", name, "64 lower-case hexadecimal digits")
    error = refused(lambda: calls.DeleteProfile(pb.DeleteProfileRequest()))
    check_violation(error, "profile_id", "64 lower-case hexadecimal digits")


def test_tokenize_and_detokenize_refuse(server):
    pb, calls = stubs().decode, server.decode
    error = refused(lambda: calls.Tokenize(pb.TokenizeRequest()))
    check_violation(error, "prompt", "absent", "text or chat")
    error = refused(lambda: calls.Tokenize(pb.TokenizeRequest(chat={"messages": [{"role": 7}]})))
    check_violation(error, "chat.messages[0].role", "is 7", "ROLE_USER")
    most = 1 << 20
    request = pb.TokenizeRequest(text="x" * (most + 1))
    check_violation(refused(lambda: calls.Tokenize(request)), "text", f"is {most + 1} bytes", f"at most {most}")
    half = {"role": 2, "content": "x" * (most // 2 + 1)}
    error = refused(lambda: calls.Tokenize(pb.TokenizeRequest(chat={"messages": [half, half]})))
    check_violation(error, "chat.messages", f"is {most + 2} bytes", f"at most {most}")
    assert calls.Tokenize(pb.TokenizeRequest(text="th" * (most // 2))).token_ids == [TH] * (most // 2)
    for token in (-1, VOCABULARY, INT_MAX):
        error = refused(lambda: calls.Detokenize(pb.DetokenizeRequest(token_ids=[0, token])))
        check_violation(error, "token_ids[1]", f"is {token}", f"[0, {VOCABULARY - 1}]")
    error = refused(lambda: calls.Detokenize(pb.DetokenizeRequest(token_ids=[1] * (2**20 + 1))))
    check_violation(error, "token_ids", "has 1048577", "1048576")


def test_text_that_is_not_utf8_on_the_wire(server):
    """protobuf refuses it before any handler runs: an error, and no crash."""
    raw = server.channel.unary_stream("/ripplekv.v1.DecodeService/Generate")
    with pytest.raises(grpc.RpcError) as failure:
        list(raw(b"\x12\x02\xff\xfe", timeout=10))  # field 2, `text`
    assert failure.value.code() != grpc.StatusCode.OK
    for garbage in (b"\xff" * 40, b"\x12\xff\xff\xff\xff\x0f", b"\x00"):
        with pytest.raises(grpc.RpcError):
            list(raw(garbage, timeout=10))


def test_too_large_a_message(server):
    error = refused(lambda: generate(server, text="a" * (17 << 20)), grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert "16777216" in error.details()


def test_request_id_in_metadata(server):
    for key in ("x-request-id", "x-correlation-id"):
        call = server.decode.Generate(
            stubs().decode.GenerateRequest(text="a"), metadata=[(key, "with space")], timeout=10
        )
        check_violation(refused(lambda: list(call)), key, "10 bytes", "1 to 128")


def test_a_model_without_a_template_is_served_by_raw_text(tmp_path, start_server):
    model = write_tiny_llama(tmp_path / "plain.gguf", chat_template=None)
    server = start_server(model=model, calibration="off")
    assert not server.model().chat
    chat = {"messages": [{"role": 2, "content": "x"}]}
    error = refused(lambda: generate(server, chat=chat), grpc.StatusCode.FAILED_PRECONDITION)
    assert "chat" in error.details() and "text or token_ids" in error.details()
    assert generate(server, text="x", stopping={"max_tokens": 2, "ignore_eos": True})[1]


def test_a_template_that_cannot_be_rendered_is_said(tmp_path, start_server):
    model = write_tiny_llama(tmp_path / "odd.gguf", chat_template="{% macro f() %}x{% endmacro %}{{ f() }}")
    server = start_server(model=model, calibration="off")
    assert "no_chat_template" in server.log_text()
    chat = {"messages": [{"role": 2, "content": "x"}]}
    error = refused(lambda: generate(server, chat=chat), grpc.StatusCode.UNIMPLEMENTED)
    assert "text or token_ids" in error.details()
    assert generate(server, text="x", stopping={"max_tokens": 2, "ignore_eos": True})[1]


# --- The command line -------------------------------------------------------------------------------------------


def run(program, *arguments, seconds=60, **options):
    """Runs a server that is to end by itself: (exit code, all it wrote)."""
    options.setdefault("listen", f"127.0.0.1:{free_port()}")
    options.setdefault("metrics_listen", f"127.0.0.1:{free_port()}")
    done = subprocess.run(
        [str(binary(program)), *flags(options), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=seconds,
        check=False,
        text=True,
    )
    return done.returncode, done.stdout


BAD_OPTIONS = [
    ({"retention": 0}, "--retention", "above 0 to 1"),
    ({"retention": 1.5}, "--retention", "'1.5'", "above 0 to 1"),
    ({"retention": "nan"}, "--retention", "'nan'"),
    ({"kv_memory": "12 apples"}, "--kv-memory", "12 apples"),
    ({"kv_memory": "1"}, "--kv-memory", "1MiB"),
    ({"compute": "fp16"}, "--compute", "'fp16'", "fp32|bf16"),
    ({"kv_type": "int2"}, "--kv-type", "'int2'", "auto|fp32|bf16|int8|int4|KEYS:VALUES"),
    ({"kv_type": "int8:x"}, "--kv-type", "'int8:x'"),
    ({"threads": -1}, "--threads", "'-1'", "0 to 1024"),
    ({"threads": "two"}, "--threads", "'two'"),
    ({"listen": "nowhere"}, "--listen", "nowhere"),
    ({"listen": "127.0.0.1:70000"}, "--listen", "65535"),
    ({"metrics_listen": ":x"}, "--metrics-listen", ":x"),
    ({"snapkv_kernel": 4}, "--snapkv-kernel", "'4'", "odd"),
    ({"snapkv_window": 0}, "--snapkv-window", "'0'", "1 to 1024"),
    ({"snapkv_pooling": "median"}, "--snapkv-pooling", "'median'", "max|mean|none"),
    ({"selector": "best"}, "--selector", "'best'", "snapkv|h2o|recent_attention|mixed|streaming_llm|random"),
    ({"selector_queries": 0}, "--selector-queries", "'0'", "1 to 512"),
    ({"recent_kernel": 4}, "--recent-kernel", "'4'", "odd"),
    ({"mixed_weight": 2}, "--mixed-weight", "'2'"),
    ({"allocator": "cone"}, "--allocator", "'cone'", "ripple|uniform|sqrt"),
    ({"allocator": "multipliers"}, "--allocator multipliers", "--layer-multipliers"),
    ({"layer_positions": "5;6"}, "--layer-positions", "'5;6'"),
    ({"calibration_damage": 0}, "--allocator damage_curves", "--calibration-damage is 0"),
    ({"ripple_r": 0.5}, "--ripple-r", "'0.5'"),
    ({"calibration": "sometimes"}, "--calibration", "'sometimes'", "embedded, off"),
    ({"calibration_eta": 11}, "--calibration-eta", "'11'", "0 to 10"),
    ({"calibration_examples": 0}, "--calibration-examples", "'0'", "1 to 4096"),
    ({"min_positions": -1}, "--min-positions", "'-1'"),
    ({"max_queue": 0}, "--max-queue", "'0'", "1 to 100000"),
    ({"log_format": "xml"}, "--log-format", "'xml'", "text|json"),
    ({"log_level": "loud"}, "--log-level", "'loud'"),
    ({"profile_dir": ""}, "--profile-dir", "empty"),
    ({"no_such_option": 1}, "--no-such-option"),
]


@pytest.mark.parametrize("options, words", [(o, w) for o, *w in BAD_OPTIONS])
def test_wrong_options(tiny_model_path, options, words):
    code, output = run("ripplekv-server", model=tiny_model_path, **options)
    assert code > 0, output
    for word in words:
        assert word in output, output


def test_options_of_the_calibration_server(monkeypatch):
    monkeypatch.delenv("RIPPLEKV_MODEL", raising=False)
    code, output = run("ripplekv-calibration-server")
    assert code > 0 and "--model" in output
    code, output = run("ripplekv-calibration-server", model="x", kv_memory="1MiB")
    assert code > 0 and "--kv-memory" in output


def test_wrong_environment(tiny_model_path, monkeypatch):
    monkeypatch.setenv("RIPPLEKV_RETENTION", "2")
    code, output = run("ripplekv-server", model=tiny_model_path)
    assert code > 0
    assert "2" in output and "RETENTION" in output.upper() and "above 0 to 1" in output


def test_settings_that_do_not_fit_the_model(tiny_model_path, tmp_path):
    """Known only once the model is loaded."""
    code, output = run("ripplekv-server", model=tiny_model_path, profile_dir=tmp_path / "a", calibration_prefix=1024)
    assert code == 1 and "start_failed" in output
    assert "prefix_tokens" in output and "1024" in output and "--calibration" in output
    code, output = run("ripplekv-server", model=tiny_model_path, profile_dir=tmp_path / "b", kv_memory="1MiB",
                       calibration="off", compute="fp32", corpus="nowhere")  # fmt: skip
    assert code == 1 and "--corpus" in output and "nowhere" in output
    code, output = run(
        "ripplekv-server", model=tiny_model_path, profile_dir=tmp_path / "c", calibration="off", wait_for_profile=True
    )
    assert code == 1 and "--wait-for-profile" in output and "--calibration" in output


def test_too_little_kv_memory(model_path, tmp_path):
    code, output = run("ripplekv-server", model=model_path, profile_dir=tmp_path / "p", calibration="off", kv_memory="1MiB")
    assert code == 1 and "--kv-memory is 1048576 bytes" in output and "take" in output


def test_taken_ports(tiny_model_path, tmp_path):
    for option in ("listen", "metrics_listen"):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            for program in ("ripplekv-server", "ripplekv-calibration-server"):
                code, output = run(program, model=tiny_model_path, profile_dir=tmp_path, **{option: address})
                assert code == 1, output
                assert "start_failed" in output and f"cannot listen at {address}" in output
    code, output = run("ripplekv-server", model=tiny_model_path, profile_dir=tmp_path, listen="203.0.113.7:1")
    assert code == 1 and "203.0.113.7:1" in output


def test_a_port_that_another_server_has(server, tiny_model_path, tmp_path):
    for option in ({"listen": server.address}, {"metrics_listen": server.metrics_address}):
        code, output = run("ripplekv-server", model=tiny_model_path, profile_dir=tmp_path, **option)
        assert code == 1 and "cannot listen at" in output


def test_unusable_profile_directories(tiny_model_path, tmp_path):
    file = tmp_path / "file"
    file.write_text("not a directory")
    for directory in (file, file / "below", "/proc/no/such", "/sys/kernel"):
        for program in ("ripplekv-server", "ripplekv-calibration-server"):
            code, output = run(program, model=tiny_model_path, profile_dir=directory)
            assert code == 1, output
            assert "--profile-dir" in output and str(directory) in output


# --- Model files --------------------------------------------------------------------------------------------------


def start_fails(model, tmp_path, *words):
    code, output = run("ripplekv-server", model=model, profile_dir=tmp_path / "profiles", calibration="off")
    assert code == 1, output
    assert "start_failed" in output
    for word in (str(model), *words):
        assert word in output, output


def test_model_files_that_are_none(tmp_path):
    start_fails(tmp_path / "missing.gguf", tmp_path, "No such file")
    start_fails(tmp_path, tmp_path)
    for name, content in (("empty", b""), ("text", b"This is no model.\n" * 99), ("short", b"GGUF\x03\0\0\0")):
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(content)
        start_fails(file, tmp_path)


def test_unsupported_models(tmp_path):
    made = write_tiny_llama(tmp_path / "other.gguf", architecture="mamba")
    start_fails(made, tmp_path, "general.architecture", "mamba", "llama")
    made = write_tiny_llama(tmp_path / "type.gguf", kind=gguf.GGMLQuantizationType.Q5_0)
    start_fails(made, tmp_path, "Q5_0", "blk.0.")
    made = write_tiny_llama(
        tmp_path / "experts.gguf", extra=lambda writer: writer.add_expert_count(8)
    )
    start_fails(made, tmp_path, "llama.expert_count", "8")


def test_damaged_model_files(tiny_model_path, tmp_path):
    """Truncated anywhere or with bits flipped in what is not weights: refused with a message or served, never a crash."""
    whole = pathlib.Path(tiny_model_path).read_bytes()
    header = gguf.GGUFReader(str(tiny_model_path)).data_offset
    rng = random.Random(7)
    cases = [(f"cut at {n}", whole[:n]) for n in (3, 20, header // 3, header - 1, header, len(whole) - 1)]
    cases += [(f"cut at {n}", whole[:n]) for n in rng.sample(range(24, len(whole)), 6)]
    for _ in range(30):
        damaged = bytearray(whole)
        # Half of them in the header's numbers and strings, of which most of the file's first bytes consist.
        places = [rng.randrange(4, rng.choice((1500, header))) for _ in range(rng.choice((1, 1, 4)))]
        for place in places:
            damaged[place] ^= 1 << rng.randrange(8)
        cases.append((f"flips at {places}", bytes(damaged)))
    served = 0
    for what, content in cases:
        file = tmp_path / "damaged.gguf"
        file.write_bytes(content)
        log = tmp_path / "log"
        log.write_bytes(b"")
        server = Server(
            binary("ripplekv-server"), log, wait=False, model=file, calibration="off", threads=1,
            profile_dir=tmp_path / "profiles", calibration_prefix=64,
        )  # fmt: skip
        try:
            code = serve_or_end(server)
            if code is None:
                served += 1
                assert not what.startswith("cut"), what
                try:
                    generate(server, token_ids={"ids": [1, 2, 3]}, stopping={"max_tokens": 4}, timeout=30)
                except grpc.RpcError as error:
                    assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL), what
                assert server.stop() == 0, what
            else:
                assert code == 1, f"{what}: exit code {code}\n{server.log_text()}"
                assert str(file) in server.log_text(), what
                assert "start_failed" in server.log_text(), what
        finally:
            if server.process.poll() is None:
                server.kill()
    # A flip in a name, a template or a token is another file, not a damaged one.
    print(f"{len(cases)} damaged files: {len(cases) - served} refused, {served} served")
    assert served < len(cases) // 2


def serve_or_end(server):
    """None once it serves, else its exit code."""
    while server.process.poll() is None:
        try:
            server.wait_until_serving(seconds=60)
            return None
        except AssertionError:
            assert server.process.poll() is not None, server.log_text()
    return server.process.returncode
