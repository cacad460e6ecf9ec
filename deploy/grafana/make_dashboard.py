#!/usr/bin/env python3
"""Writes ripplekv-dashboard.json, the Grafana dashboard of RippleKV (Grafana 10 and later). Run it after a change; a test
compares the two.

    .venv/bin/python deploy/grafana/make_dashboard.py

It shows the recording rules of deploy/prometheus/rules where there are any for a figure, and the server's metrics
(docs/metrics.md) elsewhere.
"""

import json
import pathlib
import sys

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model

TARGET = pathlib.Path(__file__).resolve().parent / "ripplekv-dashboard.json"
DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
JOBS = '{job=~"$job"}'
SERVERS = '{job=~"$job",instance=~"$instance"}'


def quantile(q, metric, by="", window="$__rate_interval"):
    levels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, sum by ({levels}) (rate({metric}_bucket{SERVERS}[{window}])))"


def mean(metric):
    return f"sum(rate({metric}_sum{SERVERS}[$__rate_interval])) / sum(rate({metric}_count{SERVERS}[$__rate_interval]))"


def by_layer(expression):
    """Layers with leading zeros, so that Grafana, which sorts their names, keeps their order."""
    padded = expression
    for digits in ("(.)", "(..)"):
        padded = f'label_replace({padded}, "layer", "0$1", "layer", "{digits}")'
    return padded


class Board:
    """Panels in rows of a grid that is 24 wide."""

    def __init__(self):
        self.ids = 0
        self.board = (
            dashboard.Dashboard("RippleKV")
            .uid("ripplekv")
            .description("Service, engine, per-layer pools, calibration and fidelity of RippleKV servers")
            .tags(["ripplekv", "inference"])
            .timezone("browser")
            .refresh("30s")
            .time("now-1h", "now")
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
            .with_variable(self.variable("job", "Job", "label_values(ripplekv_serving, job)"))
            .with_variable(self.variable("instance", "Server", 'label_values(ripplekv_serving{job=~"$job"}, instance)'))
        )

    @staticmethod
    def variable(name, label, query):
        return (
            dashboard.QueryVariable(name)
            .label(label)
            .datasource(DATASOURCE)
            .query(query)
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(model.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(model.VariableOption(selected=True, text="All", value="$__all"))
        )

    def row(self, title):
        self.ids += 1
        self.board.with_row(dashboard.Row(title).id(self.ids))

    def add(self, panel, title, queries, *, width, unit, description, height=8):
        """`queries`: (expression, legend) each."""
        self.ids += 1
        panel.id(self.ids).title(title).description(description).datasource(DATASOURCE)
        panel.unit(unit).span(width).height(height)
        for i, (expression, legend) in enumerate(queries):
            target = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + i))
            panel.with_target(target.range())
        self.board.with_panel(panel)

    def lines(self, title, queries, *, width=8, unit, description, stacked=False):
        panel = timeseries.Panel().min(0).fill_opacity(30 if stacked else 8).line_width(1)
        panel.show_points(common_model.VisibilityMode.NEVER)
        legend = common.VizLegendOptions().display_mode(common_model.LegendDisplayMode.LIST)
        panel.legend(legend.placement(common_model.LegendPlacement.BOTTOM).show_legend(True))
        panel.tooltip(common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI))
        if stacked:
            panel.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL))
        # Targets are dashed lines.
        panel.override_by_name(
            "target", [model.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 8]})]
        )
        self.add(panel, title, queries, width=width, unit=unit, description=description)

    def number(self, title, query, *, unit, description, decimals=None, red_from=None, green_from=None):
        steps = [model.Threshold(color="green")]
        if red_from is not None:
            steps.append(model.Threshold(value=red_from, color="red"))
        if green_from is not None:
            steps = [model.Threshold(color="red"), model.Threshold(value=green_from, color="green")]
        panel = stat.Panel().thresholds(dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps))
        panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        if decimals is not None:
            panel.decimals(decimals)
        self.add(panel, title, [(query, "")], width=4, height=4, unit=unit, description=description)

    def layers(self, title, expression, *, width, unit, description):
        color = (
            heatmap.HeatmapColorOptions().mode(heatmap_model.HeatmapColorMode.SCHEME).scheme("Viridis").min(0).steps(64)
        )
        panel = heatmap.Panel().calculate(False).color(color).cell_gap(0).show_tooltip()
        panel.y_axis(heatmap.YAxisConfig().axis_label("layer").reverse(True))
        panel.cell_values(heatmap.CellValues().unit(unit))
        self.add(panel, title, [(expression, "{{layer}}")], width=width, height=12, unit=unit, description=description)

    def bars(self, title, expression, *, width, unit, description):
        panel = bargauge.Panel().orientation(common_model.VizOrientation.HORIZONTAL).min(0)
        panel.display_mode(common_model.BarGaugeDisplayMode.BASIC)
        panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        self.add(panel, title, [(expression, "{{layer}}")], width=width, height=12, unit=unit, description=description)


