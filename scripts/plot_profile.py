#!/usr/bin/env python3
"""Draws a stored profile, the shares made from it and, where it was measured, what compressing each layer alone costs, as SVG.

    scripts/plot_profile.py profiles/ID.json > docs/profile.svg
"""

import json
import sys


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        profile = json.load(file)
    s = profile["sensitivity"]
    low, high = min(s), max(s)
    # The published map, r = 1.5, mean 1.
    shares = [1.5 ** ((x - low) / (high - low) if high > low else 0) for x in s]
    shares = [w * len(s) / sum(shares) for w in shares]
    settings = profile["settings"]
    title = (
        f"{profile['model_name']}: {profile['examples_computed']} examples, prefix {settings['prefix_tokens']}, "
        f"window {settings['window_tokens']}, eta {settings['eta']}, {profile['compute_type']}"
    )
    panels = [("sensitivity s_l: mean KL, nats", s, "#3b6ea5"), ("share of the cache w_l", shares, "#c2703d")]
    damage = profile["damage"]
    if damage and damage["rows"]:
        retention = damage["compared_retention"]
        rows = [of_layer[settings["damage_retentions"].index(retention)] for of_layer in damage["rows"]]
        panels.append((f"damage of {retention:.0%} of the layer's rows: mean KL, nats", rows, "#5a8f4e"))
    if damage and damage["storage"]:
        for i, (keys, values) in enumerate(damage["storage_types"]):
            stored = [of_layer[i] for of_layer in damage["storage"]]
            panels.append((f"damage of {keys} keys and {values} values: mean KL, nats", stored, "#8a6bab"))
    width, left, bar, panel, step = 60 + 22 * len(s), 50, 16, 140, 175
    total = 40 + step * len(panels)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{total}" font-family="sans-serif" font-size="11">']
    out.append(f'<rect width="{width}" height="{total}" fill="white"/><text x="{left}" y="18">{title}</text>')
    for number, (label, values, colour) in enumerate(panels):
        top = 40 + step * number
        out.append(f'<text x="{left}" y="{top - 4}" fill="{colour}">{label} (largest {max(values):.4g})</text>')
        for i, value in enumerate(values):
            height = panel * value / (max(values) or 1)
            x, y = left + 22 * i, top + panel - height
            out.append(f'<rect x="{x}" y="{y:.1f}" width="{bar}" height="{height:.1f}" fill="{colour}"/>')
    for i in range(len(s)):
        out.append(f'<text x="{left + 22 * i + bar / 2}" y="{total - 18}" text-anchor="middle">{i}</text>')
    out.append(f'<text x="{left}" y="{total - 4}">layer</text></svg>')
    print("\n".join(out))


if __name__ == "__main__":
    main()
