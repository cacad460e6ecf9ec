"""A run that was stopped goes on where it was."""

import json

import pytest

from quality.journal import Journal, SettingsDiffer


def test_results_are_there_again(tmp_path):
    path = tmp_path / "out" / "results.jsonl"
    with Journal(path, {"model": "m", "tokens": (1, 2)}) as journal:
        journal.add(("a", 1), {"kl": 0.25})
    with Journal(path, {"model": "m", "tokens": (1, 2)}) as journal:
        assert ("a", 1) in journal and ("a", 2) not in journal
        journal.add(("a", 2), {"kl": 0.5})
    with Journal(path, {"model": "m", "tokens": [1, 2]}) as journal:
        assert journal.results == {("a", 1): {"kl": 0.25}, ("a", 2): {"kl": 0.5}}


def test_half_a_line_is_measured_again(tmp_path):
    path = tmp_path / "results.jsonl"
    with Journal(path, {}) as journal:
        journal.add(("a",), 1)
        journal.add(("b",), 2)
    path.write_bytes(path.read_bytes()[:-7])
    with Journal(path, {}) as journal:
        assert journal.results == {("a",): 1}
        journal.add(("b",), 3)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"settings": {}}, {"key": ["a"], "result": 1}, {"key": ["b"], "result": 3}]


def test_results_of_other_settings_are_refused(tmp_path):
    path = tmp_path / "results.jsonl"
    Journal(path, {"model": "m", "tokens": 64}).close()
    with pytest.raises(SettingsDiffer, match="tokens was 64 and is 128"):
        Journal(path, {"model": "m", "tokens": 128})
    path.write_text("something else\n" * 2)
    with pytest.raises(SettingsDiffer, match="no file of results"):
        Journal(path, {})
