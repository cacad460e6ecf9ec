#!/usr/bin/env python3
"""Prefill and decode speed beside transformers with kvpress's SnapKV: same machine, same model file, same run.

    .venv/bin/python bench/compare_kvpress.py [--prompt-tokens 2048] [--new-tokens 64] [--retention 0.1] [--rounds 5]

RippleKV is called through gRPC as a client sees it; transformers runs in this process, in bf16, with as many threads.
The two take turns; the ratios printed are medians over the rounds. Install the peers with scripts/install.sh --tests.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SOURCE / "tests" / "e2e"))


def prompt_ids(tokenizer_model, count):
    import gguf
    import tokenizers
    from tokenizers import models, pre_tokenizers

    reader = gguf.GGUFReader(str(tokenizer_model))
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    ids = []
    for file in sorted((SOURCE / "calibration" / "corpus").glob("*.txt")):
        ids += tokenizer.encode(file.read_text(encoding="utf-8")).ids
        if len(ids) >= count:
            return ids[:count]
    raise SystemExit(f"the corpus has {len(ids)} tokens only; ask for fewer --prompt-tokens")


class Kvpress:
    name = "transformers + kvpress SnapKV"

    def __init__(self, model, retention, threads):
        import torch
        import transformers
        from kvpress import SnapKVPress

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            str(model.parent), gguf_file=model.name, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
        self.press = SnapKVPress(compression_ratio=1 - retention, window_size=32, kernel_size=7)

    def run(self, ids, new_tokens):
        torch, model = self.torch, self.model
        from transformers import DynamicCache

        cache = DynamicCache()
        tokens = torch.tensor([ids])
        with torch.inference_mode():
            start = time.perf_counter()
            with self.press(model):
                out = model(tokens, past_key_values=cache, logits_to_keep=1)
            token = out.logits[0, -1].argmax().view(1, 1)
            first = time.perf_counter()
            for step in range(new_tokens - 1):
                position = torch.tensor([[len(ids) + step]])
                out = model(token, past_key_values=cache, position_ids=position)
                token = out.logits[0, -1].argmax().view(1, 1)
            end = time.perf_counter()
        return len(ids) / (first - start), (new_tokens - 1) / (end - first)


class RippleKv:
    name = "RippleKV"

    def __init__(self, server):
        self.server = server

    def run(self, ids, new_tokens):
        from service import stubs

        d = stubs().decode
        request = d.GenerateRequest(
            token_ids=d.TokenIdsPrompt(ids=ids),
            stopping=d.StoppingParams(max_tokens=new_tokens, ignore_eos=True),
        )
        start = time.perf_counter()
        first = None
        for response in self.server.decode.Generate(request):
            if first is None and response.HasField("chunk") and response.chunk.token_ids:
                first, already = time.perf_counter(), len(response.chunk.token_ids)
        end = time.perf_counter()
        return len(ids) / (first - start), (new_tokens - already) / (end - first)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=SOURCE / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build/release")
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--retention", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()

    from service import Server

    ids = prompt_ids(options.model, options.prompt_tokens)
    peer = Kvpress(options.model, options.retention, options.threads)
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(
            options.build / "ripplekv-server",
            pathlib.Path(folder) / "server.log",
            model=options.model,
            retention=options.retention,
            min_positions=0,
            threads=options.threads,
            calibration="off",
            profile_dir=pathlib.Path(folder) / "profiles",
        ) as server,
    ):
        ours = RippleKv(server)
        runs = {ours.name: [], peer.name: []}
        for round_number in range(options.rounds + 1):
            for contestant in (ours, peer):
                figures = contestant.run(ids, options.new_tokens)
                if round_number > 0:  # the first round warms up
                    runs[contestant.name].append(figures)

    ratios = {}
    for i, phase in enumerate(("prefill", "decode")):
        pairs = [a[i] / b[i] for a, b in zip(runs[ours.name], runs[peer.name])]
        ratios[phase] = {
            "median": statistics.median(pairs),
            "min": min(pairs),
            "max": max(pairs),
            "tokens_per_second": {n: statistics.median(f[i] for f in r) for n, r in runs.items()},
        }
    if options.json:
        print(json.dumps({"prompt_tokens": len(ids), "retention": options.retention, "ratios": ratios}))
        return
    print(f"prompt {len(ids)} tokens, retention {options.retention}, {options.rounds} rounds in turns")
    for phase, r in ratios.items():
        print(f"{phase}: RippleKV / ({peer.name}) = {r['median']:.2f} (from {r['min']:.2f} to {r['max']:.2f})")
        for name, speed in r["tokens_per_second"].items():
            print(f"    {name}: {speed:.0f} tokens/s on this machine")


if __name__ == "__main__":
    main()
