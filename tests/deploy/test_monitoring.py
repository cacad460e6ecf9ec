"""Rules, alerts, dashboard and Kubernetes files of the monitoring: sound, of one piece, and each rule tested."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROMETHEUS = SOURCE / "deploy" / "prometheus"
GRAFANA = SOURCE / "deploy" / "grafana"
KUBERNETES = SOURCE / "deploy" / "kubernetes" / "monitoring"
METRICS_PAGE = (SOURCE / "docs" / "metrics.md").read_text(encoding="utf-8")
OPERATIONS = (SOURCE / "docs" / "operations.md").read_text(encoding="utf-8")
sys.path[:0] = [str(PROMETHEUS), str(GRAFANA)]

needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="promtool is missing (Debian: apt-get install prometheus)"
)


def rules(kind):
    """All rules of a kind ("record" or "alert"), by name."""
    found = {}
    for file in sorted((PROMETHEUS / "rules").glob("*.yml")):
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                if kind in rule:
                    assert rule[kind] not in found
                    found[rule[kind]] = rule
    return found


def run(*command, **more):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **more)


def anchors(markdown):
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", markdown, flags=re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def metrics_in(text):
    """Names of the server's metrics that an expression or a document uses, without the suffixes of histograms; names of
    recorded series are not among them."""
    plain = re.sub(r"[\w]+:ripplekv_\w+:\w+|ripplekv:\w+:\w+", "", text)
    names = set(re.findall(r"\bripplekv_\w+", plain))
    histograms = set(re.findall(r"^\| `(ripplekv_\w+)` \| histogram ", METRICS_PAGE, flags=re.M))
    return {
        re.sub(r"_(bucket|sum|count)$", "", n) if re.sub(r"_(bucket|sum|count)$", "", n) in histograms else n
        for n in names
    }


def documented_metrics():
    return set(re.findall(r"^\| `(ripplekv_\w+)` \| (?:gauge|counter|histogram) ", METRICS_PAGE, flags=re.M))


def recorded_in(text):
    return set(re.findall(r"(?:\w+:ripplekv_\w+|\bripplekv:\w+):\w+", text))


def dashboard():
    return json.loads((GRAFANA / "ripplekv-dashboard.json").read_text(encoding="utf-8"))


# --- Alerts and the runbook ---------------------------------------------------------------------------------------


def test_every_alert_tells_what_to_do():
    alerts = rules("alert")
    assert len(alerts) >= 7
    for name, alert in alerts.items():
        assert alert["labels"]["severity"] in ("critical", "warning", "info"), name
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}, name
        page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert page == "docs/operations.md" and anchor == name.lower() and anchor in anchors(OPERATIONS), name


def test_the_runbook_has_cause_and_cure_of_every_alert_and_of_no_other():
    part = OPERATIONS[OPERATIONS.index("\n## Alerts\n") : OPERATIONS.index("\n## Security notes\n")]
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", part, flags=re.M | re.S))
    assert set(sections) == set(rules("alert"))
    for name, text in sections.items():
        assert "- **Cause**: " in text and "- **Cure**: " in text, name


# --- Names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "file",
    [*(PROMETHEUS / "rules").glob("*.yml"), *(PROMETHEUS / "tests").glob("*.yml"), *KUBERNETES.glob("*.yaml")]
    + [GRAFANA / "ripplekv-dashboard.json", SOURCE / "docs" / "operations.md"],
    ids=lambda path: path.name,
)
def test_only_metrics_that_exist_are_used(file):
    """docs/metrics.md is held to the server by test_metrics.py."""
    text = file.read_text(encoding="utf-8")
    adapted = {"ripplekv_kv_committed_ratio"} if file.parent == KUBERNETES else set()  # made by the adapter rule
    assert metrics_in(text) - adapted <= documented_metrics()
    assert recorded_in(text) <= set(rules("record"))


def test_recording_rules_are_documented():
    listed = set()
    for cell in re.findall(r"^\| (`[^|]*:[^|]*`) \|", METRICS_PAGE, flags=re.M):
        names = re.findall(r"`([^`]+)`", cell)
        stem = names[0].rpartition(":")[0]
        listed |= {stem + name if name.startswith(":") else name for name in names}
    assert listed == set(rules("record"))


# --- promtool, amtool ---------------------------------------------------------------------------------------------


@needs_promtool
def test_prometheus_takes_the_configuration():
    done = run("promtool", "check", "config", PROMETHEUS / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules('alert'))} rules found" in done.stdout and f"{len(rules('record'))} rules found" in done.stdout


@pytest.mark.skipif(
    not shutil.which("amtool"), reason="amtool is missing (Debian: apt-get install prometheus-alertmanager)"
)
def test_alertmanager_takes_the_configuration():
    config = PROMETHEUS / "alertmanager.yml"
    done = run("amtool", "check-config", config)
    assert done.returncode == 0, done.stdout + done.stderr
    for severity, receiver in (("critical", "on-call"), ("warning", "operators"), ("info", "operators")):
        done = run(
            "amtool", "config", "routes", "test", f"--config.file={config}", f"severity={severity}", "alertname=X"
        )
        assert done.stdout.strip() == receiver, done.stdout + done.stderr


@needs_promtool
def test_unit_tests_of_the_rules():
    """That they see a rule which is a little wrong is checked by rule_mutations.py."""
    done = run("promtool", "test", "rules", *sorted((PROMETHEUS / "tests").glob("*.yml")))
    assert done.returncode == 0, done.stdout + done.stderr


# --- What is made by scripts --------------------------------------------------------------------------------------


def test_the_operator_gets_the_same_rules():
    from make_prometheusrule import TARGET, manifest

    assert TARGET.read_text(encoding="utf-8") == manifest(), "run deploy/prometheus/make_prometheusrule.py"


def test_the_dashboard_is_the_one_that_its_script_makes():
    pytest.importorskip("grafana_foundation_sdk", reason="pip's grafana-foundation-sdk is missing")
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard
    from make_dashboard import TARGET, build

    assert TARGET.read_text(encoding="utf-8") == build(), "run deploy/grafana/make_dashboard.py"
    register_default_plugins()
    assert len(Dashboard.from_json(dashboard()).panels) == len(dashboard()["panels"])


def test_the_pod_monitor_finds_every_pod():
    monitor = yaml.safe_load((KUBERNETES / "podmonitor.yaml").read_text(encoding="utf-8"))["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    (plain, by_component) = endpoint["relabelings"]
    assert by_component["sourceLabels"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_component"]
    jobs = set()
    for file in ("base/deployment.yaml", "split/calibration-deployment.yaml"):
        template = yaml.safe_load((KUBERNETES.parent / file).read_text(encoding="utf-8"))["spec"]["template"]
        labels = template["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items(), file
        (container,) = template["spec"]["containers"]
        assert endpoint["port"] in [port["name"] for port in container["ports"]], file
        is_other = labels["app.kubernetes.io/component"] == by_component["regex"]
        jobs.add((by_component if is_other else plain)["replacement"])
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    assert jobs == {job["job_name"] for job in config["scrape_configs"]}


# --- Dashboard ----------------------------------------------------------------------------------------------------


def test_panels_of_the_dashboard():
    board = dashboard()
    panels = board["panels"]
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows == ["Service", "Engine", "Per-layer pools", "Calibration", "Fidelity"]
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids))
    assert any(panel["type"] == "heatmap" for panel in panels)
    taken = set()
    for panel in panels:
        x, y, w, h = (panel["gridPos"][key] for key in "xywh")
        cells = {(column, line) for column in range(x, x + w) for line in range(y, y + h)}
        assert x + w <= 24 and not cells & taken, f"{panel['title']} lies over another"
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert panel["description"] and panel["targets"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names == ["datasource", "job", "instance"]
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(board)))
    assert used == {*names}


def test_the_dashboard_shows_what_matters():
    """All recording rules, and metrics of every part of the page."""
    text = json.dumps([panel.get("targets") for panel in dashboard()["panels"]])
    hidden = {
        "instance:ripplekv_kv_used:ratio",
        "job:ripplekv_requests_failed:ratio5m",
        "ripplekv:requests_refused:target",
        "ripplekv:tls_certificate_remaining_seconds:target",
    }
    assert recorded_in(text) == set(rules("record")) - hidden
    for part in ("Service", "Requests", "Engine", "KV memory", "Fidelity", "Plan and calibration"):
        section = METRICS_PAGE[METRICS_PAGE.index(f"\n## {part}\n") :].split("\n## ")[1]
        assert metrics_in(section) & metrics_in(text), part


def test_every_expression_parses(tmp_path):
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing (Debian: apt-get install prometheus)")
    from draw_dashboard import queries

    found = [expression for panel in dashboard()["panels"] for expression, _ in queries(panel)]
    adapter = yaml.safe_load((KUBERNETES / "adapter-rule.yaml").read_text(encoding="utf-8"))
    for rule in yaml.safe_load(adapter["data"]["config.yaml"])["rules"]:
        found.append(rule["seriesQuery"])
        query = rule["metricsQuery"].replace("<<.Series>>", rule["name"]["matches"].strip("^$"))
        found.append(query.replace("<<.LabelMatchers>>", 'namespace="x",pod=~"a|b"').replace("<<.GroupBy>>", "pod"))
    assert len(found) > 50 and not any("<<" in expression for expression in found)
    records = [{"record": f"x:y{i}:z", "expr": expression} for i, expression in enumerate(found)]
    file = tmp_path / "all.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": records}]}), encoding="utf-8")
    done = run("promtool", "check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