def service(board):
    board.row("Service")
    board.number(
        "Serving",
        f"sum(ripplekv_serving{SERVERS})",
        unit="none",
        green_from=1,
        description="Servers that say SERVING.",
    )
    board.number(
        "Output tokens",
        f"sum(job:ripplekv_output_tokens:rate5m{JOBS})",
        unit="short",
        decimals=1,
        description="Tokens generated a second, mean of 5 minutes.",
    )
    board.number(
        "First token, p99",
        f"max(job:ripplekv_time_to_first_token_seconds:p99_5m{JOBS} >= 0)",
        unit="s",
        decimals=2,
        description="Time from a request's arrival to its first token, of 5 minutes.",
    )
    board.number(
        "Refused",
        f"max(job:ripplekv_requests_refused:ratio5m{JOBS})",
        unit="percentunit",
        decimals=1,
        red_from=0.05,
        description="Share of requests refused for want of room, of 5 minutes.",
    )
    board.number(
        "KV memory committed",
        f"max(job:ripplekv_kv_committed:ratio{JOBS})",
        unit="percentunit",
        decimals=0,
        description="Used or promised to running requests: what admission counts.",
    )
    board.number(
        "Mean KL",
        f"max(job:ripplekv_next_token_kl_nats:mean30m{JOBS})",
        unit="none",
        decimals=4,
        red_from=0.1,
        description="Mean next_token_kl in nats, of 30 minutes.",
    )
    board.lines(
        "Time to first token",
        [
            (f"job:ripplekv_time_to_first_token_seconds:p50_5m{JOBS} >= 0", "p50 {{job}}"),
            (f"job:ripplekv_time_to_first_token_seconds:p99_5m{JOBS} >= 0", "p99 {{job}}"),
            ("ripplekv:time_to_first_token_seconds:target", "target"),
        ],
        unit="s",
        description="From a request's arrival to its first token, queueing included; the target is the alert's.",
    )
    board.lines(
        "Time per output token",
        [
            (f"job:ripplekv_time_per_output_token_seconds:p50_5m{JOBS} >= 0", "p50 {{job}}"),
            (f"job:ripplekv_time_per_output_token_seconds:p99_5m{JOBS} >= 0", "p99 {{job}}"),
        ],
        unit="s",
        description="Between two tokens of one request.",
    )
    board.lines(
        "Tokens",
        [
            (f"sum by (job) (job:ripplekv_output_tokens:rate5m{JOBS})", "output {{job}}"),
            (f"sum by (job) (job:ripplekv_prompt_tokens:rate5m{JOBS})", "prompt {{job}}"),
        ],
        unit="short",
        description="Tokens a second.",
    )
    board.lines(
        "Calls by method and code",
        [(f"sum by (method, code) (job_method_code:ripplekv_requests:rate5m{JOBS})", "{{method}} {{code}}")],
        unit="reqps",
        stacked=True,
        description="Calls that ended, a second.",
    )
    board.lines(
        "Refusals by reason",
        [(f"sum by (reason) (job_reason:ripplekv_requests_refused:rate5m{JOBS})", "{{reason}}")],
        unit="reqps",
        stacked=True,
        description="Requests that never ran, a second. For want of room: queue_full, queue_timeout, context_memory.",
    )
    board.lines(
        "Requests waiting",
        [(f"ripplekv_requests_waiting{SERVERS}", "{{instance}}")],
        unit="short",
        description="In the queue of each server.",
    )


def engine(board):
    board.row("Engine")
    board.lines(
        "Requests at work",
        [
            (f"sum(ripplekv_requests_running{SERVERS}) - sum(ripplekv_requests_prefilling{SERVERS})", "decoding"),
            (f"sum(ripplekv_requests_prefilling{SERVERS})", "prefilling"),
        ],
        unit="short",
        stacked=True,
        description="Requests that are being computed, at most --max-batch a server.",
    )
    board.lines(
        "Decode batch",
        [(mean("ripplekv_decode_batch_size"), "mean"), (quantile(0.99, "ripplekv_decode_batch_size"), "p99")],
        unit="short",
        description="Sequences in a decode step.",
    )
    board.lines(
        "Decode step",
        [
            (quantile(0.5, "ripplekv_decode_step_seconds"), "p50"),
            (quantile(0.99, "ripplekv_decode_step_seconds"), "p99"),
        ],
        unit="s",
        description="Time that a decode step takes.",
    )
    board.lines(
        "Slices between decode steps, p99",
        [(quantile(0.99, "ripplekv_slice_duration_seconds", "slice"), "{{slice}}")],
        unit="s",
        description="Time that prefill, logits and calibration take between two decode steps.",
    )
    board.lines(
        "Queue time and stalls, p99",
        [
            (quantile(0.99, "ripplekv_queue_time_seconds"), "queue time"),
            (quantile(0.99, "ripplekv_stall_seconds"), "longest stall of a request"),
        ],
        unit="s",
        description="Time from arrival to the prefill; longest time between two tokens of a request.",
    )
    board.lines(
        "Work memory",
        [
            (f"ripplekv_work_reserved_bytes{SERVERS}", "reserved {{instance}}"),
            (f"min(ripplekv_work_memory_bytes{SERVERS} > 0)", "--work-memory"),
        ],
        unit="bytes",
        description="Activations that requests at work have reserved.",
    )


