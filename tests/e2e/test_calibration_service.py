"""CalibrationService: measuring, joining, leaving, stored profiles, budgets, and which profile becomes the plan."""

import math
import shutil
import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2

from conftest import binary
from service import Server, error_details, generate, stubs, wait_until

SMALL = {"examples": 2, "prefix_tokens": 128, "window_tokens": 16}
LAYERS = 4
# Seconds of work for the small model: long enough to meet while it runs.
LONG = {"examples": 350, "prefix_tokens": 256, "window_tokens": 160}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """A --corpus-dir of one corpus, "numbers"."""
    folder = tmp_path_factory.mktemp("corpora")
    (folder / "numbers").mkdir()
    for i in range(3):
        text = " ".join(str(n * n + i) for n in range(80))
        (folder / "numbers" / f"{i}.txt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def server(start_server, tiny_model_path, corpora):
    server = start_server(
        model=tiny_model_path,
        compute="fp32",
        min_positions=0,
        calibration_examples=2,
        calibration_prefix=128,
        calibration_window=16,
        corpus_dir=corpora,
    )
    wait_until(lambda: plan_source(server) == stubs().profile.PLAN_SOURCE_PROFILE)
    return server


def plan_source(server):
    return server.model().plan.source


def calibrate(server, settings=SMALL, timeout=300, **more):
    request = stubs().calibration.CalibrateModelRequest(settings=settings, **more)
    return server.calibration.CalibrateModel(request, timeout=timeout)


def completion(events):
    """The last message, after checking the order of all."""
    events = list(events)
    kinds = [e.WhichOneof("event") for e in events]
    assert kinds[0] == "started" and kinds[-1] == "complete", kinds
    assert set(kinds[1:-1]) <= {"progress"}, kinds
    return events[-1].complete


def get_profile(server, profile_id=""):
    request = stubs().calibration.GetProfileRequest(profile_id=profile_id)
    return server.calibration.GetProfile(request)


def calibrations(server, outcome):
    return server.metrics()[f'ripplekv_calibrations_total{{outcome="{outcome}"}}']


def is_idle(server):
    return server.metrics()["ripplekv_calibration_running"] == 0


class Caller(threading.Thread):
    """A CalibrateModel call that another thread reads."""

    def __init__(self, server, settings=LONG, **more):
        super().__init__(daemon=True)
        self.call = calibrate(server, settings, **more)
        self.started = next(self.call).started
        self.events, self.code, self.details = [], None, None
        self.start()

    def run(self):
        try:
            for event in self.call:
                self.events.append(event)
            self.code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            self.code, self.details = error.code(), error.details()

    def result(self):
        self.join(timeout=300)
        assert not self.is_alive()
        return self.code


def test_events_and_profile(server):
    settings = {"examples": 60, "prefix_tokens": 512, "window_tokens": 32, "seed": 99}
    events = list(calibrate(server, settings))
    started = events[0].started
    assert started.job_id and not started.joined
    for name, value in settings.items():
        assert getattr(started.settings, name) == value
    for name, value in (("eta", 0.5), ("sinks", 4), ("recent", 32)):  # the server's own
        assert started.settings.HasField(name) and getattr(started.settings, name) == value
    progress = [e.progress for e in events[1:-1]]
    assert progress
    for before, after in zip(progress, progress[1:]):
        assert before.examples_done <= after.examples_done
        assert before.fraction <= after.fraction
        assert before.elapsed_seconds <= after.elapsed_seconds
    assert all(p.examples_total == 60 and 0 <= p.fraction <= 1 for p in progress)
    assert progress[-1].examples_done == 60 and progress[-1].fraction == 1
    complete = completion(events)
    assert not complete.from_store and not complete.in_force
    profile = complete.profile
    assert profile.profile_id == started.profile_id
    assert profile.examples_measured == 60
    assert profile.settings == started.settings
    assert profile.corpus_name == "default"
    assert profile.model_fingerprint == server.model().fingerprint
    assert profile.model_name == "Tiny llama"
    assert profile.compute_type == stubs().profile.COMPUTE_TYPE_FP32
    assert [layer.layer for layer in profile.layers] == list(range(LAYERS))
    assert all(layer.mean_kl > 0 and layer.standard_error > 0 for layer in profile.layers)
    assert -1 <= profile.split_half_spearman <= 1
    assert profile.run.duration_seconds > 0 and profile.run.threads >= 1 and profile.run.host
    assert get_profile(server, profile.profile_id).profile == profile


def test_damage_of_layers_compressed_alone(server):
    settings = {"examples": 3, "prefix_tokens": 256, "window_tokens": 16, "seed": 98, "damage_examples": 2}
    events = list(calibrate(server, settings))
    started, profile = events[0].started, completion(events).profile
    # Those of the default retentions that keep sinks and window of 256 tokens.
    assert list(started.settings.damage_retentions) == [0.2, 0.4, 0.7]
    assert started.settings.damage_storage
    assert profile.settings == started.settings
    kv = stubs().profile
    for layer in profile.layers:
        assert [kept.retention for kept in layer.retentions] == [0.2, 0.4, 0.7]
        assert all(kept.damage.mean_kl > 0 and kept.damage.standard_error > 0 for kept in layer.retentions)
        assert [(s.keys, s.values) for s in layer.storage] == [
            (kv.KV_TYPE_INT8, kv.KV_TYPE_INT8),
            (kv.KV_TYPE_INT4, kv.KV_TYPE_INT4),
            (kv.KV_TYPE_INT8, kv.KV_TYPE_INT4),
        ]
        int8, int4, mixed = (s.damage.mean_kl for s in layer.storage)
        assert 0 < int8 < int4 and int8 < mixed
        assert layer.local_response > 0 and layer.local_response_error > 0
    agreement = profile.damage_agreement
    assert agreement.retention == 0.2  # the nearest to 10 %
    assert -1 <= agreement.sensitivity.low <= agreement.sensitivity.high <= 1
    assert get_profile(server, profile.profile_id).profile == profile
    # The sensitivities are those of a profile without damage, which is another one.
    plain = completion(calibrate(server, {**settings, "damage_examples": 0})).profile
    assert plain.profile_id != profile.profile_id
    assert [layer.mean_kl for layer in plain.layers] == [layer.mean_kl for layer in profile.layers]
    assert not plain.HasField("damage_agreement") and not plain.settings.damage_retentions


@pytest.mark.parametrize(
    "damage, complaint",
    [
        ({"damage_examples": 4}, "settings.damage_examples is 4: must be between 0 and 3"),
        ({"damage_examples": -1}, "settings.damage_examples is -1: must be between 0 and 3"),
        ({"damage_retentions": [0.5]}, "settings.damage_examples is 0: must be at least 1"),
        ({"damage_examples": 1, "damage_retentions": [0.1]}, "settings.damage_retentions[0] is 0.1, 25 of 256"),
        ({"damage_examples": 1, "damage_retentions": [0.5, 1]}, "settings.damage_retentions[1] is 1: must be"),
    ],
)
def test_damage_that_cannot_be_measured(server, damage, complaint):
    with pytest.raises(grpc.RpcError) as error:
        list(calibrate(server, {"examples": 3, "prefix_tokens": 256, "window_tokens": 16, **damage}))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert complaint in error.value.details()


def test_an_identical_request_returns_the_stored_profile(server):
    settings = {**SMALL, "seed": 1}
    measured = calibrations(server, "measured")
    first = completion(calibrate(server, settings))
    assert not first.from_store
    again = completion(calibrate(server, settings))
    assert again.from_store
    assert again.profile == first.profile
    assert calibrations(server, "measured") == measured + 1
    forced = completion(calibrate(server, settings, force=True))
    assert not forced.from_store
    assert calibrations(server, "measured") == measured + 2
    # Measured again: the same numbers, another run.
    assert forced.profile.content_digest == first.profile.content_digest
    assert forced.profile.layers == first.profile.layers
    assert forced.profile.run != first.profile.run
    other = completion(calibrate(server, {**SMALL, "seed": 2}))
    assert not other.from_store and other.profile.layers != first.profile.layers


def test_no_noise_measures_exactly_nothing(server):
    profile = completion(calibrate(server, {**SMALL, "eta": 0.0})).profile
    assert [layer.mean_kl for layer in profile.layers] == [0.0] * LAYERS


def test_few_examples_leave_statistics_out(server):
    one = completion(calibrate(server, {**SMALL, "examples": 1})).profile
    assert not any(layer.HasField("standard_error") for layer in one.layers)
    assert not one.HasField("split_half_spearman")
    three = completion(calibrate(server, {**SMALL, "examples": 3})).profile
    assert all(layer.HasField("standard_error") for layer in three.layers)
    assert not three.HasField("split_half_spearman")
    four = completion(calibrate(server, {**SMALL, "examples": 4})).profile
    assert four.HasField("split_half_spearman")


def test_joining_and_a_caller_who_leaves(server):
    settings = {**LONG, "seed": 5}
    first = Caller(server, settings)
    second = Caller(server, settings)
    assert not first.started.joined and second.started.joined
    assert second.started.job_id == first.started.job_id
    assert second.started.profile_id == first.started.profile_id
    # Another measurement has to wait, and is told for how long.
    with pytest.raises(grpc.RpcError) as busy:
        list(calibrate(server, {**LONG, "seed": 6}))
    assert busy.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert first.started.job_id in busy.value.details()
    assert error_details(busy.value)["RetryInfo"].retry_delay.seconds >= 1
    # What is stored is there all the while.
    assert completion(calibrate(server, SMALL)).from_store
    first.call.cancel()
    assert first.result() == grpc.StatusCode.CANCELLED
    assert second.result() == grpc.StatusCode.OK
    complete = second.events[-1].complete
    assert complete.profile.profile_id == first.started.profile_id
    assert complete.profile.examples_measured == LONG["examples"]


def test_the_last_caller_leaving_cancels(server):
    settings = {**LONG, "seed": 7}
    cancelled = calibrations(server, "cancelled")
    callers = [Caller(server, settings), Caller(server, settings)]
    assert not is_idle(server)
    for caller in callers:
        caller.call.cancel()
    wait_until(lambda: is_idle(server), what="the end of the measurement nobody waits for")
    assert calibrations(server, "cancelled") == cancelled + 1
    with pytest.raises(grpc.RpcError) as missing:
        get_profile(server, callers[0].started.profile_id)
    assert missing.value.code() == grpc.StatusCode.NOT_FOUND
    # The way is free.
    assert not completion(calibrate(server, {**SMALL, "seed": 8})).from_store


def test_a_deadline_cancels(server):
    with pytest.raises(grpc.RpcError) as late:
        list(calibrate(server, {**LONG, "seed": 9}, timeout=0.3))
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: is_idle(server))


