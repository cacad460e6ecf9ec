"""Where the programs are, and what they say about themselves."""

import functools
import os
import pathlib
import re
import subprocess

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RIPPLEKV_BUILD_DIR", SOURCE / "build" / "release"))


def program(name):
    path = BUILD / name
    assert path.exists(), f"{path} is missing: run `cmake --build {BUILD}`"
    return path


@functools.cache
def environment_names(name):
    """The variables that a server reads, by its --help."""
    text = subprocess.run([str(program(name)), "--help"], capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"Env:(RIPPLEKV_[A-Z0-9_]+)", text))
    assert len(names) > 20
    return names
