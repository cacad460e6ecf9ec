#!/usr/bin/env python3
"""The monitoring, live: see scripts/monitoring_check.sh.

Prometheus runs the configuration and the rules of deploy/prometheus with these changes and no others (`shortened`):
- addresses of servers and Alertmanager are those of this run;
- intervals of scraping and evaluation are a second;
- a `for:`, a range [...] and an offset become a thirtieth of theirs, at least 4 and at most 20 seconds; what Alertmanager
  waits for, a second.
Expressions, thresholds and targets stay. Conditions are caused, not simulated: servers that are stopped, overloaded, given
damaged files.
"""

import argparse
import contextlib
import http.server
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import yaml

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "tests" / "e2e"), str(SOURCE / "deploy" / "grafana"), str(SOURCE / "tests" / "deploy")]

import grpc  # noqa: E402

import draw_dashboard  # noqa: E402
from certificates import Authority  # noqa: E402
from service import Server, free_port, generate, stubs, wait_until  # noqa: E402
from test_monitoring import dashboard, rules  # noqa: E402
from tiny_model import write_tiny_llama  # noqa: E402

BUILD = pathlib.Path(os.environ.get("RIPPLEKV_BUILD_DIR", SOURCE / "build" / "release"))
PROMETHEUS = SOURCE / "deploy" / "prometheus"
RATE_INTERVAL = "10s"
BATCH, QUEUE = 4, 48
UNITS = {"s": 1, "m": 60, "h": 3600}


def shortened(text):
    """Rules with shorter times."""

    def short(match):
        seconds = int(match[2]) * UNITS[match[3]] / 30
        return f"{match[1]}{min(max(round(seconds), 4), 20)}s"

    return re.sub(r"(\[|offset |for: )(\d+)([smh])\b", short, text)


def write_configuration(folder, targets, alertmanager, webhook):
    (folder / "rules").mkdir(exist_ok=True)
    for file in (PROMETHEUS / "rules").glob("*.yml"):
        (folder / "rules" / file.name).write_text(shortened(file.read_text(encoding="utf-8")), encoding="utf-8")
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"].update(scrape_interval="1s", evaluation_interval="1s")
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [alertmanager]
    for job in config["scrape_configs"]:
        job["static_configs"][0]["targets"] = targets[job["job_name"]]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    config = yaml.safe_load((PROMETHEUS / "alertmanager.yml").read_text(encoding="utf-8"))
    config["route"].update(group_wait="1s", group_interval="1s")
    for receiver in config["receivers"]:
        for hook in receiver["webhook_configs"]:
            hook["url"] = hook["url"].replace("http://127.0.0.1:9095", f"http://{webhook}")
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config), encoding="utf-8")


class Webhook(threading.Thread):
    """What Alertmanager posts: alerts by name, and the paths that they came to."""

    def __init__(self):
        super().__init__(daemon=True)
        self.received = received = {}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in body["alerts"]:
                    received.setdefault(alert["labels"]["alertname"], []).append((self.path, alert))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.start()

    def run(self):
        self.server.serve_forever()


