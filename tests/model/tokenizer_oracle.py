"""Tokenizer truth from a GGUF file's own fields, by the `tokenizers` library, and texts to compare on.

Run as a program it writes tests/model/tokenizer_golden.json, which tokenizer_test.cc reads.
"""

import argparse
import heapq
import inspect
import json
import os
import pathlib
import random
import subprocess
import textwrap

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = pathlib.Path(
    os.environ.get("RIPPLEKV_MODEL", ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
)
BUILD_DIR = pathlib.Path(os.environ.get("RIPPLEKV_BUILD_DIR", ROOT / "build" / "release"))
CONTROL = 3


class Fields:
    """tokenizer.ggml.* of a file."""

    def __init__(self, path=MODEL):
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing: run scripts/get_model.sh")
        reader = gguf.GGUFReader(path)

        def get(name):
            return reader.fields[f"tokenizer.{name}"].contents()

        self.tokens = get("ggml.tokens")
        self.types = get("ggml.token_type")
        self.merges = [tuple(merge.split(" ")) for merge in get("ggml.merges")]
        self.chat_template = get("chat_template")
        self.bos = self.tokens[get("ggml.bos_token_id")]
        self.eos = self.tokens[get("ggml.eos_token_id")]
        self.special = [t for t, kind in zip(self.tokens, self.types) if kind == CONTROL]
        assert get("ggml.model") == "gpt2" and get("ggml.pre") == "smollm"

    def tokenizer(self, with_special=True):
        """Without an unknown token: a byte that the vocabulary lacks gives no id."""
        vocab = {token: i for i, token in enumerate(self.tokens)}
        made = Tokenizer(models.BPE(vocab=vocab, merges=self.merges))
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        made.decoder = decoders.ByteLevel()
        if with_special:
            made.add_special_tokens(
                [AddedToken(t, special=True, normalized=False) for t in self.special]
            )
        assert made.get_vocab_size() == len(self.tokens)
        return made

    def missing_bytes(self):
        alphabet = byte_alphabet()
        have = set(self.tokens)
        return {b for b in range(256) if alphabet[b] not in have}


def byte_alphabet():
    """GPT-2's: printable Latin-1 stands for itself, the rest follow from U+0100 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in itself]
    return {**{b: chr(b) for b in itself}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def ask(requests, model=MODEL):
    """Replies of tokenize_main, one a request."""
    program = BUILD_DIR / "tokenize_main"
    if not program.exists():
        raise FileNotFoundError(f"{program} is missing: build it (cmake --build --preset release)")
    done = subprocess.run(
        [program, model],
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    replies = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
    assert len(replies) == len(requests)
    return replies


def every_character():
    """Every Unicode scalar value, 64 of them a text, where its class (letter, numeral, space, other) shows in the ids.

    After an "other" character `'s` is not cut off as one token; two spaces are one token only before a numeral or
    another space.
    """
    scalars = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for begin in range(0, len(scalars), 64):
        yield "".join(f"{chr(c)}'s  {chr(c)}x\n" for c in scalars[begin : begin + 64])


WORDS = "the of I'm you'll we've THEY'RE it's don't 'tis can't've naïve Straße Ωμέγα мир שלום سلام नमस्ते 你好 こんにちは 한국어 ไทย".split()
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", "\u00a0", "\u1680", "\u180e",
          "\u2003", "\u2009", "\u200a", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff"]
NUMERALS = "0 7 42 1234567890 3.14 1,000 ½ ² ③ Ⅻ ㊿ ٣٤٥ ۱۲ ४२ ৭৮ 〇 一二 ௧௨ ༣ ១២ 𝟘𝟙 𐒠𐒡 𞥐 𑛀 🄁 ೧ 1٢3".split()
MARKS = ["e\u0301", "a\u0308\u0304", "\u0301", "न\u093c", "กำ", "ᄒ\u1161ᆫ", "\u20dd", "x\u0336y\u0336", "🇩🇪", "👨‍👩‍👧‍👦",
         "👍🏽", "❤️", "🏳️‍🌈", "\U000e0067", "\ufe0f", "\u200d", "𝒳", "𐍈", "𠮷"]
PUNCTUATION = ["...", "?!", "--", "—", "“q”", "«»", "()", "[]{}", "<|", "|>", "</s>", "```", "##", "**", "$%&", "\\", "'", '"',
               "''s", "'", "€", "©", "、。", "¿"]


def varied_strings(special, seed=0):
    """Texts of many kinds, at least 2,000; the same for a seed."""
    rng = random.Random(seed)
    texts = [""]

    def mix(*kinds, low=1, high=12):
        return "".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randint(low, high)))

    def scalar(low, high):
        while 0xD800 <= (c := rng.randrange(low, high)) < 0xE000:
            pass
        return chr(c)

    partial = [t[:cut] for t in special for cut in (1, len(t) // 2, len(t) - 1)]
    partial += [t[1:] for t in special] + [t.upper() for t in special]
    for plane in range(17):
        for _ in range(30):
            texts.append("".join(scalar(plane << 16, (plane + 1) << 16) for _ in range(rng.randint(1, 10))))
            texts.append(mix(WORDS, SPACES) + scalar(plane << 16, (plane + 1) << 16) + mix(WORDS, SPACES))
    for _ in range(200):
        texts.append(mix(WORDS, [" "], high=30))
        texts.append(mix(SPACES, WORDS))
        texts.append(mix(SPACES, high=20))
        texts.append(mix(NUMERALS, WORDS, SPACES))
        texts.append(mix(NUMERALS, MARKS))
        texts.append(mix(MARKS, WORDS, SPACES))
        texts.append(mix(PUNCTUATION, WORDS, SPACES, NUMERALS))
        texts.append(mix(special, WORDS, SPACES))
        texts.append(mix(special, partial, PUNCTUATION))
        texts.append(mix([chr(c) for c in (*range(32), 127, *range(0x80, 0xA0))], WORDS))
        texts.append("".join(chr(rng.randrange(32, 127)) for _ in range(rng.randint(1, 60))))
        texts.append(mix(WORDS, SPACES, NUMERALS, MARKS, PUNCTUATION, special, partial, high=60))
    for module in (argparse, heapq, textwrap):
        lines = inspect.getsource(module).splitlines(keepends=True)
        for _ in range(60):
            begin = rng.randrange(len(lines))
            texts.append("".join(lines[begin : begin + rng.randint(1, 40)]))
    for character in ("a", " ", "\n", "é", "0", "<", "🙂", "中"):
        texts.append(character * 3000)
    return texts


def main():
    fields = Fields()
    truth = fields.tokenizer()
    plain = fields.tokenizer(with_special=False)
    picked = random.Random(1).sample(varied_strings(fields.special), 40)
    picked = [t for t in picked if len(t) < 400] + WORDS[:4] + SPACES[:4] + NUMERALS[:6] + MARKS[8:13]
    picked += ["", "<|im_end|>", "a<|im_start|>user\nhi<|im_end|>", "<|im_end|", "<|im_end|><|endoftext|>  x"]
    cases = [{"text": t, "ids": encode(truth, t), "ids_as_text": encode(plain, t)} for t in picked]
    path = ROOT / "tests" / "model" / "tokenizer_golden.json"
    path.write_text(json.dumps(cases, ensure_ascii=True, indent=0) + "\n")
    print(f"{path}: {len(cases)} texts")


if __name__ == "__main__":
    main()
