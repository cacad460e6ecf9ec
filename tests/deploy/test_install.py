"""scripts/install.sh takes torch's CPU build, or says that there is none; it never takes an index's other one."""

import shutil
import subprocess

import pytest

from programs import SOURCE

# In the place of the environment's Python: no torch is there yet, and pip has what HAS names.
PYTHON = """#!/usr/bin/env bash
[ "$1" = -m ] || exit 1
shift 3
echo "$*" >> "$LOG"
case "$*" in
  *torch==*+cpu) [ "$HAS" = build ] ;;
  *--no-index*) [ "$HAS" = wheel ] ;;
esac
"""


def install(folder, has):
    """(what it says, the requirements and where from, call by call)."""
    for name in ("scripts/install.sh", "deploy/requirements-build.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(SOURCE / name, folder / name)
    (folder / "deploy" / "apt-packages.txt").write_text("# none\nbash\n")
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    log = folder / "pip.log"
    environment = {"PATH": "/usr/bin:/bin", "HAS": has, "LOG": str(log)}
    done = subprocess.run(["scripts/install.sh"], cwd=folder, env=environment, capture_output=True, text=True)
    calls = [line.split("--timeout 30 ")[1] for line in log.read_text().splitlines()]
    return done, calls


VERSION = next(
    line.removeprefix("torch==").strip()
    for line in (SOURCE / "deploy" / "requirements-build.txt").read_text().splitlines()
    if line.startswith("torch==")
)
CPU_BUILD = f"--only-binary torch --extra-index-url https://download.pytorch.org/whl/cpu torch=={VERSION}+cpu"
WHEEL = f"--only-binary torch --no-index torch=={VERSION}"
LIST = "-r deploy/requirements-build.txt"


@pytest.mark.parametrize("has, calls", [("build", [CPU_BUILD, LIST]), ("wheel", [CPU_BUILD, WHEEL, LIST])])
def test_torch_is_taken_before_the_list(tmp_path, has, calls):
    done, made = install(tmp_path, has)
    assert done.returncode == 0, done.stderr
    assert made == calls


def test_without_the_cpu_build_it_ends_and_says_what_helps(tmp_path):
    done, made = install(tmp_path, "nothing")
    assert done.returncode == 1 and made == [CPU_BUILD, WHEEL]
    for words in (f"no torch {VERSION}+cpu", "download.pytorch.org", "PIP_EXTRA_INDEX_URL=", "PIP_FIND_LINKS="):
        assert words in done.stderr, done.stderr
