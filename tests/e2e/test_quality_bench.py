"""The quality bench from its command line, on a model that answers at once."""

import json
import pathlib
import subprocess
import sys

import pytest

from conftest import BUILD, SOURCE
from quality import methods
from tiny_model import write_tiny_llama

LONGBENCH = SOURCE / "tests" / "bench" / "quality" / "longbench"


@pytest.fixture(scope="module")
def run_bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quality")
    model = write_tiny_llama(folder / "tiny.gguf", context=4096)

    def run(command, *words, out, expect=0):
        done = subprocess.run(
            [sys.executable, str(SOURCE / "bench" / "quality"), command, "--quick", "--model", str(model), "--build", str(BUILD),
             "--threads", "1", "--profile-dir", str(folder / "profiles"), "--out", str(folder / out), *map(str, words)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == expect, done.stderr
        return done, folder / out

    return run


def read(out):
    return json.loads((out / "results.json").read_text())


def test_perplexity_goes_on_where_it_was(run_bench, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Some words of no great interest, one after another. " * 12)
    words = ["--file", text, "--methods", "full", "snapkv"]
    _, out = run_bench("perplexity", *words, out="perplexity")
    first = (out / "results.jsonl").read_text()
    assert len(first.splitlines()) == 1 + 3 * 2  # settings; three windows, two methods
    # Half a line was written when it was stopped; a method is added.
    (out / "results.jsonl").write_text(first[:-9])
    run_bench("perplexity", *words, "ripple-8", out="perplexity")
    again = (out / "results.jsonl").read_text().splitlines()
    assert again[:6] == first.splitlines()[:6] and first.splitlines()[6] in again and len(again) == 1 + 3 * 3
    result = read(out)
    assert {e["method"] for e in result["summary"]} == {"full", "snapkv", "ripple-8"}
    assert result["settings"]["model"] == "Tiny llama" and len(result["settings"]["fingerprint"]) == 64
    full, snapkv = ([e for e in result["summary"] if e["method"] == m][0] for m in ("full", "snapkv"))
    assert full["bytes_share"] == 1 and snapkv["bytes_share"] == pytest.approx(0.3, abs=0.01)
    assert "| 30 % | ripple, r 8 |" in (out / "results.md").read_text()
    done, _ = run_bench("perplexity", "--file", LONGBENCH / "trec.jsonl", out="perplexity", expect=1)
    assert "results of other settings (file was" in done.stderr


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    for i in range(12):
        (folder / f"{i}.txt").write_text(
            f"Document {i} has its own beginning, and then goes on like the others do. " * 8
        )
    return folder


def test_fidelity_on_documents(run_bench, documents):
    words = ["--documents", documents, "--count", "3", "--methods", "full", "snapkv", "ripple-8"]
    _, out = run_bench("documents", *words, out="documents")
    result = read(out)
    full, snapkv, ripple = (
        [e for e in result["summary"] if e["method"] == m][0] for m in ("full", "snapkv", "ripple-8")
    )
    assert full["mean_kl"]["value"] == 0 and full["agreement"]["value"] == 1 and full["documents"] == 3
    assert snapkv["mean_kl"]["value"] > 0 and ripple["mean_kl"]["value"] > 0
    assert ripple["kl_ratio"]["value"] == pytest.approx(ripple["mean_kl"]["value"] / snapkv["mean_kl"]["value"])
    assert "## After 256 tokens" in (out / "results.md").read_text()
    # The split is what was asked for: the other half are other documents.
    names = {r["document"] for r in result["results"]}
    _, out = run_bench("documents", *words, "--split", "tuning", out="tuning")
    assert not names & {r["document"] for r in read(out)["results"]}
    done, _ = run_bench("documents", *words, "--count", "12", out="many", expect=1)
    assert "documents of the held-out split are long enough, 12 are asked for" in done.stderr


def test_every_method_gets_its_bytes(run_bench, documents):
    # Not in the order of the default, which --quick would shorten.
    words = ["--documents", documents, "--count", "1", "--methods", *reversed(methods.METHODS)]
    _, out = run_bench("documents", *words, out="every")
    shares = {e["method"]: e["bytes_share"] for e in read(out)["summary"]}
    assert shares.pop("full") == 1 and len(shares) == len(methods.METHODS) - 1
    assert all(0.29 < share <= 0.3 for share in shares.values()), shares


def test_damage_of_each_layer(run_bench, documents):
    _, out = run_bench("damage", "--documents", documents, out="damage")
    summary = read(out)["summary"]
    assert len(summary["damage"]) == 4 and all(d["value"] > 0 and d["documents"] == 2 for d in summary["damage"])
    assert set(summary["correlations"]) == {"sensitivity", "layer index"}


def test_longbench_from_local_files(run_bench):
    _, out = run_bench("longbench", "--data", LONGBENCH, "--most", "20", "--methods", "full", "snapkv", out="longbench")
    result = read(out)
    sets = {pathlib.Path(p).stem for p in LONGBENCH.glob("*.jsonl")}
    assert {r["key"][0] for r in result["results"]} == sets and len(sets) == 7
    assert {r["key"][3] for r in result["results"]} == {"visible", "hidden"}
    assert all(0 <= r["score"] <= 1 for r in result["results"])
    assert "no LongBench" not in (out / "results.md").read_text()


def test_the_profile(run_bench):
    _, out = run_bench("profile", out="profile")
    assert len(json.loads((out / "profile.json").read_text())["layers"]) == 4
    text = (out / "results.md").read_text()
    assert "| 3 |" in text and "damage at 10 %" in text
    assert "Rank correlation with the damage of compressing a layer alone to 10 %: sensitivity " in text


def test_wrong_values_are_told(run_bench, tmp_path):
    for command, words, error in (
        ("longbench", ["--data", tmp_path / "nowhere"], "nowhere is not there"),
        ("longbench", ["--data", tmp_path], "has no file *.jsonl"),
        ("perplexity", ["--file", LONGBENCH / "trec.jsonl", "--methods", "magic"], "no method magic; there are full"),
    ):
        done, _ = run_bench(command, *words, out="wrong", expect=1)
        assert error in done.stderr and "Traceback" not in done.stderr


def test_sweep_of_the_profile(run_bench, documents):
    words = ["--documents", documents, "--eta", "0.5", "1", "--examples", "2", "4", "--length", "200"]
    _, out = run_bench("sweep", *words, out="sweep")
    result = read(out)
    lines = {(e["setting"], e["value"]): e for e in result["summary"]}
    # The server's own settings are not measured again.
    assert set(lines) == {("uniform", None), ("server", None), ("eta", 1.0), ("examples", 2)}
    assert lines["server", None]["to_own"] == 1 and "kl_to_own" not in lines["server", None]
    assert all(entry["mean_kl"]["value"] > 0 and entry["mean_kl"]["documents"] == 2 for entry in lines.values())
    profiles = {tuple(r["key"][:3]): r["sensitivity"] for r in result["results"] if "sensitivity" in r}
    assert set(profiles) == {("profile", "eta", 1.0), ("profile", "examples", 2)}
    assert "| eta 1 |" in (out / "results.md").read_text()


def test_efficiency(run_bench, documents):
    _, out = run_bench("efficiency", "--documents", documents, "--methods", "full", "snapkv", out="efficiency")
    result = read(out)
    full, snapkv = ([e for e in result["summary"] if e["method"] == m][0] for m in ("full", "snapkv"))
    assert full["rounds"] == snapkv["rounds"] == 2 and full["whole_ratio"]["value"] == 1
    assert snapkv["kv_bytes_ratio"]["value"] == pytest.approx(0.3, abs=0.01) and snapkv["peak_bytes_ratio"]["value"] < 1
    assert 0 < full["first"] < full["whole"] and full["decode_rate"] > 0
    assert "| 30 % | SnapKV, uniform |" in (out / "results.md").read_text()


def test_target(run_bench, documents):
    _, out = run_bench("target", "--documents", documents, "--targets", "1e-6", "10", out="target")
    small, large = read(out)["summary"]
    assert (small["target"], large["target"]) == (1e-6, 10) and small["documents"] == large["documents"] == 2
    assert small["bytes_share"] > large["bytes_share"] and small["mean_kl"]["value"] <= large["mean_kl"]["value"]
    assert large["to_target"]["value"] == pytest.approx(large["mean_kl"]["value"] / 10)