def all_calibrations(server, page_size=0):
    """Pages of Calibration messages."""
    pb, token, pages = stubs().calibration, "", []
    while True:
        request = pb.ListCalibrationsRequest(page_size=page_size, page_token=token)
        reply = server.calibration.ListCalibrations(request, timeout=10)
        pages.append(list(reply.calibrations))
        token = reply.next_page_token
        if not token:
            return pages


def find_calibration(server, job_id):
    return next(c for page in all_calibrations(server) for c in page if c.job_id == job_id)


def cancel(server, job_id):
    return server.calibration.CancelCalibration(stubs().calibration.CancelCalibrationRequest(job_id=job_id), timeout=10)


def test_calibrations_are_listed(server):
    pb = stubs().calibration
    settings = {**LONG, "seed": 41}
    first = Caller(server, settings)
    second = Caller(server, settings)
    job = first.started.job_id
    wait_until(lambda: find_calibration(server, job).progress.fraction > 0, what="progress")
    running = all_calibrations(server)[0][0]
    assert running.job_id == job and running.state == pb.CALIBRATION_STATE_RUNNING
    assert running.profile_id == first.started.profile_id and running.settings == first.started.settings
    assert running.listeners == 2 and not running.detached and not running.HasField("error")
    assert running.corpus_name == "default"
    assert 0 < running.progress.fraction < 1 and running.progress.examples_total == LONG["examples"]
    assert running.progress.elapsed_seconds > 0
    assert abs(running.started_at.seconds - time.time()) < 60
    first.call.cancel()
    wait_until(lambda: find_calibration(server, job).listeners == 1, what="the caller's leaving")
    second.call.cancel()
    wait_until(lambda: find_calibration(server, job).state == pb.CALIBRATION_STATE_CANCELLED)
    ended = find_calibration(server, job)
    assert ended.listeners == 0 and ended.error.code == grpc.StatusCode.CANCELLED.value[0]
    assert "nobody waits" in ended.error.message
    assert ended.progress == find_calibration(server, job).progress  # the clock stands

    complete = completion(calibrate(server, {**SMALL, "seed": 42}))
    newest = all_calibrations(server)[0][0]
    assert newest.state == pb.CALIBRATION_STATE_SUCCEEDED and newest.profile_id == complete.profile.profile_id
    assert newest.progress.examples_done == 2 and newest.progress.fraction == 1
    assert newest.settings.seed == 42 and not newest.HasField("error")
    # What came from the store is none.
    assert completion(calibrate(server, {**SMALL, "seed": 42})).from_store
    jobs = [c.job_id for c in all_calibrations(server)[0]]
    assert jobs[0] == newest.job_id and jobs.index(newest.job_id) < jobs.index(job)
    pages = all_calibrations(server, page_size=2)
    assert [c.job_id for page in pages for c in page] == jobs
    assert all(len(page) == 2 for page in pages[:-1]) and 1 <= len(pages[-1]) <= 2
    assert [[c.job_id for c in page] for page in all_calibrations(server, len(jobs))] == [jobs]


