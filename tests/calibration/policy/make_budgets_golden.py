"""Writes testdata/budgets_golden.txt: layer budgets by exact rational arithmetic.

An oracle for calibration/policy/budgets.cc that shares no step with it: lambda is found by walking the breakpoints of
the piecewise linear sum in order, with fractions.Fraction throughout. Run: python3 make_budgets_golden.py
"""

import math
import pathlib
import random
from fractions import Fraction


def water_fill(total, floor, cap, weights):
    """x_l = clamp(lambda * w_l, floor, cap) with sum `total`."""
    def shares(level):
        return [min(max(level * w, floor), cap) for w in weights]

    breakpoints = sorted({Fraction(bound) / w for w in weights for bound in (floor, cap)})
    if total == floor * len(weights):
        return [Fraction(floor)] * len(weights)
    below = None
    for point in breakpoints:
        if sum(shares(point)) >= total:
            break
        below = point
    above = point
    if below is None:
        return shares(above)
    # Linear between two neighbouring breakpoints.
    low, high = sum(shares(below)), sum(shares(above))
    return shares(below + (above - below) * (total - low) / (high - low))


def largest_remainder(total, shares):
    budgets = [math.floor(x) for x in shares]
    order = sorted(range(len(shares)), key=lambda l: (-(shares[l] - budgets[l]), l))
    for l in order[: total - sum(budgets)]:
        budgets[l] += 1
    return budgets


def share_budget(tokens, size, min_positions, floor, multipliers):
    layers = len(multipliers)
    kind, value = size
    if kind == "retention":  # a decimal string, taken at its word
        requested = layers * math.floor(Fraction(value) * tokens)
    elif kind == "total":
        requested = value
    else:
        requested = layers * tokens
    raised = max(requested, layers * min(min_positions, tokens))
    low = min(floor, tokens)
    total = min(max(raised, layers * low), layers * tokens)
    shares = water_fill(total, low, tokens, [Fraction(w) for w in multipliers])
    return (requested, total, int(raised != requested), int(total != raised),
            int(total == layers * tokens), largest_remainder(total, shares))


def main():
    rng = random.Random(20260101)
    lines = ["# tokens kind value min_positions floor layers multipliers... | requested total raised clamped full b_l..."]
    for _ in range(600):
        layers = rng.choice([1, 2, 3, 4, 5, 7, 12, 16, 24])
        tokens = rng.choice([rng.randint(1, 60), rng.randint(1, 5000), rng.randint(1, 200000), 1000000,
                             rng.randint(1000000, 2147483647)])
        kind = rng.choice(["retention", "retention", "retention", "total", "full"])
        value = 0
        if kind == "retention":
            value = rng.choice(["0.1", "0.2", "0.29", "0.3", "0.57", "0.7", "0.05", "1.0", f"{rng.randint(1, 9999)}e-4"])
        elif kind == "total":
            value = rng.randint(1, 2 * layers * tokens)
        min_positions = rng.choice([0, 0, 256, rng.randint(0, 5000)])
        floor = rng.choice([1, 37, 37, rng.randint(1, 400)])
        spread = rng.choice([1.0, 1.25, 1.5, 3.0, 16.0, 400.0])
        if rng.random() < 0.2:
            multipliers = [rng.choice([1.0, spread]) for _ in range(layers)]  # exact ties
        else:
            multipliers = [spread ** rng.random() for _ in range(layers)]
        requested, total, raised, clamped, full, budgets = share_budget(
            tokens, (kind, value), min_positions, floor, multipliers)
        left = [tokens, kind, value, min_positions, floor, layers, *(w.hex() for w in multipliers)]
        right = [requested, total, raised, clamped, full, *budgets]
        lines.append(" ".join(map(str, left)) + " | " + " ".join(map(str, right)))
    path = pathlib.Path(__file__).parent / "testdata" / "budgets_golden.txt"
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
