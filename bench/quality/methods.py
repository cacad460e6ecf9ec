"""The ways to compress that are compared, as what a request says of them."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Method:
    name: str
    title: str
    kv: dict  # KvParams without a size
    sized: bool = True  # False: keeps every position, whatever the size


UNIFORM = {"uniform": {}}
SNAPKV = {"snapkv": {"window": 32, "kernel": 7, "pooling": "POOLING_MAX"}}


def ripple(r):
    return {"allocator": {"ripple": {"r": r}}, "selector": SNAPKV}


ALL = (
    Method("full", "every position", {"size": {"full": {}}}, sized=False),
    Method("snapkv", "SnapKV, uniform", {"allocator": UNIFORM, "selector": SNAPKV}),
    *(Method(f"ripple-{r:g}", f"ripple, r {r:g}", ripple(r)) for r in (1.25, 1.5, 1.75, 3.0, 8.0)),
)
METHODS = {method.name: method for method in ALL}
BASELINE = "snapkv"


def named(names):
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise ValueError(f"no method {', '.join(unknown)}; there are {', '.join(METHODS)}")
    return [METHODS[name] for name in names]


class Sizing:
    """Sizes as shares of what all rows of a prompt take as the server stores them by itself."""

    def __init__(self, layers, row_bytes):
        self._layers, self._row_bytes = layers, row_bytes

    def kv(self, method, fraction):
        """A request's kv as a function of the tokens that are compressed."""
        if not method.sized:
            return lambda tokens: method.kv
        return lambda tokens: {**method.kv, "size": {"retention": fraction}}


def cells(methods, fractions):
    """[(method, fraction)] that are measured; what is not sized is measured once."""
    return [(m, f) for m in methods for f in (fractions if m.sized else (None,))]