def test_cancelled_for_everybody(server):
    settings = {**LONG, "seed": 43}
    before = calibrations(server, "cancelled")
    callers = [Caller(server, settings, detach=True), Caller(server, settings)]
    job = callers[0].started.job_id
    reply = cancel(server, job).calibration
    assert reply.job_id == job and reply.state == stubs().calibration.CALIBRATION_STATE_CANCELLED
    assert reply.detached and reply.progress.examples_done < LONG["examples"]
    for caller in callers:
        assert caller.result() == grpc.StatusCode.CANCELLED
        assert "CancelCalibration" in caller.details and job in caller.details
    assert calibrations(server, "cancelled") == before + 1 and is_idle(server)
    with pytest.raises(grpc.RpcError) as missing:
        get_profile(server, callers[0].started.profile_id)
    assert missing.value.code() == grpc.StatusCode.NOT_FOUND
    # The way is free, and what has ended cannot be cancelled.
    assert not completion(calibrate(server, {**SMALL, "seed": 44})).from_store
    done = all_calibrations(server)[0][0].job_id
    for ended, state in ((job, "CANCELLED"), (done, "SUCCEEDED")):
        with pytest.raises(grpc.RpcError) as refused:
            cancel(server, ended)
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert ended in refused.value.details() and state in refused.value.details()


