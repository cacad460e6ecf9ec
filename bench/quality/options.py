"""The command line of the quality bench."""

import argparse
import os
import pathlib

from bench_server import SOURCE

from . import methods, ruler, served

DEFAULT_METHODS = list(methods.METHODS)
QUICK_METHODS = ["full", "snapkv", "ripple-8"]


def positive(kind):
    def parse(text):
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} must be above 0")
        return value

    parse.__name__ = kind.__name__
    return parse


def fraction(text):
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} must be above 0 and at most 1")
    return value


def parser(description):
    top = argparse.ArgumentParser(
        prog="bench/quality", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name, title, quick):
        sub = commands.add_parser(name, help=title, description=title)
        sub.set_defaults(title=title, small=quick, default_of=sub.get_default)
        sub.add_argument(
            "--model",
            type=pathlib.Path,
            default=SOURCE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf",
            help="GGUF file",
        )
        sub.add_argument("--build", type=pathlib.Path, default=SOURCE / "build" / "release", help="build directory")
        sub.add_argument("--address", default="", help="measure the server there instead of starting one")
        sub.add_argument("--threads", type=positive(int), default=len(os.sched_getaffinity(0)), help="of the server")
        sub.add_argument(
            "--compute", choices=("bf16", "fp32"), default="bf16", help="arithmetic of the server (default: bf16)"
        )
        sub.add_argument("--kv-memory", default="1536MiB", help="of the server (default: 1536MiB)")
        sub.add_argument("--context-memory", default="512MiB", help="of the server (default: 512MiB)")
        sub.add_argument(
            "--profile-dir", type=pathlib.Path, help="profiles of the server (default: build/quality/profiles)"
        )
        sub.add_argument("--flag", dest="flags", action="append", default=[], metavar="NAME=VALUE",
                         help="another flag of the server, e.g. calibration-eta=1; may be repeated")  # fmt: skip
        sub.add_argument("--out", type=pathlib.Path, help=f"where results go (default: build/quality/{name})")
        sub.add_argument("--quick", action="store_true", help="everything small; the figures mean nothing")
        sub.set_defaults(retention=0.2)
        return sub

    def compared(sub):
        sub.add_argument(
            "--methods",
            nargs="+",
            metavar="METHOD",
            default=DEFAULT_METHODS,
            help="see the command methods (default: all)",
        )
        sub.add_argument("--fractions", nargs="+", type=fraction, default=[0.1, 0.2, 0.3],
                         help="sizes, as shares of the bytes of all rows in bf16 (default: 0.1 0.2 0.3)")  # fmt: skip

    def documented(sub):
        sub.add_argument("--documents", nargs="+", default=[], metavar="PATH",
                         help="files or folders: a document each, or WikiText's .raw (default: Python's manual and modules)")  # fmt: skip
        sub.add_argument(
            "--split", choices=("held-out", "tuning"), default="held-out", help="which half of them (default: held-out)"
        )

    def asked(sub):
        sub.add_argument("--question", nargs="+", choices=("visible", "hidden"), default=["visible", "hidden"],
                         help="compressed with the prompt, or asked over a compressed context (default: both)")  # fmt: skip

    sub = command("documents", "Fidelity on documents", {"lengths": [256], "tokens": 16, "count": 3})
    compared(sub)
    documented(sub)
    sub.add_argument(
        "--lengths",
        nargs="+",
        type=positive(int),
        default=[1024, 2048, 4096],
        help="of prompts, tokens (default: 1024 2048 4096)",
    )
    sub.add_argument("--tokens", type=positive(int), default=64, help="teacher-forced after the prompt (default: 64)")
    sub.add_argument("--count", type=positive(int), default=44, help="documents (default: 44)")

    sub = command("damage", "Damage of each layer alone", {"length": 256, "tokens": 16, "count": 2})
    documented(sub)
    sub.add_argument("--length", type=positive(int), default=1024, help="of prompts, tokens (default: 1024)")
    sub.add_argument(
        "--fraction", type=fraction, default=0.1, help="of positions that the one layer keeps (default: 0.1)"
    )
    sub.add_argument("--tokens", type=positive(int), default=64, help="teacher-forced after the prompt (default: 64)")
    sub.add_argument("--count", type=positive(int), default=44, help="documents (default: 44)")

    sub = command("sweep", "Settings of the profile", {"length": 256, "tokens": 16, "count": 2, "eta": [1.0], "examples": [2],
                                                       "window": []})  # fmt: skip
    documented(sub)
    for name, kind, values, what in (
        ("eta", float, [0.1, 0.25, 1.0, 2.0], "norm of the noise"),
        ("examples", int, [4, 8, 16, 48], "texts that are measured"),
        ("window", int, [16, 32, 128, 256], "tokens measured after the prefix"),
        ("prefix", int, [], "tokens before them"),
        ("seed", int, [], "of the noise"),
    ):
        said = " ".join(f"{value:g}" for value in values) or "none"
        sub.add_argument(f"--{name}", nargs="*", type=kind, default=values, help=f"{what} (default: {said})")
    sub.add_argument("--r", type=positive(float), default=8.0, help="of the plans made from the profiles (default: 8)")
    sub.add_argument("--fraction", type=fraction, default=0.2, help="of positions that a plan keeps (default: 0.2)")
    sub.add_argument("--length", type=positive(int), default=1024, help="of prompts, tokens (default: 1024)")
    sub.add_argument("--tokens", type=positive(int), default=64, help="teacher-forced after the prompt (default: 64)")
    sub.add_argument("--count", type=positive(int), default=44, help="documents (default: 44)")

    sub = command("target", "Sizes by target_mean_kl", {"lengths": [256], "tokens": 16, "count": 2, "sizes": 2})
    documented(sub)
    sub.add_argument("--targets", nargs="+", type=positive(float), default=[0.05], help="nats a token (default: 0.05)")
    sub.add_argument("--lengths", nargs="+", type=positive(int), default=[1024, 2048, 4096],
                     help="of prompts, tokens (default: 1024 2048 4096)")  # fmt: skip
    sub.add_argument("--tokens", type=positive(int), default=64, help="teacher-forced after the prompt (default: 64)")
    sub.add_argument("--count", type=positive(int), default=44, help="documents (default: 44)")
    sub.add_argument("--sizes", type=positive(int), default=16,
                     help="the server's --calibration-sizes: texts that the size is calibrated on (default: 16)")  # fmt: skip

    sub = command("efficiency", "Times and memory of a request", {"lengths": [256], "answer": 8, "rounds": 2})
    compared(sub)
    sub.set_defaults(methods=["full", "streaming", "snapkv", "pyramid", "ripple-1.5", "auto"], fractions=[0.1])
    documented(sub)
    sub.add_argument("--lengths", nargs="+", type=positive(int), default=[2048, 4096, 7936],
                     help="of prompts, tokens (default: 2048 4096 7936)")  # fmt: skip
    sub.add_argument("--answer", type=positive(int), default=256, help="tokens that are generated (default: 256)")
    sub.add_argument("--rounds", type=positive(int), default=5, help="of every length (default: 5)")
    sub.set_defaults(count=1)

    sub = command("ruler", "RULER's synthetic tasks", {"lengths": [1024], "samples": 1})
    compared(sub)
    asked(sub)
    sub.add_argument("--tasks", nargs="+", choices=ruler.TASKS, default=list(ruler.TASKS), help="default: all")
    sub.add_argument(
        "--lengths",
        nargs="+",
        type=positive(int),
        default=[1024, 2048, 4096],
        help="with the answer, tokens (default: 1024 2048 4096)",
    )
    sub.add_argument("--samples", type=positive(int), default=50, help="of a task and length (default: 50)")
    sub.add_argument("--measure", nargs="+", choices=("answers", "likelihood"), default=["answers", "likelihood"],
                     help="the model's answers, the log-likelihood of the right one; each takes a prefill of its own where the "
                     "question is visible (default: both)")  # fmt: skip

    sub = command("retrieval", "Facts hidden in prose", {"length": 256, "items": 1, "candidates": 4})
    compared(sub)
    asked(sub)
    documented(sub)
    sub.add_argument("--length", type=positive(int), default=1024, help="of prompts, tokens (default: 1024)")
    sub.add_argument(
        "--items",
        type=positive(int),
        default=32,
        help="of each of three kinds, that the full cache solves (default: 32)",
    )
    sub.add_argument("--candidates", type=positive(int), default=200, help="of each kind, tried at most (default: 200)")
    sub.add_argument("--answers-only", dest="measure", action="store_const", const=["answers"], default=["answers", "likelihood"],
                     help="no log-likelihoods: half the time where the question is visible")  # fmt: skip

    sub = command("longbench", "LongBench", {"most": 4})
    compared(sub)
    asked(sub)
    sub.add_argument("--data", type=pathlib.Path, required=True, help="folder of DATASET.jsonl")
    sub.add_argument("--datasets", nargs="+", metavar="NAME", help="of these only (default: all files)")
    sub.add_argument(
        "--prompts", type=pathlib.Path, help="the benchmark's dataset2prompt.json (default: prompts of our own)"
    )
    sub.add_argument("--max-length", type=positive(int), help="tokens of a prompt before the chat template (default: the "
                     "benchmark's 31500, 7500 or 3500, whichever the model has room for)")  # fmt: skip
    sub.add_argument("--most", type=positive(int), help="records in total (default: all)")

    sub = command("perplexity", "Perplexity", {"length": 256, "windows": 3, "tokens": 32})
    compared(sub)
    sub.add_argument("--file", type=pathlib.Path, required=True, help="text")
    sub.add_argument(
        "--length", type=positive(int), default=1024, help="tokens before those that are scored (default: 1024)"
    )
    sub.add_argument("--tokens", type=positive(int), default=256, help="scored in a window (default: 256)")
    sub.add_argument("--windows", type=positive(int), default=100, help="at most, spread over the file (default: 100)")

    command("profile", "The sensitivity profile", {})
    sub = command("lm-eval", "The lm-eval adapter", {"items": 2})
    sub.set_defaults(compute="fp32")
    sub.add_argument("--items", type=positive(int), default=100, help="of each of two tasks (default: 100)")
    commands.add_parser("methods", help="what is compared").set_defaults(title=None)
    return top


