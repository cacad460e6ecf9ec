"""Writes testdata/multipliers_golden.txt: RippleKV's multipliers (arXiv 2608.08684) with 50 digits.

An oracle for calibration/policy/allocator.cc. Needs mpmath (comes with torch). Run: python3 make_multipliers_golden.py
"""

import pathlib
import random

from mpmath import mp, mpf


def multipliers(sensitivity, r, gamma):
    s = [mpf(x) for x in sensitivity]
    low, high = min(s), max(s)
    normalised = [(x - low) / (high - low) if high > low else mpf(0) for x in s]
    clipped = [min(max(mpf(r) ** x, 1 / mpf(gamma)), mpf(gamma)) for x in normalised]
    mean = sum(clipped) / len(clipped)
    return [w / mean for w in clipped]


def main():
    mp.dps = 50
    rng = random.Random(7)
    lines = ["# r gamma layers s... | w..."]
    for case in range(80):
        layers = rng.choice([1, 2, 3, 5, 16, 30, 32])
        r = [1.0, 1.25, 1.5, 1.75, 4.0, 16.0, 1e6][case % 7]
        gamma = [16.0, 1.0, 1.3, 64.0, 1e6][case % 5]
        scale = 10.0 ** rng.randint(-12, 2)
        sensitivity = [scale * rng.random() for _ in range(layers)]
        if case % 9 == 0:
            sensitivity = [scale] * layers  # a constant profile
        if case % 11 == 0:
            sensitivity[0] = 0.0
        left = [r.hex(), gamma.hex(), layers, *(s.hex() for s in sensitivity)]
        right = [mp.nstr(w, 20) for w in multipliers(sensitivity, r, gamma)]
        lines.append(" ".join(map(str, left)) + " | " + " ".join(right))
    path = pathlib.Path(__file__).parent / "testdata" / "multipliers_golden.txt"
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
