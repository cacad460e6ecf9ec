"""A short soak; scripts/soak.sh runs long ones."""

from conftest import binary
from soak import soak


def test_nothing_is_left_after_500_calls(tmp_path):
    breaches, summary = soak(binary("ripplekv-server"), requests=500, seed=7, folder=tmp_path, sample=100)
    print(summary)
    assert not breaches, "\n".join(breaches)
