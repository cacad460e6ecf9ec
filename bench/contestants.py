"""Those whom bench/compare.py compares, each as a process that answers requests and says when each token came."""

import json
import os
import pathlib
import re
import subprocess
import tempfile

import grpc

from bench_server import SOURCE
from cases import Failed
from service import Server, stubs

PEERS = SOURCE / "build" / "peers"

# What the caller set for its own threads (OMP_WAIT_POLICY, say) would slow some contestants down and not others.
OWN_THREADS = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}


class LineProcess:
    """A process that answers one JSON object a line with another."""

    def __init__(self, command, log, environment=None):
        self.log = pathlib.Path(log)
        with open(self.log, "ab") as errors:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**OWN_THREADS, **(environment or {})},
            )

    def read(self):
        line = self.process.stdout.readline()
        answer = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            tail = self.log.read_text(errors="replace")[-1000:]
            raise Failed(f"{answer['error']}\n{tail}")
        return answer

    def ask(self, command):
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # reading tells
        return self.read()

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def memory_bytes(pid, field):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"^{field}:\s+(\d+) kB", status, flags=re.M).group(1)) * 1024


class Peer:
    """Another implementation in a worker process of the peers' Python environment."""

    def __init__(self, key, title, worker, make_settings, environment=None):
        self.key, self.title, self.worker = key, title, worker
        self.make_settings = make_settings
        self.retention = None
        self.keeps_prompts = key.startswith("llama")
        self.environment = environment or {}

    def start(self, case, options):
        self.folder = tempfile.TemporaryDirectory(prefix="ripplekv-bench-")
        settings = {"threads": options.threads, "sequences": case.sequences, **self.make_settings(case, options)}
        self.lines = LineProcess(
            [PEERS / "venv" / "bin" / "python", SOURCE / "bench" / "peers" / self.worker, json.dumps(settings)],
            pathlib.Path(self.folder.name) / "log",
            self.environment,
        )
        self.interpreter = self.lines.read()["interpreter_bytes"]

    def run(self, prompts, new_tokens, keep_prompts=False):
        return self.lines.ask({"prompts": prompts, "new_tokens": new_tokens, "keep_prompts": keep_prompts})

    def peak_bytes(self):
        """Without what Python itself took before it loaded the peer."""
        return memory_bytes(self.lines.process.pid, "VmHWM") - self.interpreter

    def stop(self):
        self.lines.stop()
        self.folder.cleanup()


class Ours:
    """ripplekv-server with its default settings (but for the memory that a case needs and the retention), called through
    gRPC by a client in C++."""

    def __init__(self, key, title, retention):
        self.key, self.title, self.retention = key, title, retention
        self.keeps_prompts = True

    def start(self, case, options):
        self.folder = tempfile.TemporaryDirectory(prefix="ripplekv-bench-")
        folder = pathlib.Path(self.folder.name)
        # Room for 8 x 8192 and, to measure a compressed cache against, one full one.
        memory = ("3GiB", "2GiB") if self.retention is None else ("768MiB", "512MiB")
        self.server = Server(
            options.build / "ripplekv-server",
            folder / "server.log",
            model=options.model,
            threads=options.threads,
            calibration="off",
            profile_dir=options.profile_dir or folder / "profiles",
            retention=self.retention or 1,
            kv_memory=memory[0],
            context_memory=memory[1],
        )
        self.client = LineProcess([options.build / "ripplekv-bench-client", self.server.address], folder / "client.log")
        self.contexts = {}

    def run(self, prompts, new_tokens, keep_prompts=False):
        requests = []
        for ids in prompts:
            request = {"ids": ids, "new_tokens": new_tokens}
            if keep_prompts:
                request = {"ids": ids[-1:], "new_tokens": new_tokens, "context": self.context(ids[:-1])}
            requests.append(request)
        return self.client.ask({"requests": requests})

    def context(self, ids, full=False):
        """Of these tokens, made on the first use."""
        known = (tuple(ids), full)
        if known not in self.contexts:
            request = stubs().decode.CreateContextRequest(token_ids={"ids": ids})
            if full:
                request.kv.size.full.SetInParent()
            try:
                self.contexts[known] = self.server.decode.CreateContext(request, timeout=600).context.context_id
            except grpc.RpcError as error:
                raise Failed(f"CreateContext: {error.details()}") from error
        return self.contexts[known]

    def peak_bytes(self):
        return self.server.memory_bytes("VmHWM")

    def stop(self):
        self.client.stop()
        self.server.stop()
        self.folder.cleanup()


def make_contestants(model):
    """All of them in the order of the table, by key."""
    llama = {
        "PYTHONPATH": str(next(iter(sorted(PEERS.glob("llama_cpp_python-*/"))), PEERS)),
        "LLAMA_CPP_LIB_PATH": str(PEERS / "llama-build" / "bin"),
    }

    def llama_cpp(key, title, file):
        def settings(case, options):
            return {"model": str(file), "context": -(-(case.prompt + case.new) // 256) * 256}

        return Peer(key, title, "llama_cpp_worker.py", settings, llama)

    def openvino(key, title, retention):
        def settings(case, options):
            evict = {"evict_to": round(retention * case.prompt)} if retention else {}
            return {"model": str(options.model), **evict}

        peer = Peer(key, title, "openvino_worker.py", settings)
        peer.retention = retention
        return peer

    all_of_them = [
        Ours("ours", "RippleKV, every position", None),
        Ours("ours-10", "RippleKV, retention 0.1", 0.1),
        llama_cpp("llama-q4_1", f"llama.cpp, the same file ({model.stem.rpartition('.')[2]})", model),
        llama_cpp("llama-q4_0", "llama.cpp, Q4_0 (repacked)", PEERS / f"{model.stem}.q4_0.gguf"),
        llama_cpp("llama-bf16", "llama.cpp, BF16", PEERS / f"{model.stem}.bf16.gguf"),
        Peer(
            "ort",
            "ONNX Runtime GenAI, int4",
            "ort_worker.py",
            lambda case, options: {"model": str(PEERS / f"{model.stem}.ort")},
        ),
        openvino("openvino", "OpenVINO GenAI", None),
        openvino("openvino-10", "OpenVINO GenAI, eviction to 10 %", 0.1),
    ]
    return {contestant.key: contestant for contestant in all_of_them}
