"""What the tests over real processes share: where things are, the oracle model, running servers."""

import os

# Spinning OpenMP teams starve each other (and the servers under test) on few cores; read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import pathlib
import signal
import subprocess

import numpy as np
import pytest

# Started in the background (nohup, a script's "&"), a process and its children ignore interrupts, which tests send.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RIPPLEKV_BUILD_DIR", SOURCE / "build" / "release"))
MODEL = pathlib.Path(
    os.environ.get("RIPPLEKV_MODEL", SOURCE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
)


def binary(name):
    path = BUILD / name
    assert path.exists(), f"{path} is missing: run `cmake --build {BUILD}`"
    return path


@pytest.fixture(scope="session")
def model_path():
    assert MODEL.exists(), f"{MODEL} is missing: run scripts/get_model.sh"
    return MODEL


@pytest.fixture(scope="session")
def reference_model(model_path):
    """transformers in fp32 on the dequantised weights."""
    import torch
    import transformers

    torch.set_num_threads(2)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(model_path.parent), gguf_file=model_path.name, dtype=torch.float32
    )
    return model.eval()


def byte_level_tokenizer(model_path, special_tokens):
    """The `tokenizers` library with the file's own fields."""
    import gguf
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    reader = gguf.GGUFReader(str(model_path))
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    if special_tokens:
        types = reader.fields["tokenizer.ggml.token_type"].contents()
        control = [t for t, kind in zip(tokens, types) if kind == gguf.TokenType.CONTROL]
        tokenizer.add_special_tokens(control)
    return tokenizer


@pytest.fixture(scope="session")
def tokenize(model_path):
    """text -> ids, from the `tokenizers` library and the file's own fields."""
    tokenizer = byte_level_tokenizer(model_path, special_tokens=False)
    return lambda text: tokenizer.encode(text).ids


@pytest.fixture(scope="session")
def reference_tokenizer(model_path):
    """The same with the file's control tokens parsed."""
    return byte_level_tokenizer(model_path, special_tokens=True)


@pytest.fixture(scope="session")
def chat_template(model_path):
    """[{"role": ..., "content": ...}] -> text, by the file's template and jinja2."""
    import gguf
    import jinja2

    source = gguf.GGUFReader(str(model_path)).fields["tokenizer.chat_template"].contents()
    template = jinja2.Environment().from_string(source)
    return lambda messages: template.render(messages=messages, add_generation_prompt=True)


@pytest.fixture(scope="session")
def corpus_texts():
    """The calibration corpus: long, varied documents."""
    files = sorted((SOURCE / "calibration" / "corpus").glob("*.txt"))
    assert len(files) >= 24
    return [f.read_text(encoding="utf-8") for f in files]


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory):
    """A model that starts and answers at once, for what does not depend on the model."""
    from tiny_model import write_tiny_llama

    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def start_server(tmp_path_factory):
    """start_server(model=..., ...) is a running Server; all stop when the module's tests are over."""
    from service import PLAIN, Server

    servers = []

    def start(program="ripplekv-server", **options):
        folder = tmp_path_factory.mktemp("server")
        options.setdefault("profile_dir", folder / "profiles")
        servers.append(Server(binary(program), folder / "log", **{**PLAIN, **options}))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def run_dump(program, *arguments):
    """Runs one of the test programs; its error output is part of the failure."""
    done = subprocess.run(
        [str(binary(program)), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{program}: {done.stderr}"
    return done.stdout


def write_ids(path, ids):
    np.asarray(ids, dtype=np.int32).tofile(path)
    return path