def test_detached_goes_on_alone(server):
    settings = {**LONG, "seed": 45}
    caller = Caller(server, settings, detach=True)
    job = caller.started.job_id
    caller.call.cancel()
    assert caller.result() == grpc.StatusCode.CANCELLED
    wait_until(lambda: find_calibration(server, job).listeners == 0, what="the caller's leaving")
    calibration = find_calibration(server, job)
    assert calibration.detached and calibration.state == stubs().calibration.CALIBRATION_STATE_RUNNING
    # Who joins detaches nothing by leaving; what was detached stays so.
    other = Caller(server, settings)
    assert other.started.joined
    other.call.cancel()
    succeeded = stubs().calibration.CALIBRATION_STATE_SUCCEEDED
    wait_until(lambda: find_calibration(server, job).state == succeeded, 300, "the detached measurement")
    assert get_profile(server, caller.started.profile_id).profile.examples_measured == LONG["examples"]


def listed(server, page_size=0):
    """Pages of ids."""
    pb, token, pages = stubs().calibration, "", []
    while True:
        reply = server.calibration.ListProfiles(pb.ListProfilesRequest(page_size=page_size, page_token=token))
        pages.append([p.profile_id for p in reply.profiles])
        token = reply.next_page_token
        if not token:
            return pages


def test_list_get_and_delete(server):
    made = {completion(calibrate(server, {**SMALL, "seed": s})).profile.profile_id for s in range(20, 25)}
    ids = listed(server)[0]
    assert made <= set(ids) and len(ids) == len(set(ids)) and ids == sorted(ids)
    pages = listed(server, page_size=2)
    assert [i for page in pages for i in page] == ids
    assert all(len(page) == 2 for page in pages[:-1]) and 1 <= len(pages[-1]) <= 2
    assert listed(server, page_size=len(ids)) == [ids]  # no empty page behind a full one

    gone = next(iter(made))
    assert get_profile(server, gone).profile.profile_id == gone
    delete = stubs().calibration.DeleteProfileRequest(profile_id=gone)
    server.calibration.DeleteProfile(delete)
    assert listed(server)[0] == [i for i in ids if i != gone]
    for call in (lambda: get_profile(server, gone), lambda: server.calibration.DeleteProfile(delete)):
        with pytest.raises(grpc.RpcError) as missing:
            call()
        assert missing.value.code() == grpc.StatusCode.NOT_FOUND
        resource = error_details(missing.value)["ResourceInfo"]
        assert resource.resource_type == "ripplekv.v1.Profile" and resource.resource_name == gone
    # Measured anew after that.
    seed = next(s for s in range(20, 25) if not completion(calibrate(server, {**SMALL, "seed": s})).from_store)
    assert gone in listed(server)[0] and seed in range(20, 25)


def test_only_the_configured_settings_become_the_plan(server):
    configured = get_profile(server)
    assert configured.in_force
    plan = server.model().plan
    assert plan.profile_id == configured.profile.profile_id
    assert server.model().plan_status == ""
    for settings in ({**SMALL, "seed": 31}, {**SMALL, "eta": 0.25}):
        other = completion(calibrate(server, settings))
        assert not other.in_force
        assert server.model().plan == plan
    assert completion(calibrate(server, SMALL)).in_force
    metrics = server.metrics()
    assert metrics['ripplekv_plan_info{source="profile"}'] == 1
    assert metrics['ripplekv_plan_info{source="uniform"}'] == 0


