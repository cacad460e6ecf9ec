"""Real servers as processes, called over real sockets through stubs made from proto/."""

import importlib
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SOURCE = pathlib.Path(__file__).resolve().parents[2]
_stubs = None


class Stubs:
    """The generated modules, by the names of their protos."""

    def __init__(self):
        from grpc_tools import protoc

        self._folder = tempfile.TemporaryDirectory(prefix="ripplekv-stubs-")
        protos = sorted(str(p) for p in (SOURCE / "proto").rglob("*.proto"))
        site = pathlib.Path(protoc.__file__).parent / "_proto"
        arguments = ["protoc", f"-I{SOURCE / 'proto'}", f"-I{site}"]
        arguments += [f"--python_out={self._folder.name}", f"--grpc_python_out={self._folder.name}"]
        assert protoc.main([*arguments, *protos]) == 0, "the protos do not compile"
        sys.path.insert(0, self._folder.name)
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


class Server:
    """A server process; stops at the end of a `with` block. `options` are flags without the leading dashes."""

    def __init__(self, program, log, *, wait=True, **options):
        self.address = f"127.0.0.1:{free_port()}"
        self.metrics_address = f"127.0.0.1:{free_port()}"
        options = {"listen": self.address, "metrics_listen": self.metrics_address, **options}
        self.address = options["listen"]
        self.log = pathlib.Path(log)
        command = [str(program)]
        for name, value in options.items():
            flag = "--" + name.replace("_", "-")
            command += [flag] if value is True else [flag, str(value)]
        self._out = open(self.log, "ab")
        self.process = subprocess.Popen(
            command, stdout=self._out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        self.channel = grpc.insecure_channel(self.address)
        if wait:
            self.wait_until_serving()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

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
