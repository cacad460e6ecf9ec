"""Documents to measure on: the user's files, or long texts that every Python installation has. The calibration corpus is
never among them."""

import dataclasses
import hashlib
import pathlib
import re
import sysconfig

PROSE, CODE = "prose", "code"
PROSE_SUFFIXES = {".txt", ".md", ".rst", ".raw"}
# Pieces that the joined entries of Python's reference manual are cut into.
PIECE_CHARACTERS = 22_000


@dataclasses.dataclass(frozen=True)
class Document:
    name: str
    kind: str
    text: str

    @property
    def digest(self):
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def split(self):
        """By the text alone, so that a document's side does not depend on what else is measured."""
        return "held-out" if int(self.digest, 16) % 2 == 0 else "tuning"


def articles(path, text):
    """The articles of a file in WikiText's format, each from its heading " = Title = "."""
    parts = re.split(r"(?m)^ = ([^=\n]+) = *\n", text)
    return [Document(f"{path.name}: {title}", PROSE, body) for title, body in zip(parts[1::2], parts[2::2])]


def from_file(path):
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".raw":
        return articles(path, text)
    return [Document(path.name, PROSE if path.suffix in PROSE_SUFFIXES else CODE, text)]


def from_paths(paths):
    found = []
    for path in map(pathlib.Path, paths):
        if not path.exists():
            raise ValueError(f"--documents {path}: there is no such file or folder")
        files = (
            sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
            if path.is_dir()
            else [path]
        )
        found += [document for file in files for document in from_file(file)]
    return found


def from_python():
    """The running Python's own: its reference manual as pydoc has it, and its modules."""
    from pydoc_data.topics import topics

    manual = "\n\n".join(topics[name] for name in sorted(topics))
    cuts = range(0, len(manual) - PIECE_CHARACTERS + 1, PIECE_CHARACTERS)
    found = [Document(f"manual {i}", PROSE, manual[at : at + PIECE_CHARACTERS]) for i, at in enumerate(cuts)]
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    left_out = {
        "test",
        "tests",
        "site-packages",
        "dist-packages",
        "encodings",
        "pydoc_data",
        "__pycache__",
        "idle_test",
    }
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if not left_out & set(inside.parts):
            found.append(Document(str(inside), CODE, path.read_text(encoding="utf-8", errors="replace")))
    return found


def documents(paths, corpus=()):
    """Of the paths, or of Python where there are none. Texts of `corpus` (the calibration's) are left out."""
    found = from_paths(paths) if paths else from_python()
    calibrated = {Document("", "", text).digest for text in corpus}
    unique = {document.digest: document for document in found if document.digest not in calibrated}
    return list(unique.values())


def chosen(found, split, count, long_enough):
    """`count` documents of one split, kinds in turn, in the order of their digests: (document, what long_enough says of
    it). `long_enough` is asked for one after another."""
    queues = [
        iter(sorted((d for d in found if d.split == split and d.kind == kind), key=lambda d: d.digest))
        for kind in (PROSE, CODE)
    ]
    picked = []
    while queues and len(picked) < count:
        queue = queues.pop(0)
        for document in queue:
            fitting = long_enough(document)
            if fitting:
                picked.append((document, fitting))
                queues.append(queue)
                break
    if len(picked) < count:
        raise ValueError(
            f"{len(picked)} documents of the {split} split are long enough, {count} are asked for: give more --documents, "
            f"shorter --lengths, or --count {len(picked)}"
        )
    return picked