def test_corpora(server, corpora):
    named = completion(calibrate(server, SMALL, corpus={"name": "numbers"})).profile
    assert named.corpus_name == "numbers"
    default = get_profile(server).profile
    assert named.corpus_digest != default.corpus_digest and named.layers != default.layers
    # The same texts in the request are the same measurement.
    texts = [(corpora / "numbers" / f"{i}.txt").read_text() for i in range(3)]
    inline = completion(calibrate(server, SMALL, corpus={"texts": {"texts": texts}}))
    assert inline.from_store and inline.profile == named
    fewer = completion(calibrate(server, SMALL, corpus={"texts": {"texts": texts[:2]}}))
    assert not fewer.from_store and fewer.profile.corpus_name == "inline"
    assert fewer.profile.corpus_digest != named.corpus_digest
    # The first two texts are what two examples measure: the same numbers under another name.
    assert fewer.profile.layers == named.layers
    with pytest.raises(grpc.RpcError) as unknown:
        list(calibrate(server, SMALL, corpus={"name": "letters"}))
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
    assert "letters" in unknown.value.details() and "numbers" in unknown.value.details()
    resource = error_details(unknown.value)["ResourceInfo"]
    assert resource.resource_type == "ripplekv.v1.Corpus" and resource.resource_name == "letters"


def ripple(sensitivities, r, gamma):
    """The allocator of arXiv 2608.08684, in Python's floating point."""
    low, high = min(sensitivities), max(sensitivities)
    scaled = [(s - low) / (high - low) if high > low else 0.0 for s in sensitivities]
    clipped = [min(max(r**x, 1 / gamma), gamma) for x in scaled]
    mean = sum(clipped) / len(clipped)
    return [w / mean for w in clipped]


def budgets(server, **fields):
    return server.calibration.PlanBudgets(stubs().calibration.PlanBudgetsRequest(**fields))


def test_plan_budgets_follow_the_profile(server):
    profile = get_profile(server).profile
    sensitivities = [layer.mean_kl for layer in profile.layers]
    row_bytes = server.model().kv_bytes_per_position_layer
    for tokens, retention, r, gamma in ((1000, 0.2, 1.5, 16), (777, 0.31, 8.0, 2.0), (900, 0.5, 1.0, 16)):
        reply = budgets(
            server,
            profile_id=profile.profile_id,
            prompt_tokens=tokens,
            size={"retention": retention},
            allocator={"ripple": {"r": r, "gamma": gamma}},
        )
        expected = ripple(sensitivities, r, gamma)
        assert [layer.multiplier for layer in reply.layers] == pytest.approx(expected, rel=1e-12)
        assert list(reply.plan.multipliers) == [layer.multiplier for layer in reply.layers]
        positions = [layer.positions for layer in reply.layers]
        total = LAYERS * math.floor(retention * tokens + 1e-6)
        assert sum(positions) == reply.total_positions == reply.requested_positions == total
        assert not (reply.raised or reply.clamped or reply.full)
        # None of these meets a floor or the prompt's end: shares are proportional, to the position.
        assert all(abs(p - w * total / LAYERS) < 1 for p, w in zip(positions, expected))
        assert reply.kv_bytes == total * row_bytes
        assert reply.full_kv_bytes == LAYERS * tokens * row_bytes
        assert reply.plan.source == stubs().profile.PLAN_SOURCE_PROFILE
        assert reply.plan.profile_id == profile.profile_id


def test_plan_budgets_edges(server):
    floor = server.model().plan.floor_positions
    assert floor == 4 + 32 + 1
    least = budgets(server, prompt_tokens=1000, size={"total_positions": 1})
    assert least.clamped and least.requested_positions == 1
    assert [layer.positions for layer in least.layers] == [floor] * LAYERS
    most = budgets(server, prompt_tokens=1000, size={"total_positions": 10**12})
    assert most.clamped and most.full and most.total_positions == LAYERS * 1000
    whole = budgets(server, prompt_tokens=1000, size={"full": {}})
    assert whole.full and not whole.clamped and {layer.positions for layer in whole.layers} == {1000}
    raised = budgets(server, prompt_tokens=1000, size={"retention": 0.05}, min_positions=300)
    assert raised.raised and raised.total_positions == LAYERS * 300 and raised.requested_positions == LAYERS * 50
    short = budgets(server, prompt_tokens=20, size={"retention": 0.1})
    assert short.full and {layer.positions for layer in short.layers} == {20}
    even = budgets(server, prompt_tokens=1001, size={"total_positions": 1002}, allocator={"uniform": {}})
    assert [layer.positions for layer in even.layers] == [251, 251, 250, 250]  # ties to the lower layer
    # Any number of layers and length where the caller gives the sensitivities; no bytes for another model's shape.
    values = [0.001 * (i % 7) for i in range(80)]
    inline = budgets(server, inline={"mean_kl": values}, prompt_tokens=1_000_000, size={"retention": 0.1})
    assert inline.plan.source == stubs().profile.PLAN_SOURCE_INLINE
    assert sum(layer.positions for layer in inline.layers) == inline.total_positions == 80 * 100_000
    assert inline.kv_bytes == inline.full_kv_bytes == 0
    kept = [layer.positions for layer in inline.layers]
    assert all(kept[i] < kept[j] for i in range(80) for j in range(80) if values[i] < values[j])


