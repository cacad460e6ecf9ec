"""The unit tests of deploy/prometheus fail where a rule is a little wrong: every recording rule a tenth larger, every alert's
threshold, window and patience moved a little. Some seconds of work each: scripts/monitoring_check.sh runs it."""

import shutil

import pytest
import yaml

from test_monitoring import PROMETHEUS, rules, run

# What breaks an alert's condition, a little: (what stands in the rules, what it becomes).
BROKEN_ALERTS = {
    "RippleKVUnavailable": [
        ("ripplekv_serving == 1", "ripplekv_serving >= 0"),
        ('absent(up{job=~"ripplekv.*"})', "absent(vector(1))"),
        ("unless", "and"),
    ],
    "RippleKVDown": [("== 0", "== 1"), ('up{job=~"ripplekv.*"}', "up")],
    "RippleKVRestarting": [
        ("> 2", "> 1"),
        ("> 2", "> 3"),
        ("[30m]", "[28m]"),
        ("[30m]", "[33m]"),
        ('{job=~"ripplekv.*"}', ""),
    ],
    "RippleKVNotReady": [("== 0", "== 1")],
    "RippleKVCertificateExpiring": [
        ("scalar(", "0.9999 * scalar("),
        ("scalar(", "1.0001 * scalar("),
        ("- time()", ""),
    ],
    "RippleKVFailing": [("> 0.01", "> 0.009"), ("> 0.01", "> 0.021")],
    "RippleKVRefusing": [("scalar(", "0.95 * scalar("), ("scalar(", "1.21 * scalar("), ("refused:target", "x:target")],
    "RippleKVSaturated": [("> 0", "> 1"), ("[5m]", "[4m]"), ("[5m]", "[6m]"), ("min_over_time", "max_over_time")],
    "RippleKVSlowFirstToken": [("scalar(", "0.97 * scalar("), ("scalar(", "1.51 * scalar("), ("p99_5m", "p50_5m")],
    "RippleKVFidelityAboveTarget": [
        ("scalar(", "0.95 * scalar("),
        ("scalar(", "1.26 * scalar("),
        (">= 10", ">= 9"),
        (">= 10", ">= 13"),
    ],
    "RippleKVCalibrationFailing": [
        ("[30m]", "[25m]"),
        ("offset 30m", "offset 25m"),
        ("{outcome", "{x"),
        ("unless", "and"),
    ],
    "RippleKVProfileFetchFailing": [("> 0", "> 10"), ("> 0", ">= 0"), ("[10m]", "[9m]"), ("[10m]", "[11m]")],
    "RippleKVNoProfile": [('"uniform"', '"profile"'), ("ripplekv_kv_memory_bytes > 0", "ripplekv_kv_memory_bytes")],
    "RippleKVProfileStoreProblems": [("> 0", "> 2"), ("> 0", ">= 0")],
}


def minutes(text):
    return int(text[:-1]) * {"m": 1, "h": 60}[text[-1]]


def broken_rules():
    """(what is broken, file, name, the rule as it becomes)."""
    for name, rule in rules("record").items():
        yield f"{name} a tenth larger", "ripplekv-recording.yml", name, {**rule, "expr": f"1.1 * ({rule['expr']})"}
    for name, rule in rules("alert").items():
        for old, new in BROKEN_ALERTS[name]:
            assert old in rule["expr"], f"{name}: {old}"
            yield (
                f"{name}: {old} -> {new}",
                "ripplekv-alerts.yml",
                name,
                {**rule, "expr": rule["expr"].replace(old, new)},
            )
        if "for" in rule:
            for change in (-1, 1):
                wait = f"{minutes(rule['for']) + change}m"
                yield f"{name}: for {wait}", "ripplekv-alerts.yml", name, {**rule, "for": wait}


@pytest.mark.parametrize("what, file, name, rule", list(broken_rules()))
def test_the_unit_tests_see_it(tmp_path, what, file, name, rule):
    shutil.copytree(PROMETHEUS / "rules", tmp_path / "rules")
    shutil.copytree(PROMETHEUS / "tests", tmp_path / "tests")
    document = yaml.safe_load((tmp_path / "rules" / file).read_text(encoding="utf-8"))
    for group in document["groups"]:
        group["rules"] = [rule if name in (r.get("record"), r.get("alert")) else r for r in group["rules"]]
    (tmp_path / "rules" / file).write_text(yaml.safe_dump(document), encoding="utf-8")
    assert run("promtool", "check", "rules", tmp_path / "rules" / file).returncode == 0, (
        "a broken rule must still be one"
    )
    unit_tests = "recording_test.yml" if "record" in rule else "alerts_test.yml"
    done = run("promtool", "test", "rules", tmp_path / "tests" / unit_tests)
    assert done.returncode != 0 and "FAILED" in done.stdout + done.stderr, what
