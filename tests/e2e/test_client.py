"""The `ripplekv` command against a live server: what it writes where, and how it ends."""

import json
import os
import pty
import re
import signal
import subprocess
import time

import pytest
from google.protobuf import json_format

from conftest import binary
from service import Server, free_port, generate, stubs, wait_until

LAYERS = 30
SAY = ["--prompt", "Name three rivers.", "--max-tokens", "12"]


@pytest.fixture(scope="module")
def server(start_server, model_path):
    server = start_server(
        model=model_path,
        min_positions=0,
        calibration_examples=4,
        calibration_prefix=128,
        calibration_window=16,
        log_format="json",
    )
    wait_until(lambda: server.model().plan.source == stubs().profile.PLAN_SOURCE_PROFILE, 120)
    return server


@pytest.fixture(scope="module")
def environment():
    return {**os.environ, "LC_ALL": "C.UTF-8", "COLUMNS": "100", "NO_COLOR": "1"}


@pytest.fixture
def run(server, environment):
    """run("generate", ...) is the finished command; its exit code must be as expected."""

    def go(*arguments, code=0, stdin="", address=None, seconds=120):
        done = subprocess.run(
            [str(binary("ripplekv")), "--server", address or server.address, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment,
        )
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return go


def asked(server, content, **fields):
    """The same by the stubs."""
    chat = {"messages": [{"role": 2, "content": content}]}
    return generate(server, chat=chat, **fields)


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_generate_writes_the_text_and_nothing_else(server, run):
    text, _, _, complete = asked(server, "Name three rivers.", stopping={"max_tokens": 12})
    done = run("generate", *SAY)
    assert done.stdout == text + "\n" and done.stderr == ""
    done = run("generate", *SAY, "--stats", "--next-token-kl", "--seed", "77")
    assert done.stdout == text + "\n"
    for word in (f"prompt {complete.usage.prompt_tokens}", "output 12", "next_token_kl", "77", "max tokens"):
        assert word in done.stderr.replace("_tokens", " tokens"), done.stderr


def test_generate_json(server, run):
    done = run("generate", *SAY, "--json", "--logprobs", "2", "--request-id", "cli-json-1")
    messages = [json_format.ParseDict(m, stubs().decode.GenerateResponse()) for m in lines(done.stdout)]
    assert done.stderr == ""
    assert {m.request_id for m in messages} == {"cli-json-1"}
    assert messages[-1].HasField("complete") and all(m.HasField("chunk") for m in messages[:-1])
    text, ids, logprobs, complete = asked(
        server, "Name three rivers.", stopping={"max_tokens": 12}, output={"logprobs": 2}
    )
    assert "".join(m.chunk.text for m in messages) == text
    assert [i for m in messages for i in m.chunk.token_ids] == ids
    assert [p for m in messages for p in m.chunk.logprobs] == logprobs
    assert messages[-1].complete.cache == complete.cache


def test_every_flag_reaches_the_server(server, run):
    done = run(
        "generate", "--message", "system:Be brief.", "--message", "user:Count to ten.", "--temperature", "0.7",
        "--top-k", "40", "--top-p", "0.9", "--min-p", "0.02", "--repetition-penalty", "1.1", "--presence-penalty", "0.2",
        "--frequency-penalty", "0.1", "--logit-bias", "42:-1.5", "--seed", "5", "--max-tokens", "16", "--min-tokens", "2",
        "--stop", "\n\n", "--stop-token-id", "7", "--retention", "0.5", "--allocator", "ripple", "--ripple-r", "3",
        "--snapkv-window", "8", "--snapkv-kernel", "5", "--snapkv-pooling", "mean", "--logprobs", "0", "--json",
    )  # fmt: skip
    ours = lines(done.stdout)
    chat = {"messages": [{"role": 1, "content": "Be brief."}, {"role": 2, "content": "Count to ten."}]}
    text, ids, logprobs, complete = generate(
        server,
        chat=chat,
        sampling={
            "temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.1,
            "presence_penalty": 0.2, "frequency_penalty": 0.1, "logit_bias": {42: -1.5}, "seed": 5,
        },  # fmt: skip
        stopping={"max_tokens": 16, "min_tokens": 2, "stop_strings": ["\n\n"], "stop_token_ids": [7]},
        kv={
            "size": {"retention": 0.5},
            "allocator": {"ripple": {"r": 3.0}},
            "selector": {"snapkv": {"window": 8, "kernel": 5, "pooling": 3}},
        },
        output={"logprobs": 0},
    )
    assert [i for m in ours for i in m.get("chunk", {}).get("token_ids", [])] == ids
    kept = [layer["positions_kept"] for layer in ours[-1]["complete"]["cache"]["layers"]]
    assert kept == [layer.positions_kept for layer in complete.cache.layers]
    # Another seed is another text: the flags above did something.
    other = lines(run("generate", *SAY, "--temperature", "2", "--seed", "1", "--json").stdout)
    assert other[:-1] != lines(run("generate", *SAY, "--temperature", "2", "--seed", "2", "--json").stdout)[:-1]


def test_token_ids(server, run, tmp_path):
    ids = [504, 659, 1166, 17516, 28, 284]
    text = generate(server, token_ids={"ids": ids}, stopping={"max_tokens": 8})[0]
    file = tmp_path / "ids"
    for content in ("504 659 1166\n17516 28 284\n", json.dumps(ids), "504,659,1166,17516,28,284"):
        file.write_text(content)
        assert run("generate", "--token-ids", file, "--max-tokens", 8).stdout == text + "\n"
        assert run("generate", "--token-ids", "-", "--max-tokens", 8, stdin=content).stdout == text + "\n"
    file.write_text("504 six")
    assert "number 2 is 'six'" in run("generate", "--token-ids", file, code=2).stderr
    file.write_text("504 49152")
    assert "token_ids.ids[1] is 49152" in run("generate", "--token-ids", file, code=1).stderr


def test_documents(server, run, tmp_path, corpus_texts):
    document, question = corpus_texts[1][:3000], "What is it about?"
    file = tmp_path / "document.txt"
    file.write_text(document)
    text, _, _, complete = asked(server, f"{document.strip()}\n\n{question}", stopping={"max_tokens": 8})
    arguments = ["--question", question, "--max-tokens", "8"]
    assert run("generate", "--document", file, *arguments).stdout == text + "\n"
    done = run("generate", "--document", "-", *arguments, "--json", stdin=document)
    usage = lines(done.stdout)[-1]["complete"]["usage"]
    assert usage["prompt_tokens"] == complete.usage.prompt_tokens
    raw = run("generate", "--raw", "--prompt-file", file, "--max-tokens", "4").stdout
    assert raw == generate(server, text=document, stopping={"max_tokens": 4})[0] + "\n"


def test_tokenize_and_detokenize(server, run):
    done = run("tokenize", "--raw", "--prompt", "Hello <|im_end|> wörld")
    ids = [int(i) for i in done.stdout.split()]
    assert ids == list(server.decode.Tokenize(stubs().decode.TokenizeRequest(text="Hello <|im_end|> wörld")).token_ids)
    assert run("detokenize", *ids).stdout == "Hello <|im_end|> wörld"
    assert run("detokenize", "--token-ids", "-", "--skip-special-tokens", stdin=done.stdout).stdout == "Hello  wörld"


def test_chat_keeps_the_conversation(server, run):
    turns = ["My name is Ada.", "What is my name?"]
    done = run("chat", "--max-tokens", "10", "--json", stdin="\n".join(turns) + "\n")
    completes = [m["complete"] for m in lines(done.stdout) if "complete" in m]
    assert len(completes) == 2
    first, _, _, complete = asked(server, turns[0], stopping={"max_tokens": 10})
    messages = [{"role": 2, "content": turns[0]}, {"role": 3, "content": first}, {"role": 2, "content": turns[1]}]
    second, _, _, after = generate(server, chat={"messages": messages}, stopping={"max_tokens": 10})
    assert [c["usage"]["prompt_tokens"] for c in completes] == [complete.usage.prompt_tokens, after.usage.prompt_tokens]
    done = run("chat", "--max-tokens", "10", stdin="\n".join(turns) + "\n")
    assert done.stdout == f"{first}\n{second}\n" and done.stderr == ""
    # /reset forgets; /quit ends.
    done = run("chat", "--max-tokens", "10", stdin=f"{turns[0]}\n/reset\n{turns[0]}\n/quit\n{turns[1]}\n")
    assert done.stdout == f"{first}\n{first}\n"


def test_calibrate_profile_and_plan(server, run):
    arguments = ["--examples", "3", "--prefix-tokens", "128", "--window-tokens", "16", "--seed", "9"]
    done = run("calibrate", *arguments)
    assert "calibrating" in done.stderr and "3/3 examples 100 %" in done.stderr
    profile_id = re.search(r"[0-9a-f]{64}", done.stdout)[0]
    assert "3 examples" in done.stdout and "not in force" in done.stdout
    done = run("calibrate", *arguments)
    assert "found in the store" in done.stdout and profile_id in done.stdout
    events = lines(run("calibrate", *arguments, "--force", "--json").stdout)
    assert "started" in events[0] and "complete" in events[-1]
    assert events[-1]["complete"]["profile"]["profile_id"] == profile_id

    # The profile as a chart of each layer, and as JSON.
    request = stubs().calibration.GetProfileRequest()
    expected = server.calibration.GetProfile(request)
    chart = run("profile").stdout
    assert expected.profile.profile_id in chart and "in force" in chart
    rows = re.findall(r"^ *(\d+) .*?(\d\S*) ± (\d\S*)$", chart, flags=re.M)
    assert [int(row[0]) for row in rows] == list(range(LAYERS))
    for layer, row in zip(expected.profile.layers, rows):
        assert float(row[1]) == pytest.approx(layer.mean_kl, rel=0.05)
        assert float(row[2]) == pytest.approx(layer.standard_error, rel=0.5)
    as_json = run("profile", "--json").stdout
    assert json_format.Parse(as_json, stubs().calibration.GetProfileResponse()) == expected
    assert run("profile", "--json", "--id", profile_id[:12]).stdout.count(profile_id) == 1

    ids = {p["profile_id"] for p in lines(run("profile", "list", "--json").stdout)}
    assert {profile_id, expected.profile.profile_id} <= ids
    assert profile_id in run("profile", "delete", profile_id[:20]).stdout
    assert profile_id not in run("profile", "list").stdout
    done = run("profile", "--id", profile_id, code=1)
    assert "NOT_FOUND" in done.stderr and "ripplekv calibrate" in done.stderr

    # The plan in force, and one of the profile's own numbers: the same.
    request = stubs().calibration.PlanBudgetsRequest(prompt_tokens=4096, size={"retention": 0.1})
    budgets = server.calibration.PlanBudgets(request)
    plan = ["plan", "--prompt-tokens", 4096, "--retention", "0.1"]
    assert json_format.Parse(run(*plan, "--json").stdout, stubs().calibration.PlanBudgetsResponse()) == budgets
    inline = json.loads(run(*plan, "--sensitivities", "-", "--json", stdin=as_json).stdout)
    assert [layer["positions"] for layer in inline["layers"]] == [layer.positions for layer in budgets.layers]
    chart = run(*plan).stdout
    for layer in budgets.layers:
        assert re.search(rf"^ *{layer.layer} .* {layer.positions:,}  ", chart, flags=re.M), chart
    assert f"{budgets.total_positions:,}" in chart


def test_calibrations(server, run, environment):
    """One that goes on although the command that asked for it was interrupted, seen and cancelled by others."""
    long = ["--examples", "200", "--prefix-tokens", "128", "--window-tokens", "16", "--seed", "77"]
    command = [str(binary("ripplekv")), "--server", server.address, "calibrate", *long, "--detach"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    wait_until(lambda: "running" in run("calibrations").stdout)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted" in errors
    job = re.search(r"goes on as (\S+)\.", errors)[1]
    expected = server.calibration.ListCalibrations(stubs().calibration.ListCalibrationsRequest()).calibrations
    row = run("calibrations").stdout.splitlines()[1]
    assert re.match(rf"{job} +running, detached +\d+/200 .* UTC +{expected[0].profile_id[:12]}$", row), row
    assert [c["job_id"] for c in lines(run("calibrations", "--json").stdout)] == [c.job_id for c in expected]
    assert f"Cancelled {job} after" in run("calibrations", "--cancel", job).stdout
    row = run("calibrations").stdout.splitlines()[1]
    assert re.match(rf"{job} +cancelled ", row), row
    assert "FAILED_PRECONDITION" in run("calibrations", "--cancel", job, code=1).stderr
    assert "NOT_FOUND" in run("calibrations", "--cancel", "calibration-99", code=1).stderr
    assert "INVALID_ARGUMENT" in run("calibrations", "--cancel", "", code=1).stderr


def test_model(server, run):
    expected = server.model()
    assert json_format.Parse(run("model", "--json").stdout, stubs().decode.GetModelResponse()) == expected
    text = run("model").stdout
    for word in (expected.fingerprint, expected.plan.profile_id[:12], "30 layers", "8,192 tokens", "256.0 MiB"):
        assert word in text, text


def test_health(server, run, environment, tmp_path, tiny_model_path):
    assert run("health").stdout == "SERVING\n"
    assert run("health", "--json").stdout == '{"status":"SERVING"}\n'
    assert run("health", "--service", "ripplekv.v1.CalibrationService").stdout == "SERVING\n"
    assert "NOT_FOUND" in run("health", "--service", "no.Such", code=1).stderr
    address = f"127.0.0.1:{free_port()}"
    assert "UNAVAILABLE" in run("health", code=1, address=address).stderr
    # Waits for a server that is not there yet.
    waiting = subprocess.Popen(
        [str(binary("ripplekv")), "--server", address, "health", "--wait", "60"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    time.sleep(0.5)
    assert waiting.poll() is None
    with Server(
        binary("ripplekv-server"), tmp_path / "log", model=tiny_model_path, calibration="off", listen=address,
        profile_dir=tmp_path / "profiles",
    ):  # fmt: skip
        assert waiting.communicate(timeout=60)[0] == "SERVING\n"
        assert waiting.returncode == 0


def test_errors_of_the_server(server, run):
    done = run("generate", *SAY, "--temperature", "101", "--request-id", "cli-error-1", code=1)
    assert done.stdout == ""
    assert "INVALID_ARGUMENT: sampling.temperature is 101: must be in [0, 100]" in done.stderr
    assert "cli-error-1" in done.stderr
    error = json.loads(run("generate", *SAY, "--top-p", "0", "--json", code=1).stderr)["error"]
    assert error["code"] == "INVALID_ARGUMENT"
    assert error["field_violations"][0]["field"] == "sampling.top_p"
    assert "settings.eta is 11" in run("calibrate", "--eta", "11", code=1).stderr
    done = run("generate", "--prompt", "x", "--timeout", "0.3", "-n", "2000", "--ignore-eos", code=1)
    assert "DEADLINE_EXCEEDED" in done.stderr


def test_no_server(run):
    address = f"127.0.0.1:{free_port()}"
    for command in (["generate", *SAY], ["model"], ["calibrate"], ["profile"], ["plan", "-t", "9"]):
        done = run(*command, code=1, address=address)
        assert done.stdout == ""
        assert "UNAVAILABLE" in done.stderr and address in done.stderr and "ripplekv-server --model" in done.stderr
    error = json.loads(run("model", "--json", code=1, address=address).stderr)["error"]
    assert error["code"] == "UNAVAILABLE"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["generate", "--no-such-flag"], ["--no-such-flag"]),
        (["no-such-command"], ["no-such-command"]),
        ([], ["ommand"]),
        (["generate"], ["no prompt", "--prompt"]),
        (["generate", "--prompt", "x", "--prompt-file", "y"], ["several prompts"]),
        (["generate", "--prompt", "x", "--temperature", "hot"], ["--temperature", "hot"]),
        (["generate", "--prompt-file", "/no/such/file"], ["/no/such/file", "No such file"]),
        (["generate", "--document", "/dev/null", "--question", "x"], ["/dev/null is empty"]),
        (["generate", "--message", "narrator:x"], ["narrator", "system:"]),
        (["generate", "--prompt", "x", "--logit-bias", "5"], ["--logit-bias", "'5'"]),
        (["generate", "--prompt", "x", "--retention", "0.5", "--full"], ["--full", "--retention"]),
        (["generate", "--prompt", "x", "--timeout", "-1"], ["--timeout"]),
        (["generate", "--prompt", "x", "--request-id", "é"], ["--request-id", "2 bytes", "printable ASCII"]),
        (["model", "--request-id", "two\nlines"], ["--request-id", "printable ASCII"]),
        (["plan"], ["--prompt-tokens"]),
    ],
)
def test_wrong_arguments(run, arguments, words):
    done = run(*arguments, code=2)
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr, done.stderr


def test_a_server_that_is_no_address(run):
    for address in ("nowhere", "127.0.0.1:", "127.0.0.1:99999", ":1"):
        assert f"'{address}'" in run("model", code=2, address=address).stderr


def test_text_that_is_not_utf8(server, run, tmp_path):
    file = tmp_path / "latin1.txt"
    file.write_bytes("Grüße".encode("latin-1"))
    done = run("generate", "--prompt-file", file, code=2)
    assert str(file) in done.stderr and "byte 2" in done.stderr


def test_help(run):
    top = run("--help").stdout
    for command in ("generate", "chat", "calibrate", "profile", "plan", "model", "health", "tokenize", "detokenize"):
        assert re.search(rf"^ +{command} ", top, flags=re.M), top
        assert run(command, "--help").stdout
    assert "--token-ids" in run("generate", "--help").stdout
    assert re.search(r"\d+\.\d+\.\d+", run("--version").stdout)


def running(server):
    return server.metrics()["ripplekv_requests_running"]


def popen(server, environment, *arguments, **streams):
    command = [str(binary("ripplekv")), "--server", server.address, *arguments]
    return subprocess.Popen(command, env=environment, **streams)


LONG = ["generate", "--prompt", "Tell a long story.", "--max-tokens", "2000", "--ignore-eos"]


def test_a_broken_pipe(server, environment):
    """`ripplekv generate | head -c 1`: no word, no hang, and the server stops too."""
    for extra in ([], ["--json"]):
        process = popen(server, environment, *LONG, *extra, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.wait(timeout=30) == -signal.SIGPIPE
        assert process.stderr.read() == b""
        process.stderr.close()
        wait_until(lambda: not running(server))


def test_a_full_disk(server, environment):
    with open("/dev/full", "wb") as full:
        process = popen(server, environment, "model", stdout=full, stderr=subprocess.PIPE)
        assert b"standard output" in process.communicate(timeout=30)[1]
        assert process.returncode == 1


def test_interrupted(server, environment):
    process = popen(server, environment, *LONG, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert "interrupted" in process.communicate(timeout=30)[1]
    assert process.returncode == 130
    wait_until(lambda: not running(server))
    # The same of a measurement: it ends, as nobody else waits for it.
    arguments = ["calibrate", "--examples", "24", "--seed", "10"]
    process = popen(server, environment, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: server.metrics()["ripplekv_calibration_running"])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    wait_until(lambda: not server.metrics()["ripplekv_calibration_running"])


def test_progress_on_a_terminal(server, environment):
    """One line that is drawn over and over."""
    master, slave = pty.openpty()
    arguments = ["calibrate", "--examples", "6", "--prefix-tokens", "128", "--window-tokens", "16", "--seed", "11"]
    process = popen(server, environment, *arguments, stdout=subprocess.PIPE, stderr=slave, text=True)
    os.close(slave)
    drawn = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        drawn += piece
    os.close(master)
    assert "6 examples" in process.communicate(timeout=60)[0] and process.returncode == 0
    text = drawn.decode()
    assert text.count("\r") >= 3 and text.count("\n") == 1
    assert "6/6 examples 100 %" in text
    assert text.rstrip().splitlines()[-1].count("█") > 5




def test_a_context_is_made_once_and_asked(run, server, tmp_path):
    document = tmp_path / "report.txt"
    document.write_text("The bridge over the Elbe was opened in 1911. " * 20, encoding="utf-8")
    made = run("context", "create", "--prompt-file", document, "--stats")
    context = made.stdout.strip()
    assert re.fullmatch(r"[0-9a-f]{16}\.[0-9a-f]{32}", context)
    assert "a chat" in made.stderr and "expires" in made.stderr
    ask = ["--context", context, "--prompt", "When was it opened?"]
    answer = run("generate", *ask, "--max-tokens", "12", "--stats")
    assert answer.stdout.strip()
    tokens = json.loads(run("context", "show", context, "--json").stdout)["context"]["tokens"]
    assert f"context {tokens}" in answer.stderr
    # The same again, and from a chat's first turn.
    assert run("generate", *ask, "--max-tokens", "12").stdout == answer.stdout
    assert run("chat", "--context", context, "--max-tokens", "12", stdin="When was it opened?\n").stdout == answer.stdout
    scores = json.loads(run("score", *ask, "-c", answer.stdout.rstrip("\n"), "-c", "Bananas", "--json").stdout)
    first, second = (entry["logprob"] for entry in scores["continuations"])
    assert first > second
    assert scores["usage"]["context_tokens"] == tokens
    listed = [json.loads(line)["context_id"] for line in run("context", "list", "--json").stdout.splitlines()]
    assert listed == [context]
    assert run("context", "delete", context).stdout == f"Deleted context {context}.\n"
    assert "No context" in run("context", "list").stderr
    assert "NOT_FOUND" in run("generate", *ask, code=1).stderr