def pools(board):
    board.row("Per-layer pools")
    used, quota = (f"sum by (layer) (ripplekv_kv_layer_{what}_bytes{SERVERS})" for what in ("used", "quota"))
    board.layers(
        "Use by layer",
        by_layer(f"{used} / ({quota} > 0)"),
        width=16,
        unit="percentunit",
        description="Pages that a layer holds, as a share of its quota: what the plan in force expects it to hold when "
        "KV memory is full. Layers that fill sooner than others got less than they need.",
    )
    board.bars(
        "Quota by layer",
        by_layer(quota),
        width=8,
        unit="bytes",
        description="A layer's share of KV memory by the plan in force: the shape of the plan.",
    )
    board.lines(
        "KV memory",
        [
            (f"sum(ripplekv_kv_used_bytes{SERVERS})", "used"),
            (f"sum(ripplekv_kv_reserved_bytes{SERVERS})", "promised"),
            (f"sum(ripplekv_kv_memory_bytes{SERVERS})", "--kv-memory"),
        ],
        unit="bytes",
        description="In use, and promised to running requests; all servers together.",
    )
    board.lines(
        "KV memory committed",
        [(f"instance:ripplekv_kv_committed:ratio{SERVERS}", "{{instance}}")],
        unit="percentunit",
        description="Used or promised, of each server.",
    )
    board.lines(
        "Contexts",
        [
            (f"sum(ripplekv_context_bytes{SERVERS})", "contexts"),
            (f"sum(ripplekv_kv_prefill_bytes{SERVERS})", "full layer of a prefill"),
        ],
        unit="bytes",
        description="KV memory that contexts take, and the full layer of prefills at work.",
    )


def calibration(board):
    board.row("Calibration")
    board.lines(
        "Progress",
        [(f"ripplekv_calibration_progress_ratio{SERVERS}", "{{instance}}")],
        unit="percentunit",
        description="Of the calibration that runs; 0 when none does.",
    )
    board.lines(
        "Calibrations that ended in an hour",
        [(f"sum by (outcome) (increase(ripplekv_calibrations_total{SERVERS}[1h]))", "{{outcome}}")],
        unit="short",
        description="By outcome.",
    )
    board.lines(
        "Source of the plan in force",
        [(f"sum by (source) (ripplekv_plan_info{SERVERS})", "{{source}}")],
        unit="short",
        stacked=True,
        description="Servers by source: a profile, uniform shares, or fixed by an allocator that needs no profile.",
    )
    board.lines(
        "Files of the profile directory not used",
        [(f"ripplekv_profile_store_problems{SERVERS}", "{{instance}}")],
        unit="short",
        description="Damaged or foreign; found since the server started.",
    )
    board.lines(
        "Calibration slices",
        [(f"rate(ripplekv_calibration_slices_total{SERVERS}[$__rate_interval])", "{{instance}}")],
        unit="short",
        description="Slices of calibrations a second, between decode steps.",
    )
    board.lines(
        "Measured profiles took, p50",
        [
            (
                f"histogram_quantile(0.5, sum by (le) (ripplekv_calibration_duration_seconds_bucket{SERVERS}))",
                "since start",
            )
        ],
        unit="s",
        description="Time that a calibration takes, of all since the servers started.",
    )


def fidelity(board):
    board.row("Fidelity")
    board.lines(
        "Mean KL of the first token",
        [
            (f"job:ripplekv_next_token_kl_nats:mean30m{JOBS}", "compressed {{job}}"),
            (f"job:ripplekv_next_token_kl_floor_nats:mean30m{JOBS}", "floor {{job}}"),
            ("ripplekv:next_token_kl_nats:target", "target"),
        ],
        unit="none",
        description="In nats, of 30 minutes: what compression changes, and what the arithmetic alone does. The target is "
        "the alert's.",
    )
    board.lines(
        "KL of the first token, quantiles",
        [
            (quantile(0.5, "ripplekv_next_token_kl_nats", window="30m"), "p50"),
            (quantile(0.9, "ripplekv_next_token_kl_nats", window="30m"), "p90"),
            (quantile(0.99, "ripplekv_next_token_kl_nats", window="30m"), "p99"),
        ],
        unit="none",
        description="In nats, of 30 minutes.",
    )
    board.lines(
        "Prompt positions kept",
        [(f"job:ripplekv_prompt_positions_kept:ratio30m{JOBS}", "{{job}}")],
        unit="percentunit",
        description="Share of the prompts' positions, of 30 minutes.",
    )


def build():
    board = Board()
    for section in (service, engine, pools, calibration, fidelity):
        section(board)
    return json.dumps(board.board.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    TARGET.write_text(build(), encoding="utf-8")
    print(f"wrote {TARGET}", file=sys.stderr)
