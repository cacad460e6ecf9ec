#!/usr/bin/env python3
"""Writes what each CUDA kernel takes of a GPU into docs/cuda.md, read by cuobjdump from the build of the preset `cuda`.

    scripts/install.sh --cuda && cmake --preset cuda && cmake --build --preset cuda && scripts/cuda_registers.py
"""
import collections
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "build/cuda/kernels/libripplekv_kernels_cuda.a"
PAGE = ROOT / "docs/cuda.md"
BEGIN, END = "<!-- scripts/cuda_registers.py: begin -->\n", "<!-- end -->\n"


def cuobjdump() -> str:
    """The one of scripts/install.sh --cuda, else from PATH."""
    python = ROOT / ".venv/bin/python"
    packages = sysconfig.get_paths()["purelib"]
    if python.exists():
        packages = subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], text=True).strip()
    found = shutil.which("cuobjdump", path=f"{packages}/nvidia/cu13/bin") or shutil.which("cuobjdump")
    if found is None:
        sys.exit("cuda_registers: no cuobjdump; run scripts/install.sh --cuda")
    return found


def short(name: str) -> str:
    """PerturbKernel<bf16>, PartialKernel<fp32, 64, 3, true> of a demangled signature."""
    name = re.sub(r"\(.*", "", name.replace("(anonymous namespace)::", "")).removeprefix("void ")
    name = re.sub(r"\b\w+::", "", name)
    return name.replace("unsigned short", "bf16").replace("float", "fp32").replace("unsigned int", "4 bytes")


def main() -> None:
    if not LIBRARY.exists():
        sys.exit(f"cuda_registers: {LIBRARY} is not there; run cmake --preset cuda && cmake --build --preset cuda")
    dump = subprocess.check_output([cuobjdump(), "--dump-resource-usage", LIBRARY], text=True, stderr=subprocess.DEVNULL)
    dump = subprocess.check_output(["c++filt"], input=dump, text=True)
    usage: dict[str, dict[str, str]] = collections.defaultdict(dict)
    arch = name = ""
    for line in dump.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            arch = match[1]
        elif match := re.match(r" *Function (.*):$", line):
            name = short(match[1])
        elif match := re.match(r" *REG:(\d+) STACK:(\d+) SHARED:(\d+)", line):
            usage[name][arch] = f"{match[1]} / {match[2]} / {match[3]}"
    archs = sorted({arch for row in usage.values() for arch in row}, key=lambda a: int(a.removeprefix("sm_")))
    if not archs:
        sys.exit(f"cuda_registers: cuobjdump found no kernel in {LIBRARY}")
    lines = ["| kernel | " + " | ".join(archs) + " |", "|---|" + "---|" * len(archs)]
    for name in sorted(usage, key=lambda n: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", n)]):
        lines.append(f"| `{name}` | " + " | ".join(usage[name].get(arch, "-") for arch in archs) + " |")
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + rest.split(END)[1])
    print(f"cuda_registers: {len(usage)} kernels for {', '.join(archs)} in {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
