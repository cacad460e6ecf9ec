"""What bench/compare.py measures, and what it takes from the times at which tokens came."""

import dataclasses
import statistics

COMPRESSING = ("ours-10", "openvino-10")


class Failed(Exception):
    """A contestant could not do what it was asked."""


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    sequences: int
    prompt: int  # tokens each
    new: int
    text: str
    without: tuple = ()  # contestants that it says nothing about
    most_rounds: int = 99
    # The prompts' caches are made once and only the decoding is repeated, where a contestant can do that.
    keep_prompts: bool = False
    # The highest resident memory of each process after the first round is told.
    memory: bool = False
    # No contestant but these.
    only: tuple = ()
    # Tokens of the prompt for who keeps every position, instead of `prompt`.
    uncompressed: int = None

    def prompt_tokens(self, retention):
        return self.prompt if retention else self.uncompressed or self.prompt


# "8192": a prompt of 7936 tokens and 256 to follow fill the model's context.
CASES = [
    Case("short", 1, 16, 496, "decode at positions 16 to 512", COMPRESSING),
    Case("512", 1, 512, 64, "prefill of 512 tokens", ("openvino-10",)),
    Case("2048", 1, 2048, 256, "prefill of 2048 tokens, decode after it"),
    Case("8192", 1, 7936, 256, "prefill of 7936 tokens, decode after it", ("llama-bf16",), 3),
    Case(
        "kept rows",
        1,
        7936,
        256,
        "decode over what retention 0.1 keeps of 7936, and over as many rows uncompressed",
        only=("ours", "ours-10"),
        uncompressed=793,
        keep_prompts=True,
    ),  # fmt: skip
    Case("8 x 512", 8, 512, 256, "8 sequences decode together", COMPRESSING, keep_prompts=True),
    Case("8 x 2048", 8, 2048, 256, "8 sequences decode together", ("llama-bf16", "ort"), keep_prompts=True),
    # llama.cpp in the type that it is fastest with: its attention takes nearly all of the time, and many minutes.
    Case(
        "8 x 8192",
        8,
        7936,
        256,
        "8 sequences decode together, highest resident memory",
        ("llama-bf16", "llama-q4_1", "ort"),
        2,
        keep_prompts=True,
        memory=True,
    ),  # fmt: skip
]


def quick(case):
    """The same in seconds, to see that everything works: its figures mean nothing."""
    uncompressed = case.uncompressed and 38
    return dataclasses.replace(
        case, prompt=min(case.prompt, 384), new=min(case.new, 64), most_rounds=2, uncompressed=uncompressed
    )


def prompts_of(case, contestant, ids):
    tokens = case.prompt_tokens(contestant.retention)
    return [ids[64 * i : 64 * i + tokens] for i in range(case.sequences)]


def figures_of(case, run):
    """Of one run. decode: tokens a second from when the last sequence has its first token until one has its last, so that
    all decode and nothing is prefilled; None where that is never so."""
    times = run["times"]
    if any(len(t) != case.new for t in times):
        raise Failed(f"{[len(t) for t in times]} tokens instead of {case.new} each")
    first, end = max(t[0] for t in times), min(t[-1] for t in times)
    count = sum(first < at <= end for t in times for at in t)
    gaps = sorted(b - a for t in times for a, b in zip(t, t[1:]) if first <= a and b <= end)
    figures = {"decode": count / (end - first) if end > first else None}
    if case.sequences == 1 and not case.keep_prompts:
        figures["first_token_s"] = first
        figures["prefill"] = case.prompt / first
    if gaps:
        figures["gap_median_s"] = statistics.median(gaps)
        figures["gap_p99_s"] = gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))]
    if "cpu_seconds" in run:
        figures["client_cpu"] = run["cpu_seconds"] / max(t[-1] for t in times)
    return figures


def summary(values):
    values = [v for v in values if v is not None]
    if not values:
        return None
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": len(values)}
