"""The Python client package against a real server, and as it is installed."""

import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import threading

import grpc
import pytest

from service import SOURCE, Server, free_port, stubs, wait_until

PROMPT = list(range(40, 140))


@pytest.fixture(scope="module")
def ripplekv():
    stubs()
    import ripplekv

    return ripplekv


@pytest.fixture(scope="module")
def server(start_server, tiny_model_path):
    return start_server(
        model=tiny_model_path, compute="fp32", calibration_examples=4, calibration_prefix=64, calibration_window=8,
        min_positions=0, retention=0.5, allocator="uniform", threads=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def client(server, ripplekv):
    with ripplekv.Client(server.address, timeout=60) as client:
        yield client


def test_whole_and_streamed_answers_are_the_same(client):
    options = {"max_tokens": 20, "ignore_eos": True, "logprobs": 2}
    whole = client.generate(PROMPT, **options)
    with client.stream(PROMPT, request_id="mine", **options) as stream:
        chunks = list(stream)
    assert whole.text == "".join(chunk.text for chunk in chunks)
    assert whole.token_ids == [i for chunk in chunks for i in chunk.token_ids] and len(whole.token_ids) == 20
    assert len(whole.logprobs) == 20 and len(whole.logprobs[0].top) == 2
    assert stream.request_id == "mine" and stream.complete.usage.output_tokens == 20
    assert whole.complete.cache.kv_bytes < whole.complete.cache.full_kv_bytes
    assert client.generate(PROMPT, kv={"size": {"full": {}}}, max_tokens=1).complete.usage.prompt_tokens == 100


def test_every_kind_of_prompt(client):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    ids = client.tokenize(chat)
    assert client.detokenize(ids) == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"  # fmt: skip
    options = {"max_tokens": 5, "temperature": 1.0, "seed": 7}
    answers = [client.generate(prompt, **options).token_ids for prompt in (chat, ids, client.detokenize(ids))]
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) > 0


def test_wrong_values_are_refused_before_the_call(client):
    for prompt, error in (
        ([{"role": "robot", "content": "x"}], "role is 'robot': must be one of system, user, assistant"),
        ([{"role": "user", "text": "x"}], "must have 'role' and 'content'"),
    ):
        with pytest.raises(ValueError, match=error):
            client.tokenize(prompt)
    with pytest.raises(TypeError, match="'stop' is no option of generate; there are .*stop_strings"):
        client.generate("a", stop=["b"])
    with pytest.raises(ValueError, match="nonsense"):
        client.generate("a", kv={"nonsense": 1})
    with pytest.raises(ValueError, match="both given"):
        client.calibrate(texts=["a"], corpus="b")
    for request_id in ("é", "two words", "two\nlines", "line\n", "x" * 129):
        with pytest.raises(ValueError, match="request_id is .*printable ASCII"):
            client.generate("a", request_id=request_id)
    with pytest.raises(ValueError, match="timeout is not a number"):
        client.model(timeout=math.nan)


def test_a_timeout_beyond_the_clock_is_none(client):
    for timeout in (math.inf, 1e300, 1e9):
        assert client.model(timeout=timeout).model.layers > 0


def test_errors_say_what_the_server_said(client, ripplekv):
    with pytest.raises(ripplekv.InvalidArgument) as caught:
        client.generate("a", kv={"size": {"retention": 2.0}}, request_id="r-1")
    error = caught.value
    assert error.code == grpc.StatusCode.INVALID_ARGUMENT and error.request_id == "r-1"
    assert [v.field for v in error.field_violations] == ["kv.size.retention"]
    assert "INVALID_ARGUMENT" in str(error) and "retention" in str(error) and "r-1" in str(error)
    with pytest.raises(ripplekv.NotFound) as caught:
        client.score("a", ["b"], context_id="nowhere")
    assert caught.value.resource_name == "nowhere" and caught.value.resource_type
    with pytest.raises(ripplekv.DeadlineExceeded):
        client.generate(PROMPT, max_tokens=900, ignore_eos=True, timeout=0.001)