def test_generate_keeps_what_plan_budgets_says(server):
    prompt = [32 + i * 7 % 90 for i in range(700)]
    for fields in (
        {},
        {"size": {"retention": 0.4}},
        {"size": {"total_bytes": 400_000}},
        {"allocator": {"ripple": {"r": 20.0, "map": "SIGNAL_MAP_LOG"}}},
        {"allocator": {"sqrt": {}}},
        {"allocator": {"inverse_ripple": {"ripple": {"r": 4.0}}}},
        {"allocator": {"shuffled_ripple": {"ripple": {"r": 4.0}, "seed": 3}}},
        {"allocator": {"pyramid": {}}},
        {"allocator": {"multipliers": {"multipliers": [4, 1, 2, 1]}}},
        {"allocator": {"positions": {"positions": [400, 50, 60, 70]}}},
        {"allocator": {"ripple": {"r": 20.0}}},
    ):
        planned = budgets(server, prompt_tokens=len(prompt), **fields)
        cache = generate(server, token_ids={"ids": prompt}, kv=fields, stopping={"max_tokens": 1})[3].cache
        assert [layer.positions_kept for layer in cache.layers] == [layer.positions for layer in planned.layers]
        assert cache.kv_bytes == planned.kv_bytes and cache.full_kv_bytes == planned.full_kv_bytes
        assert fields.get("size", {}).get("total_bytes", cache.kv_bytes) >= cache.kv_bytes
    assert len({layer.positions for layer in planned.layers}) > 1


def test_plans_from_measured_damage(start_server, tiny_model_path):
    server = start_server(
        model=tiny_model_path,
        compute="fp32",
        min_positions=0,
        calibration_examples=2,
        calibration_prefix=128,
        calibration_window=16,
        calibration_damage=2,
        allocator="damage_curves",
        kv_type="auto",
    )
    wait_until(lambda: plan_source(server) == stubs().profile.PLAN_SOURCE_PROFILE)
    model = server.model()
    int8 = stubs().profile.KV_TYPE_INT8
    assert model.plan.chooses_types and model.kv_type == int8
    before = 0
    for retention in (0.1, 0.2, 0.5, 1.0):
        reply = budgets(server, prompt_tokens=1000, size={"retention": retention})
        assert reply.byte_budget == LAYERS * round(1000 * retention) * model.kv_bytes_per_position_layer
        assert before < reply.kv_bytes <= reply.byte_budget
        assert sum(layer.kv_bytes for layer in reply.layers) == reply.kv_bytes
        assert sum(layer.positions for layer in reply.layers) == reply.total_positions
        before = reply.kv_bytes
    # Everything, in the finest type that the plan may choose.
    assert reply.full and reply.kv_bytes == reply.full_kv_bytes
    assert {layer.key_type for layer in reply.layers} == {int8}
    small = budgets(server, prompt_tokens=1000, size={"total_bytes": 100_000})
    assert small.kv_bytes <= 100_000 == small.byte_budget
    assert stubs().profile.KV_TYPE_INT4 in {layer.value_type for layer in small.layers}
    # Other allocators on the same measurements choose no types.
    for allocator in ({"isolated_damage": {"retention": 0.5}}, {"local_response": {}}):
        reply = budgets(server, prompt_tokens=1000, size={"retention": 0.5}, allocator=allocator)
        assert reply.total_positions == LAYERS * 500 and not reply.plan.chooses_types
        assert len({layer.positions for layer in reply.layers}) > 1
        assert {layer.key_type for layer in reply.layers} == {int8}


def test_the_defaults_measure_what_their_plan_needs(tiny_model_path, tmp_path):
    with Server(
        binary("ripplekv-server"), tmp_path / "log", model=tiny_model_path, profile_dir=tmp_path / "profiles",
        calibration_examples=2, calibration_prefix=128, calibration_window=16,
    ) as server:  # fmt: skip
        wait_until(lambda: plan_source(server) == stubs().profile.PLAN_SOURCE_PROFILE)
        model = server.model()
        assert model.plan.allocator.HasField("damage_curves") and model.plan.chooses_types
        _, _, _, complete = generate(server, text="x" * 900, stopping={"max_tokens": 4})
        assert 0 < complete.cache.kv_bytes < complete.cache.full_kv_bytes


