"""The whole model's mean KL by size, measured by calibration: it is what Score measures with a reference, and target_mean_kl
turns it into a size."""

import math

import grpc
import numpy as np
import pytest

from service import generate, stubs, wait_until
from test_calibration_service import budgets, calibrate, completion, get_profile

WINDOW = 16
PROMPTS = (128, 256, 512)  # the prefix, twice and four times as many
RETENTIONS = (0.3, 0.5, 1.0)  # those of the defaults that keep sinks, window and one more of 128 tokens
EXAMPLES = 3
# One that fits no prompt, one that fits them all, and others.
LENGTHS = (300, 900, 40, 200, 420)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    (folder / "sizes").mkdir()
    random = np.random.default_rng(3)
    for i, length in enumerate(LENGTHS):
        text = "".join(chr(c) for c in random.integers(97, 123, length))
        (folder / "sizes" / f"{i}.txt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def texts(corpora):
    return [(corpora / "sizes" / f"{i}.txt").read_text() for i in range(len(LENGTHS))]


PLANS = {
    "ripple, H2O, int8": {"allocator": "ripple", "ripple_r": 4, "selector": "h2o", "kv_type": "int8"},
    "damage curves, types chosen": {
        "allocator": "damage_curves",
        "kv_type": "auto",
        "calibration_damage": 2,
        "selector": "recent_attention",
    },
}


@pytest.fixture(scope="module", params=PLANS)
def server(request, start_server, tiny_model_path, corpora):
    server = start_server(
        model=tiny_model_path,
        compute="fp32",
        min_positions=0,
        corpus_dir=corpora,
        corpus="sizes",
        calibration_examples=2,
        calibration_prefix=PROMPTS[0],
        calibration_window=WINDOW,
        calibration_sizes=EXAMPLES,
        threads=2,
        **PLANS[request.param],
    )
    wait_until(lambda: server.model().plan.source == stubs().profile.PLAN_SOURCE_PROFILE)
    return server


def examples(server, texts):
    """Token ids: each text's end, from the text after the two that the profile's own examples are of, with the texts before
    it in front."""
    tokens = [
        list(server.decode.Tokenize(stubs().decode.TokenizeRequest(text=text), timeout=10).token_ids) for text in texts
    ]
    found = []
    # Two examples of 144 tokens: texts 0 and 1. Text 2 is longer than a window and ends the first.
    for t in (2, 3, 4):
        stream = [token for i in range(t + 1, t + 1 + len(texts)) for token in tokens[i % len(texts)]]
        found.append(stream[-(PROMPTS[-1] + WINDOW) :])
    return found


def curve(profile):
    """Means and standard errors [prompts][retentions]."""
    assert [(size.prompt_tokens, size.retention) for size in profile.sizes] == [
        (tokens, retention) for tokens in PROMPTS for retention in RETENTIONS
    ]
    shape = len(PROMPTS), len(RETENTIONS)
    mean = np.array([size.damage.mean_kl for size in profile.sizes]).reshape(shape)
    return mean, np.array([size.damage.standard_error for size in profile.sizes]).reshape(shape)


def test_the_curve_is_what_score_measures(server, texts):
    profile = get_profile(server).profile
    assert profile.settings.size_examples == EXAMPLES
    assert list(profile.settings.size_retentions) == list(RETENTIONS)
    mean, error = curve(profile)
    scored = np.empty((EXAMPLES, len(PROMPTS), len(RETENTIONS)))
    for e, ids in enumerate(examples(server, texts)):
        assert len(ids) == PROMPTS[-1] + WINDOW
        for p, tokens in enumerate(PROMPTS):
            for r, retention in enumerate(RETENTIONS):
                request = stubs().decode.ScoreRequest(
                    token_ids={"ids": ids[-WINDOW - tokens : -WINDOW]},
                    # What follows window token t is compared at token t + 1; the last one only makes room for it.
                    continuations=[{"token_ids": {"ids": ids[-WINDOW:] + [0]}}],
                    kv={"size": {"retention": retention}},
                    reference=True,
                )
                score = server.decode.Score(request, timeout=60).continuations[0]
                scored[e, p, r] = np.mean([token.kl for token in score.tokens[1:]])
    theirs = scored.mean(0)
    print("ours", mean, "Score", theirs, sep="\n")
    assert mean == pytest.approx(theirs, rel=1e-5, abs=1e-9)
    assert error == pytest.approx(scored.std(0, ddof=1) / math.sqrt(EXAMPLES), rel=1e-5, abs=1e-9)
    assert (mean[:, 0] > mean[:, 1]).all() and (mean[:, 1] > mean[:, 2]).all()
    assert (mean[:, 2] > 0).all() == (server.model().kv_type == stubs().profile.KV_TYPE_INT8)


def test_a_target_gives_the_size_that_was_measured(server):
    mean, _ = curve(get_profile(server).profile)
    layers = len(server.model().plan.multipliers) or 4
    for p, tokens in enumerate(PROMPTS):
        for r, retention in enumerate(RETENTIONS[:2]):
            planned = budgets(server, prompt_tokens=tokens, size={"target_mean_kl": mean[p, r]})
            # By positions, where a retention is of whole positions of each layer.
            assert abs(planned.requested_positions - retention * tokens * layers) <= layers
        between = budgets(server, prompt_tokens=tokens, size={"target_mean_kl": math.sqrt(mean[p, 0] * mean[p, 1])})
        expected = math.sqrt(RETENTIONS[0] * RETENTIONS[1]) * tokens * layers
        assert between.requested_positions == math.ceil(expected - 1e-6)
        # Nothing is known below the least that was measured.
        least = budgets(server, prompt_tokens=tokens, size={"target_mean_kl": 1e9})
        assert abs(least.requested_positions - RETENTIONS[0] * tokens * layers) <= layers
    complete = generate(
        server,
        token_ids={"ids": list(range(97, 123)) * 10},
        kv={"size": {"target_mean_kl": mean[1, 0]}},
        stopping={"max_tokens": 2},
    )[3]
    assert 0 < complete.cache.kv_bytes < complete.cache.full_kv_bytes


def test_a_curve_of_another_plan_is_refused(server):
    for field, complaint in (
        ({"selector": {"snapkv": {}}}, "not snapkv"),
        ({"allocator": {"uniform": {}}}, "not uniform"),
        ({"key_type": "KV_TYPE_INT4"}, "int4 keys"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            generate(server, text="x" * 300, kv={"size": {"target_mean_kl": 0.1}, **field})
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "was measured with another" in refused.value.details()
        assert complaint in refused.value.details()


def test_requests_name_their_own_sizes(server):
    settings = {"size_prompt_tokens": [64], "size_retentions": [0.7], "size_examples": 4, "window_tokens": 8}
    events = list(calibrate(server, settings))
    assert all(e.progress.examples_total == 2 + 4 for e in events[1:-1])
    profile = completion(events).profile
    assert [(size.prompt_tokens, size.retention) for size in profile.sizes] == [(64, 0.7)]
    assert profile.settings.size_chooses_types == (server.model().plan.chooses_types)
    again = completion(calibrate(server, settings, force=True)).profile
    assert again.content_digest == profile.content_digest
    none = completion(calibrate(server, {"size_examples": 0, "seed": 5})).profile
    assert not none.sizes and not none.settings.HasField("size_allocator")


@pytest.mark.parametrize(
    "sizes, complaint",
    [
        ({"size_examples": -1}, "settings.size_examples is -1: must be between 0 and 4096"),
        ({"size_prompt_tokens": [1020]}, "settings.size_prompt_tokens[0] + window_tokens is 1036"),
        ({"size_retentions": [0.05]}, "settings.size_retentions[0] is 0.05, 6 of 128 rows"),
        ({"size_retentions": [0.5, 2]}, "settings.size_retentions[1] is 2"),
        ({"size_allocator": {"positions": {"positions": [1, 2, 3, 4]}}}, "settings.size_allocator is positions"),
        ({"size_allocator": {"multipliers": {"multipliers": [1, 2]}}}, "must have one for each of the 4 layers"),
        ({"size_examples": 0, "size_retentions": [0.5]}, "settings.size_examples is 0"),
        ({"size_examples": 100}, "size_examples is 100: the corpus's 5 texts give"),
        ({"selector": {"snapkv": {"kernel": 2}}}, "settings.selector.snapkv.kernel is 2"),
    ],
)
def test_sizes_that_cannot_be_measured(server, sizes, complaint):
    with pytest.raises(grpc.RpcError) as error:
        list(calibrate(server, sizes))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert complaint in error.value.details()


def test_a_calibration_server_measures_them_too(start_server, tiny_model_path, corpora):
    options = {
        "model": tiny_model_path,
        "compute": "fp32",
        "corpus_dir": corpora,
        "corpus": "sizes",
        "calibration_examples": 2,
        "calibration_prefix": 128,
    }
    calibrator = start_server("ripplekv-calibration-server", **options)
    server = start_server(
        calibration=calibrator.address, calibration_sizes=2, selector="streaming_llm", kv_type="int4", **options
    )
    wait_until(lambda: server.model().plan.source == stubs().profile.PLAN_SOURCE_PROFILE)
    profile = get_profile(server).profile
    assert len(profile.sizes) == 9 and profile.settings.selector.HasField("streaming_llm")
    assert profile.settings.size_key_type == stubs().profile.KV_TYPE_INT4
    kv = {"size": {"target_mean_kl": profile.sizes[0].damage.mean_kl}}
    assert generate(server, text="x" * 500, kv=kv, stopping={"max_tokens": 1})[3].cache.kv_bytes > 0
