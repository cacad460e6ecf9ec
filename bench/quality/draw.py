"""Pictures of the results, by matplotlib (bench/quality/requirements.txt)."""

MISSING = "no pictures: matplotlib is not installed (.venv/bin/pip install --no-deps -r bench/quality/requirements.txt)"


def available():
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    return True


def figure_of(width, height):
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), layout="constrained")


def save(figure, path):
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def error_bars(intervals):
    """[below, above], as errorbar takes them."""
    below = [max(0.0, i["value"] - i.get("low", i["value"])) for i in intervals]
    above = [max(0.0, i.get("high", i["value"]) - i["value"]) for i in intervals]
    return [below, above]


def kl_against_bytes(summary, titles, length, path):
    """A line a method over the share of the full cache's bytes."""
    from matplotlib import pyplot

    figure, axes = figure_of(10, 5)
    colours, markers = pyplot.colormaps["tab10"].colors, "osv^D"
    lines = 0
    for method, title in titles.items():
        entries = [e for e in summary if e["length"] == length and e["method"] == method and e["fraction"] is not None]
        entries.sort(key=lambda e: e["bytes_share"])
        if not entries:
            continue
        x, y = [100 * e["bytes_share"] for e in entries], [e["mean_kl"]["value"] for e in entries]
        axes.errorbar(
            x, y, error_bars([e["mean_kl"] for e in entries]), label=title, capsize=2, markersize=5,
            color=colours[lines % len(colours)], marker=markers[lines // len(colours) % len(markers)],
        )  # fmt: skip
        lines += 1
    axes.set_yscale("log")
    axes.set_xlabel("bytes of keys and values, % of the full cache")
    axes.set_ylabel("mean KL to the full cache, nats a token")
    axes.set_title(f"after {length} tokens")
    figure.legend(loc="outside right upper", fontsize="small")
    save(figure, path)


def profile(layers, standard_errors, plan, tokens, name, path):
    """Sensitivity of each layer with its standard error, and what the plan keeps of a prompt of so many tokens."""
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    above.bar(range(len(layers)), layers, yerr=standard_errors, color="#3b6ea5", capsize=2)
    above.set_ylabel("sensitivity: mean KL, nats")
    above.set_title(name)
    types = [types_of(layer) for layer in plan]
    colours = dict(zip(sorted(set(types)), pyplot.colormaps["tab10"].colors, strict=False))
    for said, colour in colours.items():
        at = [i for i, kind in enumerate(types) if kind == said]
        below.bar(at, [plan[i].positions for i in at], color=colour, label=said)
    below.axhline(tokens, color="grey", linewidth=0.7, linestyle="--")
    below.set_ylabel(f"positions kept of {tokens:,}")
    below.set_xlabel("layer")
    below.legend(title="keys, values in", fontsize="small", ncols=len(colours))
    save(figure, path)


def types_of(layer):
    """What a layer's keys and values are stored in, as the server's --kv-type says it."""
    import ripplekv.v1.profile_pb2 as pb

    keys, values = (pb.KvType.Name(t).removeprefix("KV_TYPE_").lower() for t in (layer.key_type, layer.value_type))
    return keys if keys == values else f"{keys}:{values}"


def damage(sensitivities, damages, rho, path):
    """What compressing a layer alone costs against its sensitivity."""
    figure, axes = figure_of(6, 5)
    values = [d["value"] for d in damages]
    axes.errorbar(sensitivities, values, error_bars(damages), fmt="o", markersize=4, elinewidth=0.7)
    for layer, (x, y) in enumerate(zip(sensitivities, values, strict=True)):
        axes.annotate(str(layer), (x, y), fontsize="x-small", xytext=(3, 3), textcoords="offset points")
    if min(sensitivities) > 0 and min(values) > 0:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel("sensitivity of the layer: mean KL, nats")
    axes.set_ylabel("damage where it alone is compressed: mean KL, nats")
    axes.set_title(f"Spearman {rho['value']:.2f}" + (f" [{rho['low']:.2f}, {rho['high']:.2f}]" if "low" in rho else ""))
    save(figure, path)