def test_without_a_profile(start_server, tiny_model_path):
    server = start_server(model=tiny_model_path, calibration="off", calibration_prefix=128)
    assert plan_source(server) == stubs().profile.PLAN_SOURCE_UNIFORM
    assert "--calibration is off" in server.model().plan_status
    with pytest.raises(grpc.RpcError) as refused:
        list(calibrate(server))
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "--calibration off" in refused.value.details()
    for call in (lambda: all_calibrations(server), lambda: cancel(server, "calibration-1")):
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "--calibration off" in refused.value.details()
    with pytest.raises(grpc.RpcError) as missing:
        get_profile(server)
    assert missing.value.code() == grpc.StatusCode.NOT_FOUND
    assert "CalibrateModel" in missing.value.details()
    assert listed(server) == [[]]
    assert budgets(server, prompt_tokens=2000).plan.source == stubs().profile.PLAN_SOURCE_UNIFORM
    with pytest.raises(grpc.RpcError) as refused:  # there is nothing to divide by
        budgets(server, prompt_tokens=2000, allocator={"ripple": {}})
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(grpc.RpcError) as refused:
        generate(server, text="x", kv={"allocator": {"ripple": {}}})
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "uniform" in refused.value.details()
    for kv in (
        {"allocator": {"damage_curves": {}}},
        {"allocator": {"local_response": {}}},
        {"size": {"target_mean_kl": 0.05}},
    ):
        with pytest.raises(grpc.RpcError) as refused:
            generate(server, text="x" * 600, kv=kv)
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION, kv
    with pytest.raises(grpc.RpcError) as refused:
        generate(server, text="x", kv={"allocator": {"positions": {"positions": [50] * LAYERS}}, "size": {"full": {}}})
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_it_serves_with_the_uniform_plan_until_the_profile_is_there(start_server, tiny_model_path):
    server = start_server(
        model=tiny_model_path, calibration_examples=350, calibration_prefix=256, calibration_window=160
    )
    assert plan_source(server) == stubs().profile.PLAN_SOURCE_UNIFORM
    assert "calibrating" in server.model().plan_status and "350 examples" in server.model().plan_status
    assert server.metrics()['ripplekv_plan_info{source="uniform"}'] == 1
    assert "plan_in_force source=uniform" in server.log_text()
    # A request does not wait for the measurement.
    assert generate(server, text="Now", stopping={"max_tokens": 8, "ignore_eos": True})[1]
    assert server.metrics()["ripplekv_calibration_running"] == 1
    # CalibrateModel of the same joins the server's own measurement, which goes on when this caller leaves.
    caller = Caller(server, {})
    assert caller.started.joined
    caller.call.cancel()
    wait_until(lambda: plan_source(server) == stubs().profile.PLAN_SOURCE_PROFILE, 300, "the profile")
    assert server.model().plan_status == ""
    assert server.model().plan.profile_id == caller.started.profile_id
    assert "plan_in_force source=profile" in server.log_text()
    assert server.metrics()["ripplekv_calibration_duration_seconds_count"] == 1


def test_waiting_for_the_profile(start_server, tiny_model_path):
    server = start_server(
        wait=False,
        model=tiny_model_path,
        calibration_examples=350,
        calibration_prefix=256,
        calibration_window=160,
        wait_for_profile=True,
    )
    server.wait_for_log("calibration_started")
    assert server.health() == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(grpc.RpcError) as refused:
        generate(server, text="x")
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "--wait-for-profile" in refused.value.details() and "calibrating" in refused.value.details()
    server.wait_until_serving(300)
    assert plan_source(server) == stubs().profile.PLAN_SOURCE_PROFILE
    assert generate(server, text="x", stopping={"max_tokens": 2, "ignore_eos": True})[1]


def test_a_request_waits_for_one_slice_at_most(start_server, model_path, tokenize, corpus_texts):
    """A slice is one layer of one example, a thirtieth of the example's prefix pass; the default settings."""
    server = start_server(model=model_path)
    server.wait_for_log("calibration_started")
    waits, passes = [], []
    prompt = tokenize(corpus_texts[3])[:1024]
    for _ in range(2):
        ids = {"ids": prompt[:16]}
        waits += [generate(server, token_ids=ids, stopping={"max_tokens": 1})[3].timings.queue_seconds for _ in range(3)]
        passes.append(generate(server, token_ids={"ids": prompt}, stopping={"max_tokens": 1})[3].timings.prefill_seconds)
    metrics = server.metrics()
    assert metrics["ripplekv_calibration_running"] == 1, "the measurement must run all the while"
    print(f"longest wait {max(waits):.3f} s, a prefix pass {min(passes):.3f} s")
    assert max(waits) < min(passes) / 3
    before = metrics["ripplekv_calibration_progress_ratio"]
    wait_until(lambda: server.metrics()["ripplekv_calibration_progress_ratio"] > before, 60, "progress")


