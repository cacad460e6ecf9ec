"""How bench/compare.py talks to a peer that runs in a process of its own: one JSON object a line each way.

{"prompts": [[ids], ...], "new_tokens": n}  ->  {"times": [[seconds since the start, one a token], ...],
                                                 "ids": [[...], ...]}
"""

import json
import os
import pathlib
import re
import sys


def resident_bytes():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+) kB", status, flags=re.M).group(1)) * 1024


def start(make):
    """make(settings) returns a function that answers a command. Settings are the first argument, as JSON."""
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    interpreter = resident_bytes()
    try:
        run = make(json.loads(sys.argv[1]))
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        raise
    say({"ready": True, "interpreter_bytes": interpreter})
    for line in sys.stdin:
        try:
            say(run(json.loads(line)))
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})
            raise
