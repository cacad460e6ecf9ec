"""Real servers as processes, called over real sockets through stubs made from proto/."""

import importlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SOURCE = pathlib.Path(__file__).resolve().parents[2]
_stubs = None


class Stubs:
    """The generated modules, by the names of their protos: those of the Python client, from this checkout."""

    def __init__(self):
        sys.path.insert(0, str(SOURCE / "client" / "python"))
        from make_stubs import use_checkout

        use_checkout()
        for name in ("decode", "calibration", "profile"):
            setattr(self, name, importlib.import_module(f"ripplekv.v1.{name}_pb2"))
            if name != "profile":
                setattr(self, f"{name}_grpc", importlib.import_module(f"ripplekv.v1.{name}_pb2_grpc"))


def stubs():
    global _stubs
    if _stubs is None:
        _stubs = Stubs()
    return _stubs


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def flags(options):
    """{"kv_memory": "1MiB", "reflection": True} as a command line's words."""
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        words += [flag] if value is True else [flag, str(value)]
    return words


def wait_until(condition, seconds=30, what="the condition"):
    """What `condition` returns once it is true."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)


def error_details(error):
    """google.rpc details of a failed call, by the name of their message: {"BadRequest": ...}."""
    from google.rpc import error_details_pb2, status_pb2

    found = {}
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        status = status_pb2.Status.FromString(value)
        assert status.code == error.code().value[0] and status.message == error.details()
        for detail in status.details:
            name = detail.type_url.rpartition(".")[2]
            found[name] = getattr(error_details_pb2, name).FromString(detail.value)
    return found


# Rows by sensitivity alone, in the type the model computes in: what most tests reckon with, and measured quickly. The
# server's own defaults have tests of their own.
PLAIN = {"allocator": "ripple", "selector": "snapkv", "kv_type": "compute", "calibration_damage": 0}


class Server:
    """A server process; stops at the end of a `with` block. `options` are flags without the leading dashes, `environment`
    is added to this process's, `credentials` (grpc's) are those that it is called with."""

    def __init__(self, program, log, *, wait=True, environment=None, credentials=None, **options):
        self.address = f"127.0.0.1:{free_port()}"
        self.metrics_address = f"127.0.0.1:{free_port()}"
        options = {"listen": self.address, "metrics_listen": self.metrics_address, **options}
        self.address = options["listen"]
        self.log = pathlib.Path(log)
        self._out = open(self.log, "ab")
        self.process = subprocess.Popen(
            [str(program), *flags(options)],
            stdout=self._out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
        )
        self.channel = self.connect(credentials)
        if wait:
            try:
                self.wait_until_serving()
            except BaseException:
                self.kill()
                raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def connect(self, credentials=None):
        """A channel with a connection of its own."""
        own = [("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            return grpc.insecure_channel(self.address, own)
        return grpc.secure_channel(self.address, credentials, own)

    @property
    def decode(self):
        return stubs().decode_grpc.DecodeServiceStub(self.channel)

    @property
    def calibration(self):
        return stubs().calibration_grpc.CalibrationServiceStub(self.channel)

    def health(self, service=""):
        stub = health_pb2_grpc.HealthStub(self.channel)
        return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5).status

    def wait_until_serving(self, seconds=60):
        deadline = time.monotonic() + seconds
        while True:
            assert self.process.poll() is None, f"the server ended:\n{self.log_text()}"
            try:
                if self.health() == health_pb2.HealthCheckResponse.SERVING:
                    return
            except grpc.RpcError:
                pass
            assert time.monotonic() < deadline, f"not serving after {seconds} s:\n{self.log_text()}"
            time.sleep(0.05)

    def log_text(self):
        return self.log.read_text(errors="replace")

    def events(self, name):
        """Fields of the log's lines of one event; --log-format json."""
        lines = [json.loads(line) for line in self.log_text().splitlines()]
        return [line for line in lines if line["event"] == name]

    def wait_for_log(self, text, seconds=60):
        wait_until(lambda: text in self.log_text(), seconds, f"{text!r} in the log")

    def model(self):
        return self.decode.GetModel(stubs().decode.GetModelRequest(), timeout=10)

    def reset_peak_memory(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def memory_bytes(self, field):
        """A line of /proc/PID/status such as VmRSS (resident now) or VmHWM (its highest)."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{field}:\s+(\d+) kB", status, flags=re.M).group(1)) * 1024

    def metrics(self):
        """Samples by 'name{labels}'."""
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        found = re.findall(r"^([a-zA-Z_:][^ ]*(?:\{.*\})?) ([^ ]+)$", text, flags=re.M)
        return {name: float(value) for name, value in found}

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self, timeout=60):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=timeout)
        self.channel.close()
        self._out.close()
        return self.process.returncode


def generate(server, timeout=120, **fields):
    """One Generate call: text, token ids, logprobs, the completion."""
    request = stubs().decode.GenerateRequest(**fields)
    text, ids, logprobs, complete = "", [], [], None
    for response in server.decode.Generate(request, timeout=timeout):
        if response.HasField("chunk"):
            text += response.chunk.text
            ids += response.chunk.token_ids
            logprobs += response.chunk.logprobs
        else:
            complete = response.complete
    assert complete is not None
    return text, ids, logprobs, complete
