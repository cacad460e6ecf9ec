"""What survives a stop, a crash and a damaged file; and measuring in another process."""

import json
import pathlib
import random
import shutil
import time

import grpc
import pytest

from conftest import binary
from service import PLAIN, Server, free_port, generate, stubs, wait_until
from tiny_model import write_tiny_llama

QUICK = {"calibration_examples": 2, "calibration_prefix": 128, "calibration_window": 16}
LONG = {"calibration_examples": 350, "calibration_prefix": 256, "calibration_window": 160}


@pytest.fixture
def start(tmp_path, tiny_model_path):
    """start(...) is a running Server in its own log; all are killed in the end."""
    servers = []

    def go(program="ripplekv-server", **options):
        options = {"model": tiny_model_path, "profile_dir": tmp_path / "profiles", **options}
        log = tmp_path / f"log-{len(servers)}"
        servers.append(Server(binary(program), log, log_format="json", **{**PLAIN, **options}))
        return servers[-1]

    yield go
    for server in servers:
        if server.process.poll() is None:
            server.kill()


def has_profile(server):
    return server.model().plan.source == stubs().profile.PLAN_SOURCE_PROFILE


def wait_for_profile(server):
    wait_until(lambda: has_profile(server), 120, "a plan from a profile")


def get_profile(server):
    return server.calibration.GetProfile(stubs().calibration.GetProfileRequest()).profile


def profile_files(folder):
    """Finished profiles, without what is kept beside them."""
    return [p for p in pathlib.Path(folder).glob("*.json") if len(p.stem) == 64]


def serves(server):
    return len(generate(server, text="Well?", stopping={"max_tokens": 4, "ignore_eos": True})[1]) == 4


@pytest.fixture(scope="module")
def measured(tmp_path_factory, tiny_model_path):
    """A directory with the profile of QUICK; to be copied."""
    folder = tmp_path_factory.mktemp("measured")
    with Server(
        binary("ripplekv-server"), folder / "log", model=tiny_model_path, profile_dir=folder / "profiles", **{**PLAIN, **QUICK}
    ) as server:
        wait_for_profile(server)
    return folder / "profiles"


def test_a_restart_finds_the_profile(start, measured, tmp_path):
    shutil.copytree(measured, tmp_path / "profiles")
    (file,) = profile_files(tmp_path / "profiles")
    before = file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_ino
    for _ in range(2):
        server = start(**QUICK)
        assert has_profile(server), "the first plan must be the profile's"
        assert get_profile(server).profile_id == file.stem
        assert not server.events("calibration_started")
        assert [e["source"] for e in server.events("plan_in_force")][-1] == "profile"
        assert server.metrics()['ripplekv_calibrations_total{outcome="measured"}'] == 0
        assert serves(server) and server.stop() == 0
    assert before == (file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_ino)
    # Other settings are another profile.
    server = start(**QUICK, calibration_seed=1)
    wait_for_profile(server)
    assert get_profile(server).profile_id != file.stem
    assert len(profile_files(tmp_path / "profiles")) == 2


def test_another_model_does_not_take_the_profile(start, measured, tmp_path):
    shutil.copytree(measured, tmp_path / "profiles")
    other = write_tiny_llama(tmp_path / "other.gguf", seed=2)
    server = start(model=other, **QUICK)
    wait_for_profile(server)
    assert len(server.events("calibration_done")) == 1
    assert get_profile(server).model_fingerprint == server.model().fingerprint
    stored = server.calibration.ListProfiles(stubs().calibration.ListProfilesRequest()).profiles
    assert len({p.model_fingerprint for p in stored}) == len(stored) == 2


def test_sigkill_during_calibration(start, tmp_path):
    folder = tmp_path / "profiles"
    for _ in range(3):
        server = start(**LONG)
        wait_until(lambda: server.metrics()["ripplekv_calibration_progress_ratio"] > 0)
        server.kill()
        assert profile_files(folder) == []
    server = start(**LONG)
    assert serves(server)
    wait_for_profile(server)
    assert get_profile(server).examples_measured == LONG["calibration_examples"]
    assert not server.events("profile_file_not_used")
    assert len(profile_files(folder)) == 1


