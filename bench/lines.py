"""The speed that RippleKV is to have beside others, as ratios within one run, and whether a run shows it."""

import statistics


def rounds_of(results, case, key, figure):
    found = results.get(case, {}).get(key)
    return found["figures"].get(figure) if found else None


def ratio(results, figure, case, mine, theirs):
    """The median of the rounds' ratios. None where one was not measured."""
    a, b = rounds_of(results, case, mine, figure), rounds_of(results, case, theirs, figure)
    if not a or not b or None in a or None in b:
        return None
    each = [x / y for x, y in zip(a, b)]
    return {"ratio": statistics.median(each), "min": min(each), "max": max(each)}


def fastest_llama(results, figure, case):
    """The key of llama.cpp's fastest type in a case."""
    speeds = {}
    for key in ("llama-q4_1", "llama-q4_0", "llama-bf16"):
        values = rounds_of(results, case, key, figure)
        if values and None not in values:
            speeds[key] = statistics.median(values)
    return max(speeds, key=speeds.get) if speeds else None


def at_least(number, text, found, least):
    return {"line": number, "text": text, "needed": f">= {least:g}", **(found or {}),
            "holds": None if found is None else found["ratio"] >= least}  # fmt: skip


def at_most(number, text, found, most):
    return {"line": number, "text": text, "needed": f"<= {most:g}", **(found or {}),
            "holds": None if found is None else found["ratio"] <= most}  # fmt: skip


def verdicts(results, alone):
    """One entry a requirement; holds is None where the run did not measure it. `alone`: what was measured of RippleKV by
    itself, by name."""

    def versus(number, text, figure, case, mine, theirs, least):
        return at_least(number, text, ratio(results, figure, case, mine, theirs), least)

    def versus_llama(number, text, figure, case, mine, least):
        key = fastest_llama(results, figure, case)
        return versus(number, f"{text} ({key or 'none measured'})", figure, case, mine, key, least)

    lines = [
        versus(1, "decode, 1 short sequence: llama.cpp Q4_1", "decode", "short", "ours", "llama-q4_1", 2),
        versus(1, "decode, 1 short sequence: llama.cpp Q4_0", "decode", "short", "ours", "llama-q4_0", 1.6),
        versus(1, "decode, 1 sequence of 8192 at 0.1: OpenVINO GenAI, eviction", "decode", "8192", "ours-10",
               "openvino-10", 3.5),
        versus(1, "decode, 8192 at 0.1: own speed over as many uncompressed rows", "decode", "kept rows", "ours-10",
               "ours", 0.95),
        versus(2, "decode, 8 sequences of 8192 at 0.1: OpenVINO GenAI, eviction", "decode", "8 x 8192", "ours-10",
               "openvino-10", 3.5),
        versus_llama(2, "decode, 8 sequences of 8192 at 0.1: llama.cpp's fastest", "decode", "8 x 8192", "ours-10", 19),
        versus(2, "decode, 8 sequences of 512, every position: OpenVINO GenAI", "decode", "8 x 512", "ours",
               "openvino", 2),
        versus(2, "decode, 8 sequences of 512, every position: ONNX Runtime GenAI", "decode", "8 x 512", "ours", "ort", 2),
    ]  # fmt: skip
    for case, least in (("512", 1.0), ("2048", 1.15), ("8192", 1.25)):
        lines.append(
            versus(3, f"prefill of {case}, compressed: OpenVINO GenAI", "prefill", case, "ours-10", "openvino", least)
        )
    for case, least in (("512", 1.6), ("8192", 5)):
        lines.append(
            versus_llama(3, f"prefill of {case}, compressed: llama.cpp's fastest", "prefill", case, "ours-10", least)
        )
    busy, start = alone.get("neighbour"), alone.get("start")
    lines += [
        at_least(6, "decode beside one busy process: idle speed", busy and {"ratio": busy["speed_ratio"]}, 0.5),
        at_most(6, "p99 of a step beside one busy process: idle median", busy and {"ratio": busy["p99_to_idle_median"]}, 3),
        at_most(7, "resident memory, 8 x 8192 at 0.1: OpenVINO GenAI, eviction",
                ratio(results, "peak_bytes", "8 x 8192", "ours-10", "openvino-10"), 0.5),
        at_most(9, "seconds from start to serving", start and {"ratio": start["seconds"]["median"]}, 2),
    ]  # fmt: skip
    return lines