class Check:
    def __init__(self, folder, model, keep):
        self.folder, self.model, self.keep = folder, model, keep
        self.servers, self.processes = [], []
        self.fired = set()
        self.webhook = Webhook()
        self.alertmanager = f"127.0.0.1:{free_port()}"
        self.address = f"127.0.0.1:{free_port()}"
        self.prometheus = draw_dashboard.Prometheus(f"http://{self.address}")
        self.jobs = {"ripplekv": [], "ripplekv-calibration": []}
        self.started = time.time()

    # Processes ----------------------------------------------------------------------------------------------------

    def start_server(self, name, program="ripplekv-server", *, wait=True, **options):
        options = {"model": self.model, "threads": 1, "profile_dir": self.folder / f"{name}-profiles", **options}
        server = Server(BUILD / program, self.folder / f"{name}.log", wait=wait, **options)
        self.servers.append(server)
        self.jobs["ripplekv-calibration" if program != "ripplekv-server" else "ripplekv"].append(server.metrics_address)
        return server

    def start_tool(self, name, *flags):
        out = open(self.folder / f"{name}.log", "wb")
        process = subprocess.Popen([name, *flags], stdout=out, stderr=subprocess.STDOUT, cwd=self.folder)
        self.processes.append(process)
        return process

    def configure(self):
        write_configuration(self.folder, self.jobs, self.alertmanager, self.webhook.address)

    def start_tools(self):
        self.configure()
        alertmanager = "alertmanager" if shutil.which("alertmanager") else "prometheus-alertmanager"
        self.start_tool(
            alertmanager,
            "--config.file=alertmanager.yml",
            f"--storage.path={self.folder / 'alerts'}",
            f"--web.listen-address={self.alertmanager}",
            "--cluster.listen-address=",
        )
        self.tool = self.start_tool(
            "prometheus",
            "--config.file=prometheus.yml",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={self.address}",
        )

        self.wait_until_scraped()

    def targets_changed(self):
        self.configure()
        self.tool.send_signal(signal.SIGHUP)
        self.wait_until_scraped()

    def wait_until_scraped(self):
        def scraped():
            with contextlib.suppress(OSError):
                return sum(value for _, value in self.prometheus.instant("up")) == sum(map(len, self.jobs.values()))

        wait_until(scraped, what="Prometheus to scrape all servers")

    def stop(self):
        for server in self.servers:
            if server.process.poll() is None:
                server.stop()
        for process in self.processes:
            process.terminate()
            process.wait(timeout=30)

    # Asking -------------------------------------------------------------------------------------------------------

    def alerts(self, state="firing"):
        found = self.prometheus.get("alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in found if alert["state"] == state}

    def expect(self, name, cause, seconds=90, doing=lambda: None):
        """Waits for an alert, and does something all the while."""
        deadline = time.monotonic() + seconds
        while name not in self.alerts():
            assert time.monotonic() < deadline, f"{name} does not fire within {seconds} s: {cause}"
            doing()
            time.sleep(0.5)
        self.fired.add(name)
        print(f"fires: {name}: {cause}", flush=True)

    def finite(self, expression):
        return self.prometheus.range(expression, self.started, time.time(), 1)


def prompt(server, length, number=0):
    """The first tokens of a text of the calibration corpus."""
    texts = sorted((SOURCE / "calibration" / "corpus").glob("*.txt"))
    text = texts[number % len(texts)].read_text(encoding="utf-8")
    return {"ids": server.decode.Tokenize(stubs().decode.TokenizeRequest(text=text), timeout=10).token_ids[:length]}


def traffic(server, rounds, length, kv):
    """Requests of every kind."""
    for i in range(rounds):
        stopping = {"max_tokens": 24, "ignore_eos": True}
        generate(server, token_ids=prompt(server, length, i), kv=kv, stopping=stopping, output={"next_token_kl": True})
        time.sleep(0.2)
    pb = stubs().decode
    made = server.decode.CreateContext(pb.CreateContextRequest(token_ids=prompt(server, length)), timeout=120)
    generate(server, context_id=made.context.context_id, token_ids=prompt(server, 8), stopping={"max_tokens": 4})
    server.decode.GetModel(pb.GetModelRequest(), timeout=10)


def tokens_in(server, seconds):
    """How many a request generates in so many seconds when the batch is full."""
    sample = 500
    fields = {"token_ids": prompt(server, 64), "stopping": {"max_tokens": sample, "ignore_eos": True}}
    start = time.monotonic()
    threads = [threading.Thread(target=generate, args=(server,), kwargs=fields) for _ in range(BATCH)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return int(sample * seconds / (time.monotonic() - start))


class Load(threading.Thread):
    """Asks again and again, and takes a refusal for an answer."""

    def __init__(self, server, fields):
        super().__init__(daemon=True)
        self.server, self.fields, self.over, self.call = server, fields, threading.Event(), None
        self.start()

    def run(self):
        request = stubs().decode.GenerateRequest(**self.fields)
        while not self.over.is_set():
            try:
                self.call = self.server.decode.Generate(request)
                for _ in self.call:
                    pass
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED), error
                time.sleep(0.1)

    def end(self):
        self.over.set()
        self.call.cancel()
        self.join(timeout=60)


def check_data(check):
    """Every recording rule and every query of the dashboard has a finite value."""

    def without_data():
        named = [(name, name) for name in rules("record")]
        for panel in dashboard()["panels"]:
            for expression, _ in draw_dashboard.queries(panel, rate_interval=RATE_INTERVAL):
                named.append((panel["title"], shortened(expression)))
        return [(title, expression) for title, expression in named if not check.finite(expression)]

    deadline = time.monotonic() + 60
    while missing := without_data():
        assert time.monotonic() < deadline, f"no data: {missing}"
        time.sleep(1)
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    print(f"data: {len(rules('record'))} recording rules, {len(panels)} panels of the dashboard", flush=True)


def check_adapter(check):
    """The queries that prometheus-adapter would make have values, between 0 and 1 where it is a share."""
    file = SOURCE / "deploy" / "kubernetes" / "monitoring" / "adapter-rule.yaml"
    for rule in yaml.safe_load(yaml.safe_load(file.read_text(encoding="utf-8"))["data"]["config.yaml"])["rules"]:
        query = rule["metricsQuery"].replace("<<.Series>>", rule["name"]["matches"].strip("^$"))
        query = query.replace("<<.LabelMatchers>>", 'job="ripplekv"').replace("<<.GroupBy>>", "instance")
        values = [value for _, value in check.prometheus.instant(query)]
        assert values and all(value >= 0 for value in values), query
        if rule["name"]["as"].endswith("_ratio"):
            assert all(value <= 1 for value in values), values


def main():
    parser = argparse.ArgumentParser(description="see scripts/monitoring_check.sh")
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--picture", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ripplekv-monitoring-") as name:
        folder = pathlib.Path(name)
        model = (
            options.model.resolve()
            if options.model
            else write_tiny_llama(folder / "tiny.gguf", layers=12, context=32768)
        )
        check = Check(folder, model, options.picture)
        try:
            live(check, options)
        except BaseException:
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-15:], sep="\n", file=sys.stderr)
            raise
        finally:
            check.stop()


