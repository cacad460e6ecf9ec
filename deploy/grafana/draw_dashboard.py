#!/usr/bin/env python3
"""Draws ripplekv-dashboard.json with the data of a Prometheus server: every panel at its place, by its own queries.

    .venv/bin/python deploy/grafana/draw_dashboard.py --prometheus http://127.0.0.1:9090 --minutes 60 --out dashboard.png

Needs matplotlib (bench/quality/requirements.txt). For documentation, and where there is no Grafana.
"""

import argparse
import json
import math
import pathlib
import re
import time
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
UNITS = {"percentunit": (100, " %"), "s": (1, " s"), "bytes": (1 / 2**20, " MiB"), "reqps": (1, "/s")}


def load():
    return json.loads((HERE / "ripplekv-dashboard.json").read_text(encoding="utf-8"))


def queries(panel, *, rate_interval="1m"):
    """(expression, legend) of a panel, with its variables replaced: all jobs, all servers."""
    for target in panel.get("targets", []):
        expression = target["expr"].replace("$__rate_interval", rate_interval)
        expression = expression.replace("$job", ".*").replace("$instance", ".*")
        assert "$" not in expression.replace("0$1", ""), f"an unknown variable in {expression}"
        yield expression, target.get("legendFormat", "")


class Prometheus:
    def __init__(self, url):
        self.url = url.rstrip("/")

    def get(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as reply:
            return json.load(reply)["data"]

    def range(self, expression, start, end, step):
        """[(labels, times, values)], values that are not finite left out."""
        found = []
        for series in self.get("query_range", query=expression, start=start, end=end, step=step)["result"]:
            points = [(float(t), float(v)) for t, v in series["values"] if math.isfinite(float(v))]
            if points:
                found.append((series["metric"], [t for t, _ in points], [v for _, v in points]))
        return found

    def instant(self, expression):
        """[(labels, value)], finite ones."""
        result = self.get("query", query=expression)["result"]
        found = [(series["metric"], float(series["value"][1])) for series in result]
        return [(labels, value) for labels, value in found if math.isfinite(value)]


def legend(pattern, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), pattern)


def with_gaps(times, values, longest):
    """A line ends where there is no data for longer than that."""
    xs, ys = [], []
    for t, value in zip(times, values):
        if xs and t - xs[-1] > longest:
            xs.append(t)
            ys.append(math.nan)
        xs.append(t)
        ys.append(value)
    return xs, ys


def draw(dashboard, prometheus, start, end, out, rate_interval, heading=""):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "font.size": 7,
            "axes.titlesize": 8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "lines.linewidth": 1,
        }
    )
    panels = dashboard["panels"]
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels) + 1
    figure = plt.figure(figsize=(16, height * 0.28), dpi=80)
    step = max(1, round((end - start) / 240))
    figure.text(0.005, 1 - 0.5 / height, heading, va="center", fontsize=8)

    def axes(panel):
        # Room within the panel for the title above and the numbers at the axes.
        x, y, w, h = (panel["gridPos"][key] for key in "xywh")
        y += 1
        return figure.add_axes(((x + 1.1) / 24, 1 - (y + h - 1.1) / height, (w - 1.6) / 24, (h - 2.3) / height))

    for panel in panels:
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit")
        scale, suffix = UNITS.get(unit, (1, ""))
        if panel["type"] == "row":
            y = 1 - (panel["gridPos"]["y"] + 1.5) / height
            figure.text(0.005, y, panel["title"], va="center", fontsize=11, fontweight="bold")
            continue
        ax = axes(panel)
        ax.set_title(panel["title"], loc="left")
        if panel["type"] == "stat":
            ((expression, _),) = queries(panel, rate_interval=rate_interval)
            series = prometheus.range(expression, start, end, step)
            text = f"{series[0][2][-1] * scale:.3g}{suffix}" if series else "no data"
            ax.text(0, 0.4, text, fontsize=17, va="center", transform=ax.transAxes)
            ax.set_axis_off()
        elif panel["type"] == "bargauge":
            ((expression, pattern),) = queries(panel, rate_interval=rate_interval)
            bars = prometheus.range(expression, start, end, step)
            ax.barh([legend(pattern, labels) for labels, *_ in bars], [values[-1] * scale for *_, values in bars])
            ax.invert_yaxis()
            ax.tick_params(axis="y", labelsize=5)
            ax.set_xlabel(suffix.strip())
        elif panel["type"] == "heatmap":
            ((expression, pattern),) = queries(panel, rate_interval=rate_interval)
            series = prometheus.range(expression, start, end, step)
            times = sorted({t for _, ts, _ in series for t in ts})
            cells = [[math.nan] * len(times) for _ in series]
            for row, (_, ts, values) in zip(cells, series):
                for t, value in zip(ts, values):
                    row[times.index(t)] = value * scale
            last = times[-1] - start if times else 1
            image = ax.imshow(cells, aspect="auto", vmin=0, extent=(times[0] - start, last, len(cells) - 0.5, -0.5))
            ax.set_ylabel("layer")
            figure.colorbar(image, ax=ax, pad=0.01, label=suffix.strip())
        else:
            stacked = panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode") == "normal"
            lines = []
            for expression, pattern in queries(panel, rate_interval=rate_interval):
                for labels, times, values in prometheus.range(expression, start, end, step):
                    lines.append((legend(pattern, labels), [t - start for t in times], [v * scale for v in values]))
            if stacked:
                grid = sorted({t for _, times, _ in lines for t in times})
                rows = [[dict(zip(times, values)).get(t, 0) for t in grid] for _, times, values in lines]
                ax.stackplot(grid, rows, labels=[name for name, _, _ in lines], alpha=0.7)
            else:
                for name, times, values in lines:
                    ax.plot(
                        *with_gaps(times, values, 5 * step), label=name, linestyle="--" if name == "target" else "-"
                    )
            if not lines:
                ax.text(0.5, 0.5, "no data", ha="center", transform=ax.transAxes)
            else:
                ax.legend(loc="upper left", fontsize=5.5, frameon=False, ncols=2)
            ax.set_xlim(0, end - start)
            ax.set_ylim(bottom=0)
            ax.set_ylabel(suffix.strip())
    figure.savefig(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="default %(default)s")
    parser.add_argument("--minutes", type=float, default=60, help="up to now; default %(default)s")
    parser.add_argument("--rate-interval", default="1m", help="for $__rate_interval; default %(default)s")
    parser.add_argument("--out", default="dashboard.png", help="default %(default)s")
    options = parser.parse_args()
    end = time.time()
    draw(load(), Prometheus(options.prometheus), end - 60 * options.minutes, end, options.out, options.rate_interval)


if __name__ == "__main__":
    main()
