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
    chosen_types: bool = False  # the plan chooses what each layer's rows are stored in


UNIFORM = {"uniform": {}}
# Every parameter is said, so that no default of a server decides what a name means.
SNAPKV = {"snapkv": {"window": 32, "kernel": 7, "pooling": "POOLING_MAX"}}
RECENT = {"recent_attention": {"window": 32, "queries": 256, "kernel": 7, "pooling": "POOLING_NONE"}}
MIXED = {"mixed": {"snapkv": SNAPKV["snapkv"], "queries": 256, "weight": 0.5}}
CURVES = {"damage_curves": {"least_share": 0.0}}
BF16 = {"key_type": "KV_TYPE_BF16", "value_type": "KV_TYPE_BF16"}
INT8 = {"key_type": "KV_TYPE_INT8", "value_type": "KV_TYPE_INT8"}
INT8_INT4 = {"key_type": "KV_TYPE_INT8", "value_type": "KV_TYPE_INT4"}
INT4 = {"key_type": "KV_TYPE_INT4", "value_type": "KV_TYPE_INT4"}


def ripple(r, signal_map="SIGNAL_MAP_MIN_MAX"):
    return {"r": r, "gamma": 16.0, "map": signal_map}


def h2o(normalised):
    return {"h2o": {"window": 32, "queries": 256, "normalised": normalised}}


def by(allocator, selector=SNAPKV, types=BF16):
    return {"allocator": allocator, "selector": selector, **types}


def chosen(name, title, least_share, selector=SNAPKV):
    """Rows and types of each layer by the damage curves, from one budget in bytes."""
    kv = {"allocator": {"damage_curves": {"least_share": least_share}}, "selector": selector}
    return Method(name, title, kv, chosen_types=True)


ALL = (
    Method("full", "every position", {"size": {"full": {}}, **BF16}, sized=False),
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
    Method("int8", "int8 rows, uniform", by(UNIFORM, types=INT8)),
    Method("int8-int4", "int8 keys, int4 values, uniform", by(UNIFORM, types=INT8_INT4)),
    Method("int4", "int4 rows, uniform", by(UNIFORM, types=INT4)),
    Method("int8-ripple-8", "int8 rows, ripple, r 8", by({"ripple": ripple(8.0)}, types=INT8)),
    Method("int4-ripple-8", "int4 rows, ripple, r 8", by({"ripple": ripple(8.0)}, types=INT4)),
    Method("int8-curves", "int8 rows, damage curves", by(CURVES, types=INT8)),
    Method("int4-curves", "int4 rows, damage curves", by(CURVES, types=INT4)),
    Method("int8-recent-curves", "int8 rows, last 256 queries, damage curves", by(CURVES, RECENT, types=INT8)),
    Method("int4-recent-curves", "int4 rows, last 256 queries, damage curves", by(CURVES, RECENT, types=INT4)),
    # Bytes shared by rows and bits together.
    chosen("auto", "damage curves, types too", 0.0),
    chosen("auto-half", "damage curves, types too, at least half the mean", 0.5),
    chosen("auto-recent", "damage curves, types too, last 256 queries", 0.0, RECENT),
    chosen("auto-recent-half", "damage curves, types too, last 256 queries, at least half the mean", 0.5, RECENT),
    chosen("auto-mixed", "damage curves, types too, SnapKV and the last 256 queries", 0.0, MIXED),
    chosen("auto-h2o", "damage curves, types too, H2O normalised", 0.0, h2o(True)),
    # What a request gets that says nothing but a size: "auto" where nobody set the server otherwise.
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
    """Sizes in bytes: shares of what all rows of a prompt take in bf16. They hold for every method, whatever it stores rows
    in."""

    def __init__(self, layers, row_bytes, own_row_bytes):
        """Bytes of a layer's row in bf16, and as the server stores it by itself."""
        self._layers, self._row_bytes, self._own_row_bytes = layers, row_bytes, own_row_bytes

    @classmethod
    def of(cls, model):
        shape = model.model
        # Keys, values and a position of each KV head.
        return cls(shape.layers, shape.kv_heads * (2 * 2 * shape.head_dim + 4), model.kv_bytes_per_position_layer)

    def in_bf16(self, result):
        """The result with the bytes of all its rows in bf16 instead of the server's own types."""
        if "full_kv_bytes" not in result:
            return result
        return {**result, "full_kv_bytes": result["full_kv_bytes"] // self._own_row_bytes * self._row_bytes}

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
