"""What is told of results, from results made up by hand."""

import re
import types

import numpy as np
import pytest

from quality import answers_tasks, bootstrap, damage_task, fidelity_task, methods, perplexity_task, report

TITLES = {method.name: method.title for method in methods.ALL}


def kl(value, agreement=1.0, kv_bytes=10):
    return {"mean_kl": value, "agreement": agreement, "kv_bytes": kv_bytes, "full_kv_bytes": 100}


def by(entries, **fields):
    (found,) = [e for e in entries if all(e[k] == v for k, v in fields.items())]
    return found


def test_fidelity_is_paired_by_document():
    results = {(64, "full-doc", "full", None): kl(0.0, kv_bytes=100)}
    for document, base in (("a", 0.1), ("b", 0.4), ("c", 0.9)):
        results[64, document, "snapkv", 0.1] = kl(base, 0.5)
        results[64, document, "ripple-8", 0.1] = kl(base / 2, 0.75)
    results[64, "d", "snapkv", 0.1] = kl(100.0)  # the other method was not measured on it: not compared
    summary = fidelity_task.summary(results)
    found = by(summary, method="ripple-8")
    assert found["mean_kl"]["value"] == pytest.approx(0.7 / 3) and found["documents"] == 3
    assert found["kl_ratio"]["value"] == pytest.approx(0.5) and found["kl_ratio"]["high"] == pytest.approx(0.5)
    assert found["kl_difference"]["value"] == pytest.approx(-0.7 / 3)
    assert found["agreement_difference"]["low"] == pytest.approx(0.25)
    assert found["bytes_share"] == pytest.approx(0.1)
    assert "kl_ratio" not in by(summary, method="snapkv") and "kl_ratio" not in by(summary, method="full")
    text = "\n".join(report.fidelity(summary, TITLES))
    assert "## After 64 tokens" in text and "| 10 % | ripple, r 8 | 0.100 |" in text
    # Each table's rows have as many cells as its head.
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")}) == 1


def answer(score, logprob, kv_bytes=10):
    return {"score": score, "gold_logprob": logprob, "kv_bytes": kv_bytes, "full_kv_bytes": 100, "answer": ""}


def test_answers_are_paired_by_item():
    results = {}
    for number, (full, base, mine) in enumerate([(1, 0, 1), (1, 0, 0), (0, 0, 0), (1, 1, 1)]):
        results["vt", 1024, number, "visible", "full", None] = answer(full, -1.0, 100)
        results["vt", 1024, number, "visible", "snapkv", 0.2] = answer(base, -3.0)
        results["vt", 1024, number, "visible", "ripple-3", 0.2] = answer(mine, -2.5)
    summary = answers_tasks.summary(results)
    found = by(summary, method="ripple-3")
    assert found["score"]["value"] == 0.5 and found["items"] == 4
    assert found["score_to_snapkv"]["value"] == 0.25 and found["score_share_of_full"]["value"] == pytest.approx(2 / 3)
    assert found["gold_logprob_to_snapkv"]["low"] == pytest.approx(0.5)
    assert by(summary, method="snapkv")["score_to_full"]["value"] == -0.5
    text = "\n".join(report.answers(summary, TITLES))
    assert "## vt, 1024 tokens, question visible" in text and text.index("every position") < text.index("ripple, r 3")


def test_perplexity():
    results = {}
    for start, loss in ((0, 1.0), (8, 3.0)):
        results[start, "full", None] = {"logprob": -4 * loss, "tokens": 4, "kv_bytes": 100, "full_kv_bytes": 100}
        results[start, "snapkv", 0.1] = {
            "logprob": -4 * (loss + 0.5),
            "tokens": 4,
            "kv_bytes": 10,
            "full_kv_bytes": 100,
        }
    summary = perplexity_task.summary(results)
    assert by(summary, method="full")["perplexity"]["value"] == pytest.approx(2.718281828**2)
    assert by(summary, method="snapkv")["loss_to_full"]["low"] == pytest.approx(0.5)
    assert "7.389" in report.perplexity(summary, TITLES)[0]