def test_sigkill_around_the_end_of_a_calibration(start, measured, tmp_path):
    """At any moment there is the whole profile or none."""
    (expected,) = profile_files(measured)
    folder = tmp_path / "profiles"
    rng = random.Random(3)
    found = 0
    for _ in range(12):
        server = start(wait=False, **QUICK)
        wait_until(lambda: '"calibration_started"' in server.log_text() or profile_files(folder))
        time.sleep(rng.uniform(0, 0.08))
        server.kill()
        for file in profile_files(folder):
            assert file.read_bytes() == expected.read_bytes()
            found += 1
            file.unlink()
        assert not server.events("profile_file_not_used")
    print(f"the profile was there after {found} of 12 kills")
    server = start(**QUICK)
    wait_for_profile(server)
    (file,) = profile_files(folder)
    assert file.read_bytes() == expected.read_bytes()
    assert serves(server) and not server.events("profile_file_not_used")
    # What the killed processes left half-written is gone.
    names = sorted(p.name for p in folder.iterdir())
    assert names == sorted([file.name, f"{file.stem}.run.json"])


def cut(data):
    return data[: len(data) // 2]


def flip_a_number(data):
    place = len(data) // 2
    while not chr(data[place]).isdigit():
        place += 1
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGE = {
    "empty": lambda data: b"",
    "cut": cut,
    "last byte gone": lambda data: data.rstrip()[:-1],
    "a number changed": flip_a_number,
    "garbage": lambda data: random.Random(1).randbytes(len(data)),
    "zeros": lambda data: bytes(len(data)),
    "foreign JSON": lambda data: json.dumps({"name": "package", "version": 1}).encode(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_profile(start, measured, tmp_path, damage):
    folder = tmp_path / "profiles"
    shutil.copytree(measured, folder)
    (file,) = profile_files(folder)
    sound = file.read_bytes()
    broken = DAMAGE[damage](sound)
    assert broken != sound
    file.write_bytes(broken)
    server = start(**QUICK)
    assert serves(server)
    (event,) = server.events("profile_file_not_used")
    assert event["file"] == file.name and event["reason"] and event["level"] == "warning"
    aside = folder / event["set_aside_as"]
    assert aside.name != file.name and aside.read_bytes() == broken
    assert server.metrics()["ripplekv_profile_store_problems"] == 1
    # Measured again, the same bytes.
    wait_for_profile(server)
    assert len(server.events("calibration_done")) == 1
    assert file.read_bytes() == sound


def test_a_profile_of_a_later_version_stays(start, measured, tmp_path):
    folder = tmp_path / "profiles"
    folder.mkdir()
    (ours,) = profile_files(measured)
    later = folder / f"{'e' * 64}.json"
    data = ours.read_bytes().replace(b'"ripplekv_profile": 4', b'"ripplekv_profile": 5')
    assert data != ours.read_bytes()
    later.write_bytes(data)
    server = start(**QUICK)
    assert serves(server)
    (event,) = server.events("profile_file_not_used")
    assert event["file"] == later.name and "format version 5" in event["reason"] and not event["set_aside_as"]
    wait_for_profile(server)
    assert later.read_bytes() == data and (folder / ours.name).read_bytes() == ours.read_bytes()


def test_a_profile_under_the_name_of_another(start, measured, tmp_path):
    folder = tmp_path / "profiles"
    shutil.copytree(measured, folder)
    (file,) = profile_files(folder)
    wrong = folder / ("0" * 64 + ".json")
    file.rename(wrong)
    server = start(**QUICK)
    (event,) = server.events("profile_file_not_used")
    assert event["file"] == wrong.name and file.stem in event["reason"]
    assert not wrong.exists()
    wait_for_profile(server)
    assert len(server.events("calibration_done")) == 1


def test_damage_beside_the_profile(start, measured, tmp_path):
    """The record of the run is no part of the profile; other files are said and left alone."""
    folder = tmp_path / "profiles"
    shutil.copytree(measured, folder)
    (file,) = profile_files(folder)
    (folder / f"{file.stem}.run.json").write_text("{")
    (folder / "notes.txt").write_text("mine")
    server = start(**QUICK)
    assert has_profile(server) and serves(server)
    assert {e["file"] for e in server.events("profile_file_not_used")} == {f"{file.stem}.run.json", "notes.txt"}
    assert (folder / "notes.txt").read_text() == "mine"
    assert not get_profile(server).HasField("run")
    assert server.metrics()["ripplekv_profile_store_problems"] == 2


def test_damage_while_the_server_runs(start, measured, tmp_path):
    shutil.copytree(measured, tmp_path / "profiles")
    (file,) = profile_files(tmp_path / "profiles")
    server = start(**QUICK)
    plan = server.model().plan
    assert server.metrics()["ripplekv_profile_store_problems"] == 0
    file.write_bytes(cut(file.read_bytes()))
    request = stubs().calibration.GetProfileRequest(profile_id=file.stem)
    with pytest.raises(grpc.RpcError) as damaged:
        server.calibration.GetProfile(request)
    assert damaged.value.code() == grpc.StatusCode.DATA_LOSS
    assert file.name in damaged.value.details() and "set aside" in damaged.value.details()
    with pytest.raises(grpc.RpcError) as missing:
        server.calibration.GetProfile(request)
    assert missing.value.code() == grpc.StatusCode.NOT_FOUND
    assert server.metrics()["ripplekv_profile_store_problems"] == 1
    assert server.model().plan == plan and serves(server)


# --- Two processes ------------------------------------------------------------------------------------------------


def test_two_processes_give_what_one_gives(start, tmp_path, model_path, corpus_texts, tokenize):
    settings = {"model": model_path, "calibration_examples": 3, "calibration_prefix": 256, "calibration_window": 32}
    settings |= {"min_positions": 0, "retention": 0.3, "threads": 1}
    calibrating = start("ripplekv-calibration-server", profile_dir=tmp_path / "calibration", **{
        k: v for k, v in settings.items()})  # fmt: skip
    two = start(profile_dir=tmp_path / "two", calibration=calibrating.address, **settings)
    one = start(profile_dir=tmp_path / "one", **settings)
    files = []
    for server, folder in ((two, "two"), (one, "one"), (calibrating, "calibration")):
        if server is not calibrating:
            wait_for_profile(server)
        files += profile_files(tmp_path / folder)
    assert len(files) == 3 and len({f.name for f in files}) == 1
    assert files[0].read_bytes() == files[1].read_bytes() == files[2].read_bytes()

    # Both really computed three examples, each once, and say so; nobody else computed any.
    for server in (calibrating, one):
        (done,) = server.events("calibration_done")
        assert done["examples"] == 3 and done["profile_id"] == files[0].stem
        assert server.metrics()['ripplekv_calibrations_total{outcome="measured"}'] == 1
        assert get_profile(server).examples_measured == 3
        assert get_profile(server).run.duration_seconds > 0
    assert two.metrics()['ripplekv_calibrations_total{outcome="measured"}'] == 0
    assert two.metrics()['ripplekv_calibrations_total{outcome="fetched"}'] == 1
    (fetched,) = two.events("profile_fetched")
    assert fetched["address"] == calibrating.address and fetched["examples"] == 3
    # The run that is told is the one that took place.
    assert get_profile(two).run == get_profile(calibrating).run

    assert two.model().plan == one.model().plan
    prompt = tokenize(corpus_texts[5])[:400]
    answers = []
    for server in (one, two):
        text, ids, logprobs, complete = generate(
            server,
            token_ids={"ids": prompt},
            stopping={"max_tokens": 24, "ignore_eos": True},
            output={"logprobs": 1, "next_token_kl": True},
        )
        kept = [layer.positions_kept for layer in complete.cache.layers]
        assert len(set(kept)) > 1, "the profile must matter to the plan"
        answers.append((text, ids, [p.logprob for p in logprobs], kept, complete.next_token_kl))
    assert answers[0] == answers[1]

    with pytest.raises(grpc.RpcError) as refused:
        list(two.calibration.CalibrateModel(stubs().calibration.CalibrateModelRequest(), timeout=10))
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert calibrating.address in refused.value.details()

    # The decode server keeps what it fetched: it needs the other one no more.
    for server in (two, calibrating):
        assert server.stop() == 0
    again = start(profile_dir=tmp_path / "two", calibration=calibrating.address, **settings)
    assert has_profile(again) and not again.events("calibration_server_failed")


def test_the_calibration_server_comes_late_and_goes_early(start, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    settings = {**LONG, "calibration_seed": 4}
    decode = start(profile_dir=tmp_path / "decode", calibration=address, **settings)
    assert serves(decode) and not has_profile(decode)
    wait_until(lambda: decode.events("calibration_server_failed"))
    assert address in decode.model().plan_status
    options = {"listen": address, "profile_dir": tmp_path / "calibration", **settings}
    calibrating = start("ripplekv-calibration-server", **options)
    wait_until(lambda: "measures: " in decode.model().plan_status, 60, "progress of the other server")
    assert 0 <= decode.metrics()["ripplekv_calibration_progress_ratio"] <= 1
    calibrating.kill()
    wait_until(lambda: decode.metrics()["ripplekv_calibration_running"] == 0)
    assert serves(decode) and not has_profile(decode)
    start("ripplekv-calibration-server", **options)
    wait_for_profile(decode)
    assert get_profile(decode).examples_measured == LONG["calibration_examples"]


def test_a_measurement_cancelled_at_the_calibration_server_is_not_asked_for_again(start, tmp_path):
    settings = {**LONG, "calibration_seed": 5}
    calibrating = start("ripplekv-calibration-server", profile_dir=tmp_path / "calibration", **settings)
    decode = start(profile_dir=tmp_path / "decode", calibration=calibrating.address, **settings)
    (started,) = wait_until(lambda: decode.events("calibration_started"))
    pb = stubs().calibration
    calibrating.calibration.CancelCalibration(pb.CancelCalibrationRequest(job_id=started["job_id"]), timeout=10)
    wait_until(lambda: "CancelCalibration" in decode.model().plan_status)
    (failed,) = decode.events("calibration_server_failed")
    assert failed["code"] == "CANCELLED"
    # It goes on looking for the profile, without having it measured.
    looks = 'ripplekv_requests_total{code="NOT_FOUND",method="GetProfile"}'
    before = calibrating.metrics()[looks]
    wait_until(lambda: calibrating.metrics()[looks] >= before + 2, 60, "two more looks")
    listed = calibrating.calibration.ListCalibrations(pb.ListCalibrationsRequest(), timeout=10).calibrations
    assert [job.state for job in listed] == [pb.CALIBRATION_STATE_CANCELLED]
    assert serves(decode) and not has_profile(decode)
    for _ in calibrating.calibration.CalibrateModel(pb.CalibrateModelRequest(), timeout=120):
        pass
    wait_for_profile(decode)


def test_a_calibration_server_of_another_model_is_not_trusted(start, tmp_path):
    other = write_tiny_llama(tmp_path / "other.gguf", seed=2)
    calibrating = start("ripplekv-calibration-server", model=other, profile_dir=tmp_path / "calibration", **QUICK)
    decode = start(profile_dir=tmp_path / "decode", calibration=calibrating.address, **QUICK)
    (failed,) = wait_until(lambda: decode.events("calibration_server_failed"))
    assert "same model file" in failed["error"]
    assert not has_profile(decode) and serves(decode)
    assert profile_files(tmp_path / "decode") == []
