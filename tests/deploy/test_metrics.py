"""docs/metrics.md and what the servers export are the same; Prometheus likes the names."""

import os
import pathlib
import re
import shutil
import subprocess
import urllib.request

import pytest

from certificates import Authority
from service import PLAIN, Server, generate, stubs, wait_until
from tiny_model import write_tiny_llama

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RIPPLEKV_BUILD_DIR", SOURCE / "build" / "release"))
PAGE = (SOURCE / "docs" / "metrics.md").read_text(encoding="utf-8")
QUICK = {"calibration_examples": 2, "calibration_prefix": 128, "calibration_window": 16, "threads": 1, **PLAIN}


def scrape(server):
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=10) as reply:
        return reply.read().decode()


def families(text):
    """name -> (type, labels, their values, bounds of buckets) of an exposition."""
    found = {}
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.M):
        suffix = "(?:_bucket|_sum|_count)" if kind == "histogram" else ""
        values, bounds = {}, []
        for labels in re.findall(rf"^{name}{suffix}(?:\{{(.*)\}})? \S+$", text, flags=re.M):
            for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
                if label != "le":
                    values.setdefault(label, set()).add(value)
                elif value != "+Inf" and float(value) not in bounds:
                    bounds.append(float(value))
        found[name] = (kind, values, bounds)
    return found


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def mutual_tls(tmp_path_factory):
    """Options of a server that has certificates, whose expiry is exported."""
    authority = Authority(tmp_path_factory.mktemp("ca"))
    pair = certificate, key = authority.issue("server")
    files = {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": authority.ca}
    return {**files, "credentials": authority.credentials(pair)}


@pytest.fixture(scope="module")
def exposition(tiny_model, tmp_path_factory, mutual_tls):
    """Of a server that has measured a profile and answered a request, so that every family has series."""
    folder = tmp_path_factory.mktemp("server")
    options = {"model": tiny_model, "profile_dir": folder / "profiles", "min_positions": 0, **QUICK, **mutual_tls}
    with Server(BUILD / "ripplekv-server", folder / "log", **options) as server:
        wait_until(lambda: server.metrics()['ripplekv_calibrations_total{outcome="measured"}'] == 1)
        ids = {"ids": [65 + i % 26 for i in range(300)]}
        generate(server, token_ids=ids, stopping={"max_tokens": 4}, output={"next_token_kl": True})
        return scrape_after_a_call(server)


def scrape_after_a_call(server):
    """A call is counted a moment after its client has its end."""
    wait_until(lambda: "ripplekv_request_duration_seconds_count" in scrape(server))
    return scrape(server)


def documented():
    """name -> (type, unit, labels, what is said) of the page's tables of metrics."""
    found = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"`(?:ripplekv|process)_\w+`", cells[0]):
            name = cells[0].strip("`")
            assert name not in found, f"{name} stands in the page twice"
            found[name] = (cells[1], cells[2], re.findall(r"`(\w+)`", cells[3]), cells[4])
    return found


def test_the_page_lists_what_the_server_exports(exposition):
    page = {name: (kind, sorted(labels)) for name, (kind, _, labels, _) in documented().items()}
    server = {name: (kind, sorted(values)) for name, (kind, values, _) in families(exposition).items()}
    assert page == server


def test_a_calibration_server_exports_the_same_families(exposition, tiny_model, tmp_path, mutual_tls):
    program = BUILD / "ripplekv-calibration-server"
    options = {"model": tiny_model, "profile_dir": tmp_path / "profiles", **QUICK, **mutual_tls}
    with Server(program, tmp_path / "log", **options) as server:
        list(server.calibration.CalibrateModel(stubs().calibration.CalibrateModelRequest(), timeout=60))
        own = families(scrape_after_a_call(server))
    both = families(exposition)
    absent = {name for name, (_, values, _) in both.items() if "layer" in values} | {"ripplekv_slice_duration_seconds"}
    assert set(own) == set(both) - absent
    assert all(own[name][0] == both[name][0] for name in own)


def test_units_are_in_the_names(exposition):
    for name, (kind, unit, _, _) in documented().items():
        assert name.endswith("_total") == (kind == "counter"), name
        for word in ("seconds", "bytes", "nats"):
            assert (unit == word) == name.endswith(f"_{word}"), name


def test_every_value_of_a_fixed_label_is_explained(exposition):
    explained = {name: set(re.findall(r"`(\w+)`", text)) for name, (_, _, _, text) in documented().items()}
    found = families(exposition)
    for name, label in (
        ("ripplekv_requests_refused_total", "reason"),
        ("ripplekv_calibrations_total", "outcome"),
        ("ripplekv_plan_info", "source"),
        ("ripplekv_slice_duration_seconds", "slice"),
        ("ripplekv_tls_certificate_expiry_timestamp_seconds", "file"),
    ):
        values = found[name][1][label]
        assert len(values) >= 2 and values <= explained[name], name


def test_buckets(exposition):
    listed = {}
    for names, bounds in re.findall(r"^\| (`ripplekv_\w+`(?:, `ripplekv_\w+`)*) \| ([\d.e -]+) \|$", PAGE, flags=re.M):
        for name in re.findall(r"`(\w+)`", names):
            listed[name] = [float(bound) for bound in bounds.split()]
    assert listed == {name: bounds for name, (_, _, bounds) in families(exposition).items() if bounds}


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is missing (Debian: apt-get install prometheus)")
def test_promtool_has_no_complaint(exposition):
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=exposition, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and not done.stdout + done.stderr
