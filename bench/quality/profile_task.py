"""The sensitivity profile as it was measured, and the server's own plan made from it."""

from report import table  # bench/report.py

from . import draw


def run(options, client, profile, command):
    if profile is None:
        raise ValueError(f"the server at {options.address} has no profile: ripplekv calibrate")
    import ripplekv.v1.profile_pb2 as pb
    from google.protobuf import json_format

    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "profile.json").write_text(json_format.MessageToJson(profile) + "\n", encoding="utf-8")
    retentions = list(profile.settings.damage_retentions)
    rows = [
        [
            "layer",
            "sensitivity, nats",
            "standard error",
            "local response",
            *(f"damage at {100 * r:g} %" for r in retentions),
        ]
    ]
    for entry in profile.layers:
        error = f"{entry.standard_error:.2g}" if entry.HasField("standard_error") else "-"
        damages = [f"{found.damage.mean_kl:.3g}" for found in entry.retentions]
        rows.append([entry.layer, f"{entry.mean_kl:.4g}", error, f"{entry.local_response:.3g}", *damages])
    settings = profile.settings
    about = (
        f"{profile.examples_measured} examples of {profile.corpus_name}, prefix {settings.prefix_tokens}, window "
        f"{settings.window_tokens}, eta {settings.eta:g}, {pb.ComputeType.Name(profile.compute_type)}"
    )
    if profile.HasField("split_half_spearman"):
        about += f"; rank correlation of the two halves {profile.split_half_spearman:.3f}"
    about += agreement_text(profile)
    text = f"# Sensitivity of {profile.model_name}\n\n`{command}`\n\n{about}\n\n{table(rows)}\n{sizes_text(profile)}"
    (options.out / "results.md").write_text(text, encoding="utf-8")
    print(text)
    if draw.available():
        errors = [entry.standard_error for entry in profile.layers]
        tokens = settings.prefix_tokens
        plan = client.plan(tokens, min_positions=0).layers
        layers = [entry.mean_kl for entry in profile.layers]
        draw.profile(layers, errors, plan, tokens, profile.model_name, options.out / "profile.png")
        if profile.HasField("damage_agreement"):
            draw_damage(profile, options.out / "damage.png")
    else:
        print(draw.MISSING)


def sizes_text(profile):
    """The mean KL of the whole plan by size and prompt length."""
    if not profile.sizes:
        return ""
    rows = [["tokens", "retention", "mean KL, nats", "standard error"]]
    for entry in profile.sizes:
        damage = entry.damage
        error = f"{damage.standard_error:.2g}" if damage.HasField("standard_error") else "-"
        rows.append([entry.prompt_tokens, f"{entry.retention:g}", f"{damage.mean_kl:.3g}", error])
    return f"\nThe whole plan by size:\n\n{table(rows)}\n"


def agreement_text(profile):
    """How well what was measured of each layer foretells what compressing it alone costs."""
    if not profile.HasField("damage_agreement"):
        return ""
    agreement = profile.damage_agreement
    text = f"\n\nRank correlation with the damage of compressing a layer alone to {100 * agreement.retention:g} %:"
    for name, title in (("sensitivity", "sensitivity"), ("layer_index", "index"), ("local_response", "local response")):
        if agreement.HasField(name):
            rho = getattr(agreement, name)
            text += f" {title} {rho.spearman:.2f} [{rho.low:.2f}, {rho.high:.2f}]."
    return text


def draw_damage(profile, path):
    agreement = profile.damage_agreement
    at = list(profile.settings.damage_retentions).index(agreement.retention)
    damages = []
    for layer in profile.layers:
        damage = layer.retentions[at].damage
        spread = 1.96 * damage.standard_error
        damages.append({"value": damage.mean_kl, "low": damage.mean_kl - spread, "high": damage.mean_kl + spread})
    rho = agreement.sensitivity
    interval = {"value": rho.spearman, "low": rho.low, "high": rho.high}
    draw.damage([layer.mean_kl for layer in profile.layers], damages, interval, path)
