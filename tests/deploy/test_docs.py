"""What the pages name exists: files, links, programs' and scripts' flags and defaults, variables, names, calls."""

import ast
import functools
import re
import shlex
import subprocess
import sys

import pytest

from programs import SOURCE, environment_names, program

PAGES = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md")), SOURCE / "client" / "python" / "README.md"]
FOLDERS = "bench|calibration|client|deploy|docs|kernels|model|proto|scripts|server|tests"
MADE_BY_THE_READER = "deploy/kubernetes/mine"
FLAG = r"(?<![\w-])--[a-z][a-z0-9_-]+"
SERVERS = ("ripplekv-server", "ripplekv-calibration-server")
# Flags of podman and docker, kubectl, cmake, Prometheus, pip, Google Benchmark, lm-eval.
OTHERS_FLAGS = {
    *("--build-arg", "--cap-drop", "--detach", "--entrypoint", "--health-cmd", "--memory", "--name", "--read-only", "--time"),
    *("--for", "--from-file", "--image", "--overrides", "--build", "--preset", "--config", "--editable"),
    *("--benchmark_filter", "--benchmark_out", "--benchmark_repetitions", "--apply_chat_template", "--model_args", "--tasks"),
}  # fmt: skip

page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(SOURCE)))


def read(path):
    return path.read_text(encoding="utf-8")


@functools.cache
def help_of(name, *commands):
    return subprocess.run([program(name), *commands, "--help"], capture_output=True, text=True, check=True).stdout


def help_of_the_quality_bench(*words):
    command = [sys.executable, "bench/quality", *words, "--help"]
    return subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=True).stdout


@functools.cache
def client_commands():
    return re.findall(r"^  (\w+) ", help_of("ripplekv").partition("Subcommands:")[2].partition("Examples:")[0], re.M)


@functools.cache
def flags_of_the_client():
    """command -> its flags with those of every command."""
    everywhere, found = set(re.findall(FLAG, help_of("ripplekv"))), {}
    for command in client_commands():
        below = [("context", "create")] if command == "context" else []
        texts = [help_of("ripplekv", command), *(help_of("ripplekv", *words) for words in below)]
        found[command] = everywhere | set(re.findall(FLAG, "".join(texts)))
    return found


@functools.cache
def flags_of_scripts():
    """script or folder of scripts -> the flags that stand in it."""
    files = [*(SOURCE / "scripts").iterdir(), *(SOURCE / "bench").glob("*.*"), *(SOURCE / "deploy").rglob("*.sh")]
    files += (SOURCE / "deploy" / "grafana").glob("*.py")
    found = {str(file.relative_to(SOURCE)): set(re.findall(FLAG, read(file))) for file in files if file.is_file()}
    kernels = (SOURCE / "bench" / "kernels").iterdir()
    found["bench/kernels"] = {flag for file in kernels for flag in re.findall(FLAG, read(file))}
    # Some of its flags are made of other names.
    commands = re.findall(r"^    \S+ bench/quality (\S+)", help_of_the_quality_bench(), re.M)
    assert len(commands) > 5
    found["bench/quality"] = {flag for name in commands for flag in re.findall(FLAG, help_of_the_quality_bench(name))}
    found["scripts/soak.sh"] |= set(re.findall(FLAG, read(SOURCE / "tests" / "e2e" / "soak.py")))
    found["scripts/monitoring_check.sh"] |= set(
        re.findall(FLAG, read(SOURCE / "tests" / "deploy" / "live_monitoring.py"))
    )
    return found


def defaults():
    """flag -> what --help says after its "=", of the decode server."""
    found = {}
    for flag, default in re.findall(rf"^  ({FLAG})(?:=(.*?))?(?: \w+)?(?: \(Env:|$)", help_of("ripplekv-server"), re.M):
        found[flag] = re.split(r"[,;]", default)[0]
    assert len(found) > 50 and found["--kv-memory"] == "256MiB"
    return found


def commands_of(text):
    """The command lines of a page, as lists of words."""
    snippets = re.findall(r"```sh\n(.*?)```", text, flags=re.S) + re.findall(r"^    (\S.*)$", text, flags=re.M)
    snippets += [
        re.sub(r"\s+", " ", code) for code in re.findall(r"`((?:ripplekv|scripts/|kubectl|podman)[^`]* [^`]*)`", text)
    ]
    for snippet in snippets:
        for line in snippet.replace("\\\n", " ").splitlines():
            for part in re.split(r" && | \| |; | & ?$|\$\(", line):
                try:
                    yield shlex.split(part.rstrip(")"), comments=True)
                except ValueError:
                    pass  # a part of a quotation over several lines


def call_in(words):
    """(what is called, the words after it) where a command calls something of this repository, else (None, [])."""
    if words[:1] == ["kubectl"]:
        words = words[words.index("--") + 1 :] if "--" in words else []
    found = None, []
    for i, word in enumerate(words):
        name = word.rpartition("/")[2]
        if i > 0 and words[i - 1].startswith("-"):
            continue  # a flag's value, as in kubectl -n ripplekv
        if name in (*SERVERS, "ripplekv"):
            found = name, words[i + 1 :]
        elif re.fullmatch(r"ripplekv:[\d.]+", word):
            found = "ripplekv-server", words[i + 1 :]
        elif word in flags_of_scripts():
            return word, words[i + 1 :]
    return found


