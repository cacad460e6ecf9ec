#!/usr/bin/env python3
"""Draws a stored profile and the shares made from it as SVG.

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
    width, left, bar, panel = 60 + 22 * len(s), 50, 16, 140
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="390" font-family="sans-serif" font-size="11">']
    out.append(f'<rect width="{width}" height="390" fill="white"/><text x="{left}" y="18">{title}</text>')
    panels = (("sensitivity s_l: mean KL, nats", s, "#3b6ea5", 40), ("share of the cache w_l", shares, "#c2703d", 215))
    for label, values, colour, top in panels:
        out.append(f'<text x="{left}" y="{top - 4}" fill="{colour}">{label} (largest {max(values):.4g})</text>')
        for i, value in enumerate(values):
            height = panel * value / max(values)
            x, y = left + 22 * i, top + panel - height
            out.append(f'<rect x="{x}" y="{y:.1f}" width="{bar}" height="{height:.1f}" fill="{colour}"/>')
    for i in range(len(s)):
        out.append(f'<text x="{left + 22 * i + bar / 2}" y="372" text-anchor="middle">{i}</text>')
    out.append(f'<text x="{left}" y="386">layer</text></svg>')
    print("\n".join(out))


if __name__ == "__main__":
    main()
