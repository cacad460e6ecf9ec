"""The sensitivity profile as it was measured."""

from report import table  # bench/report.py

from . import draw


def run(options, profile, command):
    if profile is None:
        raise ValueError(f"the server at {options.address} has no profile: ripplekv calibrate")
    import ripplekv.v1.profile_pb2 as pb
    from google.protobuf import json_format

    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "profile.json").write_text(json_format.MessageToJson(profile) + "\n", encoding="utf-8")
    rows = [["layer", "sensitivity, nats", "standard error"]]
    for entry in profile.layers:
        error = f"{entry.standard_error:.2g}" if entry.HasField("standard_error") else "-"
        rows.append([entry.layer, f"{entry.mean_kl:.4g}", error])
    settings = profile.settings
    about = (
        f"{profile.examples_measured} examples of {profile.corpus_name}, prefix {settings.prefix_tokens}, window "
        f"{settings.window_tokens}, eta {settings.eta:g}, {pb.ComputeType.Name(profile.compute_type)}"
    )
    if profile.HasField("split_half_spearman"):
        about += f"; rank correlation of the two halves {profile.split_half_spearman:.3f}"
    text = f"# Sensitivity of {profile.model_name}\n\n`{command}`\n\n{about}\n\n{table(rows)}\n"
    (options.out / "results.md").write_text(text, encoding="utf-8")
    print(text)
    if draw.available():
        errors = [entry.standard_error for entry in profile.layers]
        draw.profile([e.mean_kl for e in profile.layers], errors, profile.model_name, options.out / "profile.png")
    else:
        print(draw.MISSING)
