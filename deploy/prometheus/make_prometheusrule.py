#!/usr/bin/env python3
"""Writes deploy/kubernetes/monitoring/prometheusrule.yaml: the rules of deploy/prometheus/rules as the Prometheus Operator
takes them. Run it after a change of the rules; a test compares the two.

    .venv/bin/python deploy/prometheus/make_prometheusrule.py
"""

import pathlib
import sys

import yaml

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parent / "kubernetes" / "monitoring" / "prometheusrule.yaml"
HEAD = """\
# Prometheus Operator: recording rules and alerts. Made by deploy/prometheus/make_prometheusrule.py from
# deploy/prometheus/rules, where they are explained: change them there.
"""


class Dumper(yaml.SafeDumper):
    def increase_indent(self, flow=False, indentless=False):
        return super().increase_indent(flow, False)  # lists are indented


def as_block(dumper, text):
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, as_block)


def manifest():
    groups = []
    for file in sorted((HERE / "rules").glob("*.yml"), reverse=True):  # recording rules first
        groups += yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "ripplekv", "labels": {"app.kubernetes.io/name": "ripplekv"}},
        "spec": {"groups": groups},
    }
    return HEAD + yaml.dump(rule, Dumper=Dumper, sort_keys=False, width=110)


if __name__ == "__main__":
    TARGET.write_text(manifest(), encoding="utf-8")
    print(f"wrote {TARGET}", file=sys.stderr)
