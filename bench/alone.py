"""What bench/compare.py measures of RippleKV by itself: a busy neighbour, and the time until it serves."""

import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cases import Case, figures_of, summary
from contestants import Ours
from service import Server

BUSY = "while True: pass"


def neighbour(options, ids):
    """Decode of one sequence alone and beside another process that computes all the time, in turns."""
    new = 64 if options.quick else 384
    case = Case("neighbour", 1, 64, new, "decode beside a busy process")
    ours = Ours("ours", "RippleKV", None)
    ours.start(case, options)
    rounds = []
    try:
        ours.run([ids[:64]], 32)
        for _ in range(min(options.rounds, 2) if options.quick else options.rounds):
            idle = figures_of(case, ours.run([ids[:64]], new))
            busy_process = subprocess.Popen([sys.executable, "-c", BUSY])
            try:
                time.sleep(0.3)
                busy = figures_of(case, ours.run([ids[:64]], new))
            finally:
                busy_process.kill()
                busy_process.wait()
            rounds.append({"idle": idle, "busy": busy})
    finally:
        ours.stop()
    return {
        "rounds": rounds,
        "speed_ratio": statistics.median(r["busy"]["decode"] / r["idle"]["decode"] for r in rounds),
        "p99_to_idle_median": statistics.median(r["busy"]["gap_p99_s"] / r["idle"]["gap_median_s"] for r in rounds),
    }


def seconds_to_serving(options):
    with tempfile.TemporaryDirectory(prefix="ripplekv-bench-") as folder:
        folder = pathlib.Path(folder)
        begin = time.monotonic()
        server = Server(options.build / "ripplekv-server", folder / "log", wait=False, model=options.model,
                        threads=options.threads, calibration="off", profile_dir=folder / "profiles")  # fmt: skip
        # A channel that was refused once waits a second before it tries again; each try has its own.
        settings = [("grpc.use_local_subchannel_pool", 1)]
        try:
            while True:
                with grpc.insecure_channel(server.address, settings) as channel:
                    try:
                        stub = health_pb2_grpc.HealthStub(channel)
                        status = stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status
                        if status == health_pb2.HealthCheckResponse.SERVING:
                            return time.monotonic() - begin
                    except grpc.RpcError:
                        pass
                if server.process.poll() is not None or time.monotonic() - begin > 60:
                    raise RuntimeError(f"the server does not serve:\n{server.log_text()}")
                time.sleep(0.01)
        finally:
            server.stop()


def start(options, ids):
    """From the start of the process to SERVING, the model's file in the page cache."""
    options.model.read_bytes()
    return {"seconds": summary([seconds_to_serving(options) for _ in range(options.rounds)])}