def slow_start(start_server, model, **more):
    """A server whose own measurement takes seconds, and that measurement's id."""
    server = start_server(
        model=model,
        min_positions=0,
        calibration_examples=350,
        calibration_prefix=LONG["prefix_tokens"],
        calibration_window=LONG["window_tokens"],
        **more,
    )
    own = all_calibrations(server)[0][0]
    assert own.state == stubs().calibration.CALIBRATION_STATE_RUNNING and own.detached and own.listeners == 1
    return server, own.job_id


def test_the_plan_changes_under_running_requests(start_server, tiny_model_path):
    """Requests before, across and after a change of the plan succeed, each by one of the plans. The server's own
    measurement is cancelled first: it is not tried again."""
    server, own = slow_start(start_server, tiny_model_path)
    assert cancel(server, own).calibration.state == stubs().calibration.CALIBRATION_STATE_CANCELLED
    wait_until(lambda: "CancelCalibration" in server.model().plan_status)
    assert own in server.model().plan_status and "CalibrateModel" in server.model().plan_status
    prompt = {"ids": [32 + i * 7 % 90 for i in range(500)]}
    kept, failures, stop = [], [], threading.Event()

    def ask():
        while not stop.is_set():
            try:
                complete = generate(server, token_ids=prompt, stopping={"max_tokens": 8, "ignore_eos": True})[3]
                kept.append([layer.positions_kept for layer in complete.cache.layers])
            except grpc.RpcError as error:
                failures.append(error)

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        wait_until(lambda: len(kept) >= 3, what="answers before the change")
        assert plan_source(server) == stubs().profile.PLAN_SOURCE_UNIFORM
        complete = completion(calibrate(server, {}))
        assert complete.in_force
        plan = server.model().plan
        assert plan.source == stubs().profile.PLAN_SOURCE_PROFILE and plan.profile_id == complete.profile.profile_id
        assert server.model().plan_status == ""
        answers = len(kept)
        wait_until(lambda: len(kept) >= answers + 6, what="answers after the change")
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert not failures, failures[0]
    sums = {sum(layers) for layers in kept}
    assert len(sums) == 1, "both plans give the same total"
    assert len(set(kept[0])) == 1, "the plan without a profile is uniform"
    planned = budgets(server, prompt_tokens=len(prompt["ids"]))
    assert kept[-1] == [layer.positions for layer in planned.layers] != kept[0]
    assert all(layers in (kept[0], kept[-1]) for layers in kept)
    assert server.log_text().count("calibration_started") == 2 and "calibration_retry" not in server.log_text()


def test_a_profile_directory_that_breaks_while_it_measures(start_server, tiny_model_path, tmp_path):
    """The caller hears, the plan stays, the server serves on; once the directory is mended everything works."""
    folder = tmp_path / "profiles"
    server, own = slow_start(start_server, tiny_model_path, profile_dir=folder)
    caller = Caller(server, {})
    assert caller.started.job_id == own
    plan = server.model().plan
    shutil.rmtree(folder)
    folder.write_text("not a directory any more")
    assert caller.result() == grpc.StatusCode.FAILED_PRECONDITION
    for word in (own, "cannot be stored", str(folder)):
        assert word in caller.details
    failed = find_calibration(server, own)
    assert failed.state == stubs().calibration.CALIBRATION_STATE_FAILED
    assert failed.error.code == caller.code.value[0] and failed.error.message == caller.details
    wait_until(lambda: "tried again after 10 s" in server.model().plan_status, what="the retry to be said")
    assert "cannot be stored" in server.model().plan_status
    assert "calibration_retry" in server.log_text() and calibrations(server, "failed") == 1
    assert server.model().plan == plan
    assert server.health() == health_pb2.HealthCheckResponse.SERVING
    assert generate(server, text="x", stopping={"max_tokens": 2, "ignore_eos": True})[1]
    with pytest.raises(grpc.RpcError) as refused:
        listed(server)
    assert str(folder) in refused.value.details()
    folder.unlink()
    folder.mkdir()
    # Another call, or the server's next try where that comes first.
    assert completion(calibrate(server, {})).in_force
    assert server.model().plan.source == stubs().profile.PLAN_SOURCE_PROFILE and server.model().plan_status == ""


def test_the_servers_own_measurement_is_tried_again(start_server, tiny_model_path, tmp_path):
    folder = tmp_path / "profiles"
    server, own = slow_start(start_server, tiny_model_path, profile_dir=folder)
    folder.rename(tmp_path / "away")
    wait_until(lambda: "tried again" in server.model().plan_status, 300, "the first try's failure")
    (tmp_path / "away").rename(folder)
    wait_until(lambda: plan_source(server) == stubs().profile.PLAN_SOURCE_PROFILE, 300, "the second try's profile")
    states = [c.state for c in all_calibrations(server)[0]]
    pb = stubs().calibration
    assert states == [pb.CALIBRATION_STATE_SUCCEEDED, pb.CALIBRATION_STATE_FAILED]
