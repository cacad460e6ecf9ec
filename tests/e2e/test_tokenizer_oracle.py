"""The tokenizer against the `tokenizers` library built from the model file's own fields."""

import pathlib
import random
import sys

import gguf
import pytest
from tokenizers import pre_tokenizers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "model"))
import tokenizer_oracle as oracle  # noqa: E402


@pytest.fixture(scope="module")
def fields():
    return oracle.Fields()


def differences(tokenizer, texts, special, model=oracle.MODEL):
    replies = oracle.ask([{"text": text, "special": special} for text in texts], model)
    return [
        (text, reply.get("ids", reply))
        for text, reply in zip(texts, replies)
        if reply.get("ids") != oracle.encode(tokenizer, text)
    ]


def test_ids_of_varied_strings(fields):
    texts = oracle.varied_strings(fields.special)
    assert len(set(texts)) >= 2000
    assert differences(fields.tokenizer(), texts, special=True) == []


def test_ids_of_varied_strings_with_control_tokens_as_text(fields):
    texts = oracle.varied_strings(fields.special, seed=7)
    assert differences(fields.tokenizer(with_special=False), texts, special=False) == []


def test_ids_of_every_unicode_character(fields):
    assert differences(fields.tokenizer(), list(oracle.every_character()), special=True) == []


def test_ids_by_the_gpt2_pattern_alone(fields, tmp_path):
    """The same vocabulary in a file that says pre = gpt-2."""
    path = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(fields.tokens)
    writer.add_token_types(fields.types)
    writer.add_token_merges([" ".join(merge) for merge in fields.merges])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = fields.tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    texts = oracle.varied_strings(fields.special, seed=9) + list(oracle.every_character())[::4]
    assert differences(tokenizer, texts, special=True, model=path) == []


def test_round_trip(fields):
    missing = fields.missing_bytes()
    texts = oracle.varied_strings(fields.special, seed=3)
    whole = 0
    for text, reply in zip(texts, oracle.ask([{"text": text} for text in texts])):
        data = text.encode()
        lost = [i for i, byte in enumerate(data) if byte in missing]
        assert reply["missing"] == (lost[0] if lost else None)
        kept = bytes(byte for byte in data if byte not in missing)
        assert reply["text"] == kept.decode("utf-8", errors="replace")
        whole += not lost
    assert whole >= 2000


def test_streamed_and_whole_decoding_of_random_ids(fields):
    tokenizer = fields.tokenizer()
    rng = random.Random(5)
    # Single bytes make most of the broken characters, so they are drawn often.
    alphabet = oracle.byte_alphabet()
    byte_ids = [i for i, t in enumerate(fields.tokens) if t in set(alphabet.values())]
    requests = []
    for _ in range(1500):
        pool = rng.choice((range(len(fields.tokens)), byte_ids, byte_ids + list(range(17))))
        ids = [rng.choice(pool) for _ in range(rng.randint(0, 40))]
        requests.append({"ids": ids, "skip_special": rng.random() < 0.5})
    broken = 0
    for request, reply in zip(requests, oracle.ask(requests)):
        expected = tokenizer.decode(request["ids"], skip_special_tokens=request["skip_special"])
        assert reply["text"] == expected
        assert "".join(reply["stream"]) == expected
        broken += "\ufffd" in expected
    assert broken > 100


@pytest.mark.parametrize(
    "request_, words",
    [
        ({"ids": [5, 49152]}, ["token_ids[1]", "49152", "0 to 49151"]),
        ({"ids": [-1]}, ["token_ids[0]", "-1", "0 to 49151"]),
    ],
)
def test_ids_out_of_range_are_refused(request_, words):
    (reply,) = oracle.ask([request_])
    assert reply["code"] == "INVALID_ARGUMENT"
    assert all(word in reply["error"] for word in words)
