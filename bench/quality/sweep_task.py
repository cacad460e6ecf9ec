"""What a profile's settings change: of one setting at a time, the profile, how well it foretells the damage of compressing a
layer alone, and what a plan made from it does on documents."""

import functools

from . import bootstrap, fidelity_task, methods

# Fields of CalibrationSettings by their options.
SETTINGS = {"eta": "eta", "examples": "examples", "window": "window_tokens", "prefix": "prefix_tokens", "seed": "seed"}


def points(options, settings):
    """(option, value) of every profile besides the server's own."""
    return [
        (name, value)
        for name, field in SETTINGS.items()
        for value in getattr(options, name)
        if value != getattr(settings, field)
    ]


def calibrate(client, settings, name, value):
    """Sensitivities with one setting changed and nothing else measured; of the server's store where they are there."""
    plain = {field: getattr(settings, field) for field in ("examples", "prefix_tokens", "window_tokens", "eta", "sinks", "recent", "seed")}  # fmt: skip
    plain |= {SETTINGS[name]: value, "damage_examples": 0, "size_examples": 0}
    return described(client.calibrate(plain).profile)


def described(profile):
    found = {"sensitivity": [layer.mean_kl for layer in profile.layers], "examples": profile.examples_measured}
    if profile.HasField("split_half_spearman"):
        found["split_half"] = profile.split_half_spearman
    return found


def jobs(options, client, tokens, profile, results):
    """(key, measure) of every profile, then of every document under uniform shares and under each profile's."""
    if profile is None:
        raise ValueError(f"the server at {options.address} has no profile: ripplekv calibrate")
    changed = points(options, profile.settings)
    for name, value in changed:
        yield ("profile", name, value), functools.partial(calibrate, client, profile.settings, name, value)
    sensitivities = {("server", None): described(profile)["sensitivity"]}
    sensitivities |= {point: results["profile", *point]["sensitivity"] for point in changed}
    budgets = {point: positions(options, client, found) for point, found in sensitivities.items()}
    budgets["uniform", None] = positions(options, client, None)
    for document, ids in fidelity_task.picked(options, tokens, options.length + options.tokens):
        prompt, rest = ids[: options.length], ids[options.length : options.length + options.tokens]
        for (name, value), kept in budgets.items():
            kv = {"allocator": {"positions": {"positions": kept}}, "selector": methods.SNAPKV, **methods.BF16}
            measure = functools.partial(fidelity_task.measure, client, document.name, prompt, rest, lambda _, kv=kv: kv)
            yield ("documents", name, value, document.digest), measure


def positions(options, client, sensitivities):
    """Positions each layer keeps under ripple with these sensitivities, or in equal shares."""
    how = {"allocator": methods.UNIFORM}
    if sensitivities is not None:
        how = {"allocator": {"ripple": methods.ripple(options.r)}, "inline": {"mean_kl": sensitivities}}
    plan = client.plan(options.length, size={"retention": options.fraction}, min_positions=0, **how)
    return [layer.positions for layer in plan.layers]


def summary(results, profile):
    """A line a profile: the server's own first."""
    damage = None
    if profile.HasField("damage_agreement"):
        at = list(profile.settings.damage_retentions).index(profile.damage_agreement.retention)
        damage = [layer.retentions[at].damage.mean_kl for layer in profile.layers]
    own = described(profile)
    profiles = {("server", None): own}
    profiles |= {key[1:]: result for key, result in results.items() if key[0] == "profile"}
    documents = {}
    for key, result in results.items():
        if key[0] == "documents":
            documents.setdefault(key[1:3], {})[key[3]] = result["mean_kl"]
    uniform = documents["uniform", None]
    order = sorted(uniform)

    def kl(point):
        return [documents[point][document] for document in order]

    found = [{"setting": "uniform", "value": None, "mean_kl": bootstrap.mean(kl(("uniform", None)))}]
    for point, entry in profiles.items():
        values = entry["sensitivity"]
        line = {
            "setting": point[0],
            "value": point[1],
            "skew": max(values) / min(values) if min(values) > 0 else None,
            "split_half": entry.get("split_half"),
            "to_own": float(bootstrap.spearman(values, own["sensitivity"])),
            "to_damage": None if damage is None else float(bootstrap.spearman(values, damage)),
            "mean_kl": bootstrap.mean(kl(point)),
            "kl_ratio": bootstrap.ratio(kl(point), kl(("uniform", None))),
        }
        if point != ("server", None):
            line["kl_to_own"] = bootstrap.ratio(kl(point), kl(("server", None)))
        found.append(line)
    return found
