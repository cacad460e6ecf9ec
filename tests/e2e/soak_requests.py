"""What a soak sends: a seeded random mix of calls, each told by (seed, number) alone."""

import dataclasses

import numpy as np

KINDS = {  # shares of a mix
    "generate": 0.42,
    "ask": 0.16,  # Generate over a context
    "score": 0.07,
    "score_ask": 0.03,  # Score over a context
    "create_context": 0.06,
    "delete_context": 0.04,
    "cancel": 0.08,
    "deadline": 0.05,
    "bad_input": 0.03,
    "too_large": 0.02,
    "burst": 0.004,  # more at once than the queue holds
    "slow_reader": 0.002,
    "killed_client": 0.003,
    "calibration": 0.005,
}
BURST = 40
LARGE = {  # answers that no flow control window takes, from a bounded cache
    "stopping": {"max_tokens": 3000, "ignore_eos": True},
    "output": {"logprobs": 20},
    "kv": {"growth_cap": 64},
}


@dataclasses.dataclass
class Call:
    kind: str
    fields: dict  # of the request
    timeout: float = 300
    cancel_after_tokens: int = None


def ids(random, low, high):
    """Prompts of any length in [low, high], short ones more often."""
    count = int(np.exp(random.uniform(np.log(low), np.log(high + 1))))
    return {"ids": random.integers(0, 256, min(count, high)).tolist()}


def one_of(random, *values):
    return values[int(random.integers(len(values)))]


def kv(random):
    """Sizes, allocators, selectors and types of a prompt's own cache."""
    fields = {}
    if random.random() < 0.6:
        fields["size"] = one_of(
            random, {"full": {}}, {"retention": float(random.uniform(0.05, 1))}, {"total_positions": 300}
        )
    if random.random() < 0.4:
        fields["allocator"] = one_of(random, {"uniform": {}}, {"ripple": {"r": 4.0}})
    if random.random() < 0.3:
        fields["selector"] = one_of(
            random,
            {"snapkv": {"window": int(random.integers(1, 33)), "kernel": one_of(random, 1, 5, 7)}},
            {"h2o": {"queries": int(random.integers(1, 300)), "normalised": bool(random.integers(2))}},
            {"recent_attention": {"queries": int(random.integers(1, 300)), "pooling": 2}},
            {"mixed": {"queries": int(random.integers(1, 300)), "weight": float(random.uniform())}},
            {"streaming_llm": {}},
            {"random": {"seed": int(random.integers(9))}},
        )
    if random.random() < 0.4:
        fields["key_type"] = one_of(random, 0, 2, 3, 4)
        fields["value_type"] = one_of(random, 0, 2, 3, 4)
    return fields


def sampling(random):
    if random.random() < 0.4:
        return {}
    fields = {"temperature": float(random.uniform(0.3, 1.5)), "seed": int(random.integers(1 << 62))}
    if random.random() < 0.5:
        fields["top_p"] = 0.9
    if random.random() < 0.3:
        fields["top_k"] = 40
    if random.random() < 0.3:
        fields["repetition_penalty"] = 1.2
    return fields


def generation(random, over_context=False, max_prompt=400):
    fields = {
        "token_ids": ids(random, 1, 40 if over_context else max_prompt),
        "sampling": sampling(random),
        "stopping": {"max_tokens": int(np.exp(random.uniform(0, np.log(300)))), "ignore_eos": random.random() < 0.7},
        "output": {"logprobs": int(random.integers(0, 3))},
        "kv": {} if over_context else kv(random),
    }
    if not over_context and random.random() < 0.05:
        fields["output"]["next_token_kl"] = True
    if random.random() < 0.3:
        fields["kv"]["growth_cap"] = int(random.integers(16, 32))
    return fields


def scoring(random, over_context=False):
    return {
        "token_ids": ids(random, 1, 40 if over_context else 300),
        "continuations": [{"token_ids": ids(random, 1, 20)} for _ in range(int(random.integers(1, 5)))],
        "kv": {} if over_context else kv(random),
    }


def bad_input(random):
    return one_of(
        random,
        {"token_ids": {"ids": [99999]}},
        {"token_ids": {"ids": [1]}, "stopping": {"max_tokens": -1}},
        {"token_ids": {"ids": [1]}, "sampling": {"temperature": -1.0}},
        {"token_ids": {"ids": [1] * 50000}},  # more than the model's context
        {},
    )


def make_call(seed, number):
    random = np.random.default_rng([seed, number])
    shares = np.array(list(KINDS.values()))
    kind = list(KINDS)[int(random.choice(len(shares), p=shares / shares.sum()))]
    if kind in ("ask", "score_ask"):
        build = generation if kind == "ask" else scoring
        return Call(kind, build(random, over_context=True))
    if kind == "score":
        return Call(kind, scoring(random))
    if kind == "create_context":
        return Call(kind, {"token_ids": ids(random, 1, 400), "kv": kv(random)})
    if kind == "cancel":
        fields = generation(random)
        fields["stopping"] = {"max_tokens": 400, "ignore_eos": True}
        return Call(kind, fields, cancel_after_tokens=int(random.integers(0, 60)))
    if kind == "deadline":
        fields = generation(random)
        fields["stopping"] = {"max_tokens": 400, "ignore_eos": True}
        return Call(kind, fields, timeout=float(random.uniform(0.002, 0.2)))
    if kind == "bad_input":
        return Call(kind, bad_input(random))
    if kind == "too_large":
        return Call(kind, {"token_ids": ids(random, 3600, 3700), "kv": {"size": {"full": {}}}})
    if kind == "slow_reader":
        return Call(kind, {"token_ids": ids(random, 1, 40), **LARGE})
    if kind in ("generate", "burst"):
        return Call(kind, generation(random, max_prompt=40 if kind == "burst" else 400))
    return Call(kind, {})
