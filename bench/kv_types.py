#!/usr/bin/env python3
"""What storing keys and values in fewer bits changes: mean KL to the exact prefill, type by type, at the same positions.

    .venv/bin/python bench/kv_types.py [--types bf16,int8,int8:int4,int4] [--retention 0.2] [--prompts 64] [--text FILE...]

Each type gets a server of its own, the same prompts (pieces of the texts, by default the calibration corpus, of 128 to
--longest tokens) and the same plan. Which positions are kept follows from the full layer, before anything is stored, so it
is the same for all. The KL is the one that the server reports, next_token_kl: between the distributions at the prompt's
last token over all rows as computed and over the kept rows as stored. The change is that of the means, with the standard
error of the paired differences.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SOURCE / "tests" / "e2e"))


def prompts(server, texts, count, longest):
    """`count` pieces of about equally many starts and lengths."""
    from service import stubs

    ids = []
    for text in texts:
        request = stubs().decode.TokenizeRequest(text=text.read_text(encoding="utf-8"))
        ids += server.decode.Tokenize(request).token_ids
    if len(ids) < longest:
        raise SystemExit(f"the texts have {len(ids)} tokens only; ask for a smaller --longest")
    pieces = []
    for i in range(count):
        length = 128 + (longest - 128) * (i % 8) // 7
        start = (len(ids) - length) * i // max(1, count - 1)
        pieces.append(ids[start : start + length])
    return pieces


def measure(server, pieces):
    from service import stubs

    d = stubs().decode
    values = []
    for ids in pieces:
        request = d.GenerateRequest(
            token_ids=d.TokenIdsPrompt(ids=ids),
            stopping=d.StoppingParams(max_tokens=1),
            output=d.OutputParams(next_token_kl=True),
        )
        complete = [r.complete for r in server.decode.Generate(request, timeout=600) if r.HasField("complete")]
        values.append(complete[0].next_token_kl)
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=SOURCE / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build/release")
    parser.add_argument(
        "--types", default="bf16,int8,int8:int4,int4", help="the first is what the others are compared to"
    )
    parser.add_argument("--retention", type=float, default=0.2)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--longest", type=int, default=1024)
    parser.add_argument(
        "--text", type=pathlib.Path, nargs="+", default=sorted((SOURCE / "calibration/corpus").glob("*.txt"))
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()

    from service import Server

    first, rows = None, []
    for kv_type in options.types.split(","):
        with (
            tempfile.TemporaryDirectory() as folder,
            Server(
                options.build / "ripplekv-server",
                pathlib.Path(folder) / "server.log",
                model=options.model,
                kv_type=kv_type,
                retention=options.retention,
                min_positions=0,
                threads=options.threads,
                calibration="off",
                profile_dir=pathlib.Path(folder) / "profiles",
            ) as server,
        ):
            values = measure(server, prompts(server, options.text, options.prompts, options.longest))
            row_bytes = server.model().kv_bytes_per_position_layer
        first = first or values
        differences = [a - b for a, b in zip(values, first, strict=True)]
        mean = statistics.fmean(first)
        rows.append({
            "kv_type": kv_type, "bytes_per_position_layer": row_bytes, "mean_kl_nats": statistics.fmean(values),
            "change": statistics.fmean(differences) / mean,
            "standard_error": statistics.stdev(differences) / math.sqrt(len(differences)) / mean,
        })  # fmt: skip

    if options.json:
        print(json.dumps({"retention": options.retention, "prompts": options.prompts, "types": rows}))
        return
    print(f"{options.prompts} prompts of 128 to {options.longest} tokens, retention {options.retention}")
    for row in rows:
        print(f"{row['kv_type']:>10}: {row['bytes_per_position_layer']:5} bytes a position and layer, mean KL "
              f"{row['mean_kl_nats']:.5f} nats, {row['change']:+.2%} (standard error {row['standard_error']:.2%})")  # fmt: skip


if __name__ == "__main__":
    main()
