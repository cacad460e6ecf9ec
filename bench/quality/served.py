"""A server to measure: one that runs already, or one started for the run, which calibrates itself first."""

import contextlib
import hashlib
import pathlib
import time

import bench_server
from tqdm import tqdm


def calibrated(client):
    """The profile that the server's plans are made from; measured now where there is none yet."""
    with tqdm(total=100, unit="%", desc="calibration", leave=False) as bar:

        def show(event):
            if event.HasField("progress"):
                bar.update(round(100 * event.progress.fraction) - bar.n)

        profile = client.calibrate(on_event=show).profile
    # The plan made from it is in force a moment later.
    deadline = time.monotonic() + 10
    while client.model().plan_status and time.monotonic() < deadline:
        time.sleep(0.05)
    return profile


@contextlib.contextmanager
def serving(options):
    """(client, model, profile); profile is None where a server at --address has none, and for lm-eval, which needs none."""
    import ripplekv

    if options.address:
        with ripplekv.Client(options.address, timeout=3600) as client:
            model = client.wait_until_serving(60)
            if model.plan.min_positions:
                raise ValueError(
                    f"the server at {options.address} keeps {model.plan.min_positions} positions in any case, so that "
                    "methods would not differ: start it with --min-positions 0"
                )
            try:
                profile = client.profile()
            except (ripplekv.NotFound, ripplekv.FailedPrecondition):
                profile = None
            yield client, model, profile
        return
    # Some methods need the damage of each layer beside its sensitivity, some a plan that chooses types.
    planned = {"calibration": "embedded", "allocator": "damage_curves", "kv_type": "auto"}
    if options.quick:
        planned |= {
            "calibration_damage": 2,
            "calibration_examples": 4,
            "calibration_prefix": 448,
            "calibration_window": 16,
        }
    if options.command == "target":
        planned["calibration_sizes"] = options.sizes
    needs_profile = options.command != "lm-eval"
    if not needs_profile:
        planned = {"calibration": "off"}
    options.profile_dir.mkdir(parents=True, exist_ok=True)
    flags = {
        "profile_dir": options.profile_dir, "kv_memory": options.kv_memory, "context_memory": options.context_memory,
        "compute": options.compute, **planned, **options.flags,
    }  # fmt: skip
    with bench_server.server_of(options, **flags) as server, ripplekv.Client(server.address, timeout=3600) as client:
        profile = calibrated(client) if needs_profile else None
        yield client, client.model(), profile


def digest(path):
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def settings(options, model, profile):
    """What every figure depends on, beside a task's own settings."""
    import ripplekv.v1.profile_pb2 as pb
    from google.protobuf.json_format import MessageToDict

    server = None
    if not options.address:
        server = f"sha256 {digest(options.build / 'ripplekv-server')}"
    return {
        "model": model.model.name,
        "fingerprint": model.fingerprint,
        "compute": pb.ComputeType.Name(model.compute_type),
        "kv_types": [pb.KvType.Name(model.kv_type), pb.KvType.Name(model.value_kv_type)],
        "version": model.versions.ripplekv,
        "server": server,  # of one at --address nothing more than the version is known
        "profile": profile.content_digest if profile else None,
        # What holds where a request says nothing.
        "plan": MessageToDict(model.plan, preserving_proto_field_name=True),
        "selector": MessageToDict(model.selector, preserving_proto_field_name=True),
        "growth_cap": model.limits.growth_cap,
    }


def corpus():
    """The built-in calibration texts: never measured on."""
    folder = pathlib.Path(bench_server.SOURCE) / "calibration" / "corpus"
    texts = [path for path in sorted(folder.glob("*.txt")) if path.name != "CMakeLists.txt"]
    return [path.read_text(encoding="utf-8") for path in texts]