def test_a_server_that_is_not_there(ripplekv, tiny_model_path, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    with ripplekv.Client(address, timeout=5) as client:
        with pytest.raises(ripplekv.Unavailable, match=f"no answer from a server at {address}"):
            client.model()
    # One that comes a little later is waited for where that is asked for.
    from conftest import binary

    answers = []
    with ripplekv.Client(address, timeout=30, wait_for_ready=True) as client:
        thread = threading.Thread(target=lambda: answers.append(client.wait_until_serving(30)))
        thread.start()
        options = {"model": tiny_model_path, "calibration": "off", "profile_dir": tmp_path / "p", "listen": address}
        with Server(binary("ripplekv-server"), tmp_path / "log", **options):
            thread.join(30)
    assert [answer.model.layers for answer in answers] == [4]


def test_leaving_a_stream_ends_it_on_the_server(client, server):
    with client.stream(PROMPT, max_tokens=900, ignore_eos=True) as stream:
        assert next(iter(stream)).token_ids
    wait_until(lambda: server.metrics()["ripplekv_requests_running"] == 0, 30, "no request running")
    assert stream.complete is None


def test_scores_and_contexts(client, ripplekv):
    made = [client.create_context(PROMPT, kv={"size": {"retention": 0.5}}) for _ in range(3)]
    listed = [context.context_id for context in client.contexts()]
    assert listed == sorted(context.context_id for context in made)
    assert client.context(listed[0]).tokens == 100
    over = client.score(None, [[65, 66], "CD"], context_id=listed[0])
    assert [[t.token_id for t in c.tokens] for c in over.continuations] == [[65, 66], [67, 68]]
    direct = client.score(PROMPT, [[65, 66]], kv={"size": {"retention": 0.5}})
    assert over.continuations[0].logprob == direct.continuations[0].logprob
    assert not direct.continuations[0].HasField("mean_kl")
    compared = client.score(PROMPT, [[65, 66]], kv={"size": {"retention": 0.5}}, reference=True).continuations[0]
    assert compared.mean_kl > 0 and all(token.HasField("kl") for token in compared.tokens)
    for context_id in listed:
        client.delete_context(context_id)
    assert list(client.contexts()) == []
    with pytest.raises(ripplekv.NotFound):
        client.context(listed[0])


def test_a_context_is_known_by_its_key(client, server):
    """What a proxy that hashes the header x-ripplekv-context needs."""
    made = client.create_context(PROMPT).context_id
    assert re.fullmatch(r"[0-9a-f]{16}\.[0-9a-f]{32}", made)
    assert client.generate("a", context_id=made, max_tokens=2, ignore_eos=True).complete.usage.context_tokens == 100
    client.delete_context(made)
    request = stubs().decode.CreateContextRequest(text="One")
    for key, expected in (
        ("Document_1-b", r"Document_1-b\.[0-9a-f]{32}"),
        ("k" * 64, r"k{64}\.[0-9a-f]{32}"),
        ("k" * 65, r"[0-9a-f]{32}"),
        ("a name, of anything", r"[0-9a-f]{32}"),
        ("a.b", r"[0-9a-f]{32}"),
    ):
        metadata = [("x-ripplekv-context", key)]
        context_id = server.decode.CreateContext(request, metadata=metadata, timeout=20).context.context_id
        assert re.fullmatch(expected, context_id), key
        client.delete_context(context_id)


def test_calls_take_turns_at_several_addresses(ripplekv, start_server, tiny_model_path):
    servers = [start_server(model=tiny_model_path, calibration="off") for _ in range(2)]
    key = 'ripplekv_requests_total{code="OK",method="Tokenize"}'
    with ripplekv.Client("ipv4:" + ",".join(server.address for server in servers), timeout=20) as both:

        def ask(calls):
            for _ in range(calls):
                both.tokenize("a")
            return [server.metrics()[key] for server in servers]

        before = wait_until(lambda: counts if min(counts := ask(1)) else None, what="both to be reached")
        later = ask(10)
    assert [b - a for a, b in zip(before, later)] == [5, 5]


def test_calibration_profiles_and_plans(client, ripplekv):
    texts = [chr(97 + i) * 20 + "some words to measure with. " * 4 for i in range(6)]
    events = []
    settings = {"examples": 4, "prefix_tokens": 64, "window_tokens": 8}
    done = client.calibrate(settings, texts=texts, on_event=events.append)
    assert events[0].started.profile_id == done.profile.profile_id
    assert events[-1].progress.examples_done == 4 and not done.from_store
    assert client.calibrate(settings, texts=texts).from_store
    profile = client.profile(done.profile.profile_id)
    assert profile == done.profile and len(profile.layers) == 4
    assert profile in list(client.profiles())
    plan = client.plan(400, profile_id=profile.profile_id, allocator={"ripple": {"r": 4}}, size={"retention": 0.25})
    assert sum(layer.positions for layer in plan.layers) == 400 and plan.layers[0].multiplier > 0
    assert profile.profile_id in [job.profile_id for job in client.calibrations()]
    client.delete_profile(profile.profile_id)
    with pytest.raises(ripplekv.NotFound):
        client.profile(profile.profile_id)


def test_what_a_callback_raises_ends_the_measurement(client):
    def stop(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.calibrate({"examples": 4, "prefix_tokens": 900, "window_tokens": 100}, texts=["many words. " * 200] * 4, on_event=stop)  # fmt: skip
    ended = stubs().calibration.CALIBRATION_STATE_CANCELLED
    wait_until(lambda: next(client.calibrations()).state == ended, 30, "the measurement's end")


def test_the_installed_package_is_whole(server, tmp_path):
    # In a copy, so that the build leaves nothing in the sources.
    for folder in ("client/python", "proto"):
        shutil.copytree(SOURCE / folder, tmp_path / "source" / folder)
    package = tmp_path / "source" / "client" / "python"
    run = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    for arguments in (
        ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, package],
        [
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            "--find-links",
            tmp_path,
            "--target",
            tmp_path / "site",
            "ripplekv",
        ],
    ):
        done = subprocess.run([*run, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "ripplekv" / "py.typed").exists()
    assert (tmp_path / "site" / "ripplekv" / "v1" / "decode_pb2.pyi").exists()
    version = re.search(r"project\(ripplekv VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
    assert (tmp_path / "site" / f"ripplekv-{version}.dist-info").is_dir()
    code = "import ripplekv, json, sys; print(json.dumps([ripplekv.__file__, ripplekv.Client(sys.argv[1]).model(timeout=20).model.name]))"
    done = subprocess.run(
        [sys.executable, "-c", code, server.address], cwd=tmp_path / "site", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    where, name = json.loads(done.stdout)
    assert pathlib.Path(where).is_relative_to(tmp_path) and name == "Tiny llama"


@pytest.mark.parametrize("page", ["README.md", "client/python/README.md"])
def test_the_example_of_the_page_runs(server, ripplekv, page, tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (SOURCE / page).read_text(encoding="utf-8"), flags=re.S)
    assert '"127.0.0.1:50051"' in example
    (tmp_path / "report.txt").write_text("The bridge was built in 1931. " * 8, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(example.replace("127.0.0.1:50051", server.address), page, "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) >= (1 if page == "README.md" else 5)
