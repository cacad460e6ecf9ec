"""Results kept one a line as they come, so that a run that was stopped goes on where it was."""

import json


class SettingsDiffer(Exception):
    """The file has results of other settings."""


class Journal:
    """The file's first line is the settings that every result in it depends on; the others are results by their key."""

    def __init__(self, path, settings):
        self.path = path
        self.results = {}
        settings = json.loads(json.dumps(settings))
        if not path.exists() or not path.read_bytes():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8")
            self._write({"settings": settings})
            return
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]  # a run that was killed may have left half a line
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            had = lines[0]["settings"]
        except (ValueError, LookupError, TypeError):
            raise SettingsDiffer(f"{path} is no file of results: choose another --out, or remove it") from None
        if had != settings:
            names = sorted(k for k in {*had, *settings} if had.get(k) != settings.get(k))
            what = "; ".join(f"{name} was {had.get(name)!r} and is {settings.get(name)!r}" for name in names)
            raise SettingsDiffer(f"{path} has results of other settings ({what}): choose another --out, or remove it")
        for line in lines[1:]:
            self.results[tuple(line["key"])] = line["result"]
        self._file = path.open("r+b")
        self._file.truncate(len(whole))
        self._file.close()
        self._file = path.open("a", encoding="utf-8")

    def _write(self, line):
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def __contains__(self, key):
        return tuple(key) in self.results

    def add(self, key, result):
        self.results[tuple(key)] = json.loads(json.dumps(result))
        self._write({"key": list(key), "result": result})

    def close(self):
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