def anchors(path):
    """Of the headings, as GitHub makes them."""
    return {
        re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.+)$", read(path), re.M)
    }


@page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", read(page)):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        path = page.parent / file if file else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


@page
def test_files_exist(page):
    for name in re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w./*-]*[\w*/]", read(page)):
        assert name.startswith(MADE_BY_THE_READER) or list(SOURCE.glob(name)), name
    for name in re.findall(r"build/release/([\w-]+)", read(page)):
        program(name)


@page
def test_flags_exist(page):
    known = OTHERS_FLAGS.union(*flags_of_the_client().values(), *flags_of_scripts().values())
    known = known.union(*(re.findall(FLAG, help_of(name)) for name in SERVERS))
    used = set(re.findall(FLAG, read(page)))
    assert used <= known, used - known


@page
def test_commands_take_their_flags(page):
    for words in commands_of(read(page)):
        name, rest = call_in(words)
        flags = {word.partition("=")[0] for word in rest if re.match(FLAG, word)}
        if name in SERVERS:
            known = set(re.findall(FLAG, help_of(name)))
        elif name == "ripplekv":
            command = next((word for word in rest if word in client_commands()), None)
            known = flags_of_the_client()[command] if command else set().union(*flags_of_the_client().values())
        elif name:
            known = flags_of_scripts()[name] | {"--help"}
        else:
            continue
        assert flags <= known, " ".join(words)


def test_commands_are_found():
    calls = [call_in(words) for page in PAGES for words in commands_of(read(page))]
    for name in ("ripplekv", *SERVERS, "scripts/image.sh", "scripts/quickstart.sh", "bench/compare.py"):
        assert any(name == called for called, _ in calls), name
    assert ("ripplekv", ["health", "--wait", "60"]) in calls
    assert any(called == "ripplekv-server" and "--kv-memory" in rest and "podman" not in rest for called, rest in calls)


@page
def test_variables_exist(page):
    known = environment_names("ripplekv-server") | environment_names("ripplekv-calibration-server")
    known |= set(re.findall(r"RIPPLEKV_[A-Z_]+", help_of("ripplekv")))
    used = set(re.findall(r"RIPPLEKV_[A-Z_]+", read(page)))
    assert used <= known, used - known


def test_defaults_in_the_readme():
    known = defaults()
    rows = re.findall(r"^\| (`--[^|]*(?:\\\|[^|]*)*) \| ([^|]*) \|", read(SOURCE / "README.md"), flags=re.M)
    assert len(rows) > 30
    for cell, default in rows:
        flags = re.findall(FLAG, cell)
        values = [value.strip().replace("`", "") for value in default.split(",")]
        values = values if len(values) == len(flags) else [values[0]] * len(flags)
        for flag, value in zip(flags, values):
            assert known[flag] == {"none": "", "off": "", "required": ""}.get(value, value), flag


@pytest.mark.parametrize("name", ["allocators", "selectors"])
def test_defaults_and_names_in_the_pages_of(name):
    text, known = read(SOURCE / "docs" / f"{name}.md"), defaults()
    rows = re.findall(r"^\| `(\w+)`(?:,[^|]*)? \|(.*)\|$", text, flags=re.M)
    choices = re.search(rf"^  --{name[:-1]}=.*?\n.*\[([\w|]+)\]$", help_of("ripplekv-server"), flags=re.M).group(1)
    assert {row for row, _ in rows} == set(choices.split("|"))
    said = re.findall(rf"`({FLAG})` ([\w.]+)(?=,| \|| and)", "\n".join(cells + "|" for _, cells in rows))
    assert len(said) > 5
    for flag, value in said:
        assert known[flag] == value, flag


def test_names_in_the_runbook_are_the_programs_names():
    """Log events and fields, fields of messages, labels' values."""
    sources = [file for folder in ("server", "proto") for file in (SOURCE / folder).rglob("*.*")]
    text = "\n".join(read(file) for file in sources) + read(SOURCE / "docs" / "metrics.md")
    names = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", read(SOURCE / "docs" / "operations.md")))
    assert {"start_failed", "profile_file_not_used", "queue_full", "trace_id", "next_token_kl"} <= names
    for name in names:
        assert re.search(rf"\b{name}\b", text), name


def test_calls_of_the_python_client_exist():
    folder = SOURCE / "client" / "python"
    tree = ast.parse(read(folder / "src" / "ripplekv" / "client.py"))
    (client,) = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "Client"]
    methods = {each.name for each in client.body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")}
    listed = set()
    for cell in re.findall(r"^\| (`[^|]*) \|", read(folder / "README.md"), flags=re.M):
        listed |= set(re.findall(r"`(\w+)`", cell))
    assert listed == methods - {"close"}
    errors = re.findall(r"^class (\w+)\(RippleKVError\)", read(folder / "src" / "ripplekv" / "errors.py"), flags=re.M)
    assert set(errors) == set(re.findall(r"`([A-Z]\w+)`", read(folder / "README.md")))
