"""The ways to compress that are compared, as what a request says of them."""

import dataclasses
import json
import math


@dataclasses.dataclass(frozen=True)
class Method:
    name: str
    title: str
    kv: dict  # KvParams without a size
    sized: bool = True  # False: keeps every position, whatever the size


UNIFORM = {"uniform": {}}
# Every parameter is said, so that no default of a server decides what a name means.
SNAPKV = {"snapkv": {"window": 32, "kernel": 7, "pooling": "POOLING_MAX"}}
RECENT = {"recent_attention": {"window": 32, "queries": 256, "kernel": 7, "pooling": "POOLING_NONE"}}
MIXED = {"mixed": {"snapkv": SNAPKV["snapkv"], "queries": 256, "weight": 0.5}}
CURVES = {"damage_curves": {"least_share": 0.0}}
INT8 = {"key_type": "KV_TYPE_INT8", "value_type": "KV_TYPE_INT8"}
INT8_INT4 = {"key_type": "KV_TYPE_INT8", "value_type": "KV_TYPE_INT4"}
INT4 = {"key_type": "KV_TYPE_INT4", "value_type": "KV_TYPE_INT4"}


def ripple(r, signal_map="SIGNAL_MAP_MIN_MAX"):
    return {"r": r, "gamma": 16.0, "map": signal_map}


def h2o(normalised):
    return {"h2o": {"window": 32, "queries": 256, "normalised": normalised}}


def by(allocator, selector=SNAPKV, **more):
    return {"allocator": allocator, "selector": selector, **more}


ALL = (
    Method("full", "every position", {"size": {"full": {}}}, sized=False),
    Method("snapkv", "SnapKV, uniform", by(UNIFORM)),
    # Which rows: selectors, with uniform shares.
    Method("streaming", "StreamingLLM", by(UNIFORM, {"streaming_llm": {"window": 32}})),
    Method("h2o", "H2O, uniform", by(UNIFORM, h2o(False))),
    Method("h2o-normalised", "H2O normalised, uniform", by(UNIFORM, h2o(True))),
    Method("recent", "attention of the last 256 queries, uniform", by(UNIFORM, RECENT)),
    Method("mixed", "SnapKV and the last 256 queries, uniform", by(UNIFORM, MIXED)),
    Method("random", "random rows, uniform", by(UNIFORM, {"random": {"window": 32, "seed": 1}})),
    # How many rows a layer: allocators, with SnapKV.
    Method("pyramid", "PyramidKV, beta 20", by({"pyramid": {"beta": 20}})),
    *(Method(f"ripple-{r:g}", f"ripple, r {r:g}", by({"ripple": ripple(r)})) for r in (1.25, 1.5, 1.75, 3.0, 8.0)),
    Method("ripple-log-8", "ripple, r 8, of logarithms", by({"ripple": ripple(8.0, "SIGNAL_MAP_LOG")})),
    Method("ripple-rank-8", "ripple, r 8, of ranks", by({"ripple": ripple(8.0, "SIGNAL_MAP_RANK")})),
    Method("sqrt", "square root of the sensitivity", by({"sqrt": {}})),
    Method("inverse-1.5", "inverse ripple, r 1.5 (control)", by({"inverse_ripple": {"ripple": ripple(1.5)}})),
    Method(
        "shuffled-1.5", "shuffled ripple, r 1.5 (control)", by({"shuffled_ripple": {"ripple": ripple(1.5), "seed": 1}})
    ),
    Method("inverse-8", "inverse ripple, r 8 (control)", by({"inverse_ripple": {"ripple": ripple(8.0)}})),
    Method("shuffled-8", "shuffled ripple, r 8 (control)", by({"shuffled_ripple": {"ripple": ripple(8.0), "seed": 1}})),
    Method("local-8", "ripple of the layer's own response, r 8", by({"local_response": {"ripple": ripple(8.0)}})),
    Method(
        "isolated-8",
        "ripple of isolated damage, r 8",
        by({"isolated_damage": {"ripple": ripple(8.0), "retention": 0.1}}),
    ),
    Method("curves", "damage curves", by(CURVES)),
    # In how many bits.
    Method("int8", "int8 rows, uniform", by(UNIFORM, **INT8)),
    Method("int8-int4", "int8 keys, int4 values, uniform", by(UNIFORM, **INT8_INT4)),
    Method("int4", "int4 rows, uniform", by(UNIFORM, **INT4)),
    Method("int8-ripple-8", "int8 rows, ripple, r 8", by({"ripple": ripple(8.0)}, **INT8)),
    Method("int4-ripple-8", "int4 rows, ripple, r 8", by({"ripple": ripple(8.0)}, **INT4)),
    Method("int8-curves", "int8 rows, damage curves", by(CURVES, **INT8)),
    Method("int4-curves", "int4 rows, damage curves", by(CURVES, **INT4)),
    Method("int8-recent-curves", "int8 rows, last 256 queries, damage curves", by(CURVES, RECENT, **INT8)),
    Method("int4-recent-curves", "int4 rows, last 256 queries, damage curves", by(CURVES, RECENT, **INT4)),
    # What a request gets that says nothing but a size.
    Method("server", "the server's own plan", {}),
)
METHODS = {method.name: method for method in ALL}
BASELINE = "snapkv"


def named(names):
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise ValueError(f"no method {', '.join(unknown)}; there are {', '.join(METHODS)}")
    return [METHODS[name] for name in names]


def said(kv):
    """What a request says of a method, as text. Results are kept under it, so that those of a method that meant something
    else are not taken for this one's."""
    return json.dumps(kv, sort_keys=True)


class Sizing:
    """Sizes in bytes: shares of what all rows of a prompt take as the server stores them by itself. They hold for every
    method, whatever it stores rows in."""

    def __init__(self, layers, row_bytes):
        self._layers, self._row_bytes = layers, row_bytes

    def kv(self, method, fraction):
        """A request's kv as a function of the tokens that are compressed."""
        if not method.sized:
            return lambda tokens: method.kv

        def kv(tokens):
            rows = self._layers * math.floor(fraction * tokens)
            return {**method.kv, "size": {"total_bytes": max(1, rows) * self._row_bytes}}

        return kv


def cells(methods, fractions):
    """[(method, fraction)] that are measured; what is not sized is measured once."""
    return [(m, f) for m in methods for f in (fractions if m.sized else (None,))]
