"""Envoy with deploy/envoy/envoy.yaml in front of servers on this machine."""

import copy
import pathlib
import subprocess
import urllib.request

import yaml

from service import free_port, wait_until

SOURCE = pathlib.Path(__file__).resolve().parents[2]
CONFIG = SOURCE / "deploy" / "envoy" / "envoy.yaml"


def configuration(tls_folder=None):
    """The text of it; with the lines for TLS turned on, and the files of that folder."""
    text = CONFIG.read_text()
    return text if tls_folder is None else text.replace("# TLS ", "").replace("/tls/", f"{tls_folder}/")


def local_config(replicas, calibration, port, admin_port, stats_port, tls_folder=None):
    """The configuration with other addresses, and nothing else changed."""
    config = copy.deepcopy(yaml.safe_load(configuration(tls_folder)))

    def endpoints(addresses):
        hosts = [a.rpartition(":") for a in addresses]
        sockets = [{"socket_address": {"address": host, "port_value": int(p)}} for host, _, p in hosts]
        return [{"lb_endpoints": [{"endpoint": {"address": s}} for s in sockets]}]

    config["admin"]["address"]["socket_address"]["port_value"] = admin_port
    for listener in config["static_resources"]["listeners"]:
        own_port = {"grpc": port, "stats": stats_port}[listener["name"]]
        listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": own_port}
    addresses = {
        "decode": replicas,
        "contexts": replicas,
        "calibration": [calibration],
        "admin": [f"127.0.0.1:{admin_port}"],
    }
    for cluster in config["static_resources"]["clusters"]:
        cluster["load_assignment"]["endpoints"] = endpoints(addresses[cluster["name"]])
    return config


class Envoy:
    """Runs until the end of the `with` block."""

    def __init__(self, program, folder, replicas, calibration, tls_folder=None):
        self.address = f"127.0.0.1:{free_port()}"
        self.admin = f"127.0.0.1:{free_port()}"
        self.stats = f"127.0.0.1:{free_port()}"
        ports = [int(a.rpartition(":")[2]) for a in (self.address, self.admin, self.stats)]
        file = folder / "envoy.yaml"
        file.write_text(yaml.safe_dump(local_config(replicas, calibration, *ports, tls_folder)))
        self.log = folder / "envoy.log"
        with open(self.log, "wb") as log:
            command = [
                program,
                "-c",
                str(file),
                "--use-dynamic-base-id",
                "--concurrency",
                "1",
                "--log-level",
                "warning",
            ]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def __enter__(self):
        try:
            wait_until(self.live, 20, "Envoy's start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=20)

    def live(self):
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.get("/ready").strip() == "LIVE"
        except OSError:
            return False

    def get(self, path, address=None):
        """A page of the admin interface, or of another address."""
        with urllib.request.urlopen(f"http://{address or self.admin}{path}", timeout=5) as reply:
            return reply.read().decode()

    def healthy(self, cluster):
        """How many of its replicas are."""
        lines = self.get("/clusters").splitlines()
        flags = [
            line.rpartition("::")[2] for line in lines if line.startswith(f"{cluster}::") and "health_flags" in line
        ]
        return flags.count("healthy")

    def counter(self, name):
        (line,) = [line for line in self.get("/stats").splitlines() if line.startswith(f"{name}: ")]
        return int(line.rpartition(" ")[2])