def flag_of(text):
    name, mark, value = text.removeprefix("--").partition("=")
    if not name or not mark:
        raise ValueError(f"--flag {text}: must be NAME=VALUE")
    return name.replace("-", "_"), value


# What a task's figures depend on, beside the server.
SETTINGS = {
    "documents": ("tokens",),
    "damage": ("tokens",),
    "sweep": ("length", "tokens", "fraction", "r"),
    "target": ("tokens",),
    "ruler": ("measure",),
    "retrieval": ("measure",),
    "efficiency": ("threads",),
    "perplexity": ("file", "length", "tokens"),
}


def prepare(options):
    """Defaults that depend on other options; what is wrong raises ValueError."""
    if options.quick:
        small = dict(options.small)
        if "methods" in options:
            small |= {"methods": QUICK_METHODS, "fractions": [0.3]}
        for name, value in small.items():
            if getattr(options, name) == options.default_of(name):
                setattr(options, name, value)
    name = f"quick-{options.command}" if options.quick else options.command
    options.out = options.out or SOURCE / "build" / "quality" / name
    options.profile_dir = options.profile_dir or SOURCE / "build" / "quality" / (
        "quick-profiles" if options.quick else "profiles"
    )
    options.flags = dict(flag_of(text) for text in options.flags)
    if options.flags and options.address:
        raise ValueError("--flag is for the server that is started here; there is one at --address already")
    if "methods" in options:
        options.methods = methods.named(dict.fromkeys(options.methods))
    options.corpus = served.corpus()
    needed = [] if options.address else [options.model, options.build / "ripplekv-server"]
    needed += [path for path in (getattr(options, name, None) for name in ("file", "data", "prompts")) if path]
    for path in needed:
        if not path.exists():
            raise ValueError(f"{path} is not there")