def test_methods():
    assert methods.cells(methods.named(["full", "snapkv"]), [0.1, 0.2]) == [
        (methods.METHODS["full"], None), (methods.METHODS["snapkv"], 0.1), (methods.METHODS["snapkv"], 0.2)
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no method snap; there are full, snapkv"):
        methods.named(["snap"])


def test_damage_of_each_layer_alone():
    rng = np.random.default_rng(2)
    values = rng.gamma(2.0, 1.0, (5, 12)) * np.array([1, 4, 2, 16, 8])[:, None]
    results = {(64, 0.1, f"d{d:02}", layer): {"mean_kl": values[layer, d]} for d in range(12) for layer in range(5)}
    profile = types.SimpleNamespace(layers=[types.SimpleNamespace(mean_kl=k) for k in (0.1, 0.3, 0.2, 0.5, 0.4)])
    summary = damage_task.summary(results, profile)
    assert [d["value"] for d in summary["damage"]] == pytest.approx(values.mean(1))
    # By a plain loop over the same resamples.
    chosen = np.random.default_rng(bootstrap.SEED).integers(0, 12, (2000, 12))
    for name, signal in (("sensitivity", [0.1, 0.3, 0.2, 0.5, 0.4]), ("layer index", range(5))):
        rhos = []
        for row in chosen:
            a, b = (np.argsort(np.argsort(x)) for x in (signal, values[:, row].mean(1)))
            rhos.append(1 - 6 * ((a - b) ** 2).sum() / (5 * 24))
        found = summary["correlations"][name]
        a, b = (np.argsort(np.argsort(x)) for x in (signal, values.mean(1)))
        assert found["value"] == pytest.approx(1 - 6 * ((a - b) ** 2).sum() / (5 * 24))
        assert [found["low"], found["high"]] == pytest.approx(np.quantile(rhos, [0.025, 0.975]))
    assert summary["correlations"]["sensitivity"]["value"] > 0.8
    assert "sensitivity" not in damage_task.summary(results, None)
    text = "\n".join(report.damage(summary))
    assert "| sensitivity | " in text and len(text.splitlines()) == 4 + 7


def test_every_method_is_a_request():
    from service import stubs

    d = stubs().decode
    for method in methods.ALL:
        kv = methods.Sizing(30, 772, 400).kv(method, 0.1)(1024)
        assert d.KvParams(**kv).HasField("size")
        assert (kv["size"] == {"total_bytes": 30 * 102 * 772}) == method.sized


def test_every_allocator_is_compared():
    from service import stubs

    allocators = {name for method in methods.ALL for name in method.kv.get("allocator", {})}
    # Those whose shares a request lists are no methods.
    listed = {"multipliers", "positions"}
    every = {field.name for field in stubs().profile.Allocator.DESCRIPTOR.fields}
    assert allocators | listed == every


def test_every_selector_is_compared():
    from service import stubs

    selectors = {name for method in methods.ALL for name in method.kv.get("selector", {})}
    assert selectors == {field.name for field in stubs().profile.Selector.DESCRIPTOR.fields}


def test_every_parameter_of_a_method_is_said():
    """But sizes; what is left out would be what the server that is measured has."""
    from service import stubs

    def unsaid(message, path):
        for field in message.DESCRIPTOR.fields:
            values = getattr(message, field.name)
            if field.message_type is not None:
                if message.HasField(field.name):
                    yield from unsaid(values, [*path, field.name])
                elif field.containing_oneof is None:
                    yield ".".join([*path, field.name])
            elif field.has_presence and not message.HasField(field.name) or not field.has_presence and not values:
                yield ".".join([*path, field.name])

    for method in methods.ALL:
        kv = stubs().decode.KvParams(**method.kv)
        found = [
            n for part in ("allocator", "selector") if kv.HasField(part) for n in unsaid(getattr(kv, part), [part])
        ]
        assert not found, (method.name, found)
        assert bool(method.kv) == (method.name != "server")


def test_bytes_are_those_of_bf16():
    sizing = methods.Sizing(30, 780, 420)
    assert sizing.in_bf16({"kv_bytes": 7, "full_kv_bytes": 420 * 30 * 1000}) == {
        "kv_bytes": 7,
        "full_kv_bytes": 780 * 30 * 1000,
    }
    assert sizing.in_bf16({"score": 1}) == {"score": 1}


def test_a_long_text_is_tokenized_in_parts_of_whole_lines():
    text = "".join(f"{'x' * i}\n" for i in range(1200)) + "the end"
    parts = perplexity_task.parts(text)
    assert "".join(parts) == text
    assert len(parts) > 1
    assert all(part.endswith("\n") for part in parts[:-1])
    assert all(len(part) <= perplexity_task.TOKENIZED for part in parts)
