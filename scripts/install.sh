#!/usr/bin/env bash
# Installs what RippleKV needs on Debian 12 or Ubuntu 24.04: Debian packages (deploy/apt-packages.txt) and, in .venv,
# the Python packages of deploy/requirements-build.txt; with --tests those of deploy/requirements-test.txt too, with
# --cuda the CUDA compiler (deploy/requirements-cuda.txt), which the preset `cuda` takes and no other preset needs.
# Safe to repeat: what is there already is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: scripts/install.sh [--tests] [--cuda]"
tests=0 cuda=0
for argument in "$@"; do
  case "$argument" in
    --tests) tests=1 ;;
    --cuda) cuda=1 ;;
    -h | --help) echo "$usage"; exit 0 ;;
    *) echo "install: unknown argument '$argument'; $usage" >&2; exit 2 ;;
  esac
done

fail() { echo "install: $1" >&2; exit 1; }

mapfile -t wanted < <(sed 's/#.*//' deploy/apt-packages.txt | tr -d ' \t' | grep -v '^$')
missing=()
for package in "${wanted[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "install: Debian packages: ${missing[*]}"
  sudo=""
  if [ "$(id -u)" != 0 ]; then
    command -v sudo > /dev/null || fail "not root and no sudo; as root run: apt-get install ${missing[*]}"
    sudo=sudo
  fi
  log=$(mktemp)
  { $sudo apt-get update -q && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}"; } > "$log" 2>&1 ||
    { tail -n 15 "$log" >&2; fail "apt-get could not install the packages above (log: $log)"; }
  rm -f "$log"
fi

if [ ! -x .venv/bin/python ]; then
  echo "install: Python environment in .venv"
  python3 -m venv .venv || fail "python3 -m venv failed; is python3-venv installed?"
fi

# Every list holds the whole closure of what it needs, pinned, so pip need not resolve (and can't pull a CUDA build).
pip() { .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --retries 1 --timeout 30 "$@"; }

# torch before the lists: its CPU build, of PyTorch's own index or whichever pip is told of besides. Without that build pip
# would take the index's torch of the same version, gigabytes made for CUDA: that only from wheels on this machine.
install_torch() {
  local version log
  version=$(sed -n 's/^torch==//p' deploy/requirements-build.txt)
  if .venv/bin/python -c "from importlib.metadata import version as v; exit(v('torch').split('+')[0] != '$version')" 2> /dev/null; then
    return
  fi
  echo "install: torch $version, the CPU build"
  log=$(mktemp)
  if ! pip --only-binary torch --extra-index-url https://download.pytorch.org/whl/cpu "torch==$version+cpu" > "$log" 2>&1; then
    if pip --only-binary torch --no-index "torch==$version" >> "$log" 2>&1; then
      echo "install: torch $version of a wheel on this machine (find-links), as no index has $version+cpu"
    else
      tail -n 15 "$log" >&2
      fail "pip finds no torch $version+cpu (log: $log); is https://download.pytorch.org/whl/cpu reachable? Another index that has \
it: PIP_EXTRA_INDEX_URL=URL scripts/install.sh; a folder with a wheel: PIP_FIND_LINKS=FOLDER scripts/install.sh"
    fi
  fi
  rm -f "$log"
}

pip_install() {
  local list=$1 stamp=.venv/.installed-$(basename "$1")
  cmp -s "$list" "$stamp" && return
  echo "install: Python packages of $list"
  local log; log=$(mktemp)
  pip -r "$list" > "$log" 2>&1 ||
    { tail -n 15 "$log" >&2; fail "pip could not install $list (log: $log); is the package index reachable?"; }
  rm -f "$log"
  cp "$list" "$stamp"
}
install_torch
pip_install deploy/requirements-build.txt
if [ "$tests" = 1 ]; then
  pip_install deploy/requirements-test.txt
fi
if [ "$cuda" = 1 ]; then
  pip_install deploy/requirements-cuda.txt
  # The packages lack what a toolkit has besides: lib64, and the name that a linker looks for.
  toolkit=$(.venv/bin/python -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")/nvidia/cu13
  ln -sfn lib "$toolkit/lib64"
  ln -sfn libcudart.so.13 "$toolkit/lib/libcudart.so"
fi