def live(check, options):
    quick = {"calibration_examples": 2, "calibration_prefix": 256, "calibration_window": 32, "calibration_damage": 2}
    small = {"kv_memory": "64MiB", "min_positions": 0}
    length = 900
    busy = check.start_server("busy", max_batch=BATCH, max_queue=QUEUE, **{**quick, **small, "kv_memory": "256MiB"})
    measuring = check.start_server("calibration", "ripplekv-calibration-server", **quick)
    check.start_tools()
    wait_until(lambda: busy.metrics()['ripplekv_plan_info{source="profile"}'] == 1, 300, "a profile")
    # Of a model made up of noise every row counts: nothing may be dropped.
    kv = {} if options.model else {"size": {"full": {}}}
    traffic(busy, 14, length, kv)
    time.sleep(2)
    assert not check.alerts(), f"nothing is wrong yet, and these fire: {check.alerts()}"
    print("fires: nothing while nothing is wrong", flush=True)
    check_data(check)
    check_adapter(check)

    # Files that are no profiles; no profile and none to come.
    victim_folder = check.folder / "victim-profiles"
    victim_folder.mkdir()
    (victim_folder / "notes.txt").write_text("not a profile")
    victim = check.start_server("victim", **small, calibration="off")
    nowhere = f"127.0.0.1:{free_port()}"
    authority = Authority(check.folder / "ca")  # whose certificates are good for a day
    certificate, key = authority.issue("server")
    tls = {"tls_certificate": certificate, "tls_key": key, "credentials": authority.credentials()}
    check.start_server("expiring", **small, calibration="off", **tls)
    check.start_server("waiting", wait=False, **small, calibration=nowhere, wait_for_profile=True)
    check.targets_changed()
    check.expect("RippleKVProfileStoreProblems", "a file that is none of the store's in the profile directory")
    check.expect("RippleKVCertificateExpiring", "a server whose certificate is good for a day")
    check.expect("RippleKVNoProfile", "a server with --calibration off and no stored profile")
    check.expect("RippleKVProfileFetchFailing", "a calibration server that cannot be reached")
    check.expect("RippleKVNotReady", "--wait-for-profile, and the calibration server cannot be reached")

    # Compression that loses too much.
    prompts = itertools.cycle([prompt(victim, 300, i) for i in range(20)])

    def ask():
        fields = {
            "kv": {"size": {"total_positions": 1}},
            "output": {"next_token_kl": True},
            "stopping": {"max_tokens": 1},
        }
        generate(victim, token_ids=next(prompts), **fields)

    check.expect("RippleKVFidelityAboveTarget", "requests that keep next to nothing of their prompts", doing=ask)

    # A profile directory that is gone.
    shutil.rmtree(check.folder / "calibration-profiles")
    (check.folder / "calibration-profiles").write_text("not a directory any more")
    try:
        list(measuring.calibration.CalibrateModel(stubs().calibration.CalibrateModelRequest(), timeout=300))
        raise AssertionError("stored in a directory that is gone")
    except grpc.RpcError as error:
        assert "cannot be stored" in error.details(), error
    check.expect("RippleKVCalibrationFailing", "a calibration whose profile cannot be stored")

    # Damaged profiles, asked for while the server runs.
    def ask_for_damaged():
        profile_id = f"{time.time_ns():064x}"
        (victim_folder / f"{profile_id}.json").write_text("{")
        try:
            victim.calibration.GetProfile(stubs().calibration.GetProfileRequest(profile_id=profile_id))
            raise AssertionError("a damaged profile was read")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.DATA_LOSS, error

    check.expect("RippleKVFailing", "profile files damaged while the server runs", doing=ask_for_damaged)

    # More load than fits: requests wait for twelve others of about two seconds, longer than the target of the first token.
    # They are of different lengths, so that there are first tokens all the time.
    load, tokens_in_two_seconds = [], tokens_in(busy, 2)
    for i in range(BATCH + QUEUE + 2):
        tokens = int(tokens_in_two_seconds * (0.5 + i / (BATCH + QUEUE)))
        load.append(Load(busy, {"token_ids": prompt(busy, 64), "stopping": {"max_tokens": tokens, "ignore_eos": True}}))
    check.expect("RippleKVRefusing", "a full queue")
    check.expect("RippleKVSaturated", "a queue that is never empty")
    check.expect("RippleKVSlowFirstToken", "requests that wait in the queue for longer than 10 s", 180)
    for each in load:
        each.end()

    if options.picture:
        traffic(busy, 10, length, kv)
        picture(check, options.picture)

    # The same addresses, once a scrape has seen the last one.
    address = {"listen": victim.address, "metrics_listen": victim.metrics_address}
    for _ in range(3):
        victim.kill()
        victim = Server(
            BUILD / "ripplekv-server",
            check.folder / "victim.log",
            model=check.model,
            threads=1,
            profile_dir=victim_folder,
            calibration="off",
            **small,
            **address,
        )
        check.servers.append(victim)
        time.sleep(2)
    check.expect("RippleKVRestarting", "a server that was killed and started three times")
    victim.kill()
    check.expect("RippleKVDown", "a server that was killed")
    for server in check.servers:
        if server.process.poll() is None:
            server.stop()
    check.expect("RippleKVUnavailable", "all servers stopped")

    assert check.fired == set(rules("alert")), f"not made to fire: {set(rules('alert')) - check.fired}"
    wait_until(lambda: set(check.webhook.received) >= check.fired, 60, "Alertmanager to pass all of them on")
    for alert, posts in check.webhook.received.items():
        severity = rules("alert")[alert]["labels"]["severity"]
        for path, post in posts:
            assert path == ("/on-call" if severity == "critical" else "/"), (alert, path)
            assert post["annotations"]["runbook_url"] == f"docs/operations.md#{alert.lower()}"
    print(f"alerts: all {len(check.fired)} fired, and Alertmanager passed them on", flush=True)


def picture(check, file):
    board = dashboard()
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            target["expr"] = shortened(target["expr"])
    heading = "Seconds of a run of scripts/monitoring_check.sh; windows are shorter than in production"
    draw_dashboard.draw(board, check.prometheus, check.started, time.time(), file, RATE_INTERVAL, heading)
    print(f"drawn: {file}", flush=True)


if __name__ == "__main__":
    main()
