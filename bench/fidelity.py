"""How far a compressed cache's distributions are from the full cache's, from log-probabilities alone.

Continuations are drawn from the compressed cache's own distribution Q and scored over the full cache, P. For a token t drawn
from Q, w log w - w + 1 with w = P(t) / Q(t) has the mean KL(P || Q) and is never negative.
"""

import math
import statistics

from service import stubs

SAMPLES, TOKENS = 4, 64


def mean_kl(p, q):
    """Of log-probabilities of the same tokens."""
    terms = []
    for a, b in zip(p, q, strict=True):
        w = math.exp(a - b)
        terms.append(w * (a - b) - w + 1)
    return {"mean_nats": statistics.fmean(terms), "tokens": len(terms),
            "standard_error": statistics.stdev(terms) / math.sqrt(len(terms))}  # fmt: skip


def ours(contestant, ids, samples=SAMPLES, tokens=TOKENS):
    server, head, last = contestant.server, ids[:-1], ids[-1:]
    compressed, full = contestant.context(head), contestant.context(head, full=True)
    drawn = []
    for seed in range(samples):
        run = {"token_ids": {"ids": last}, "stopping": {"max_tokens": tokens, "ignore_eos": True}}
        request = stubs().decode.GenerateRequest(
            context_id=compressed, sampling={"temperature": 1.0, "seed": seed + 1}, **run
        )
        drawn.append([t for reply in server.decode.Generate(request, timeout=600) for t in reply.chunk.token_ids])

    def score(context):
        request = stubs().decode.ScoreRequest(
            context_id=context, token_ids={"ids": last}, continuations=[{"token_ids": {"ids": ids}} for ids in drawn]
        )
        reply = server.decode.Score(request, timeout=600)
        return [token.logprob for continuation in reply.continuations for token in continuation.tokens]

    return mean_kl(score(full), score(compressed))


def openvino(evicting, full, ids, samples=SAMPLES, tokens=TOKENS):
    """Two contestants, both started."""
    p, q = [], []
    for seed in range(samples):
        drawn = evicting.lines.ask({"draw": ids, "new_tokens": tokens, "seed": seed + 1})
        q += drawn["logprobs"]
        p += full.lines.ask({"score": drawn["ids"], "after": ids})["logprobs"]
    return mean_kl(p, q)
