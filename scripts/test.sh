#!/usr/bin/env bash
# Installs what the tests need, builds, and runs all of them: unit tests (ctest), the sanitizer builds of the parsers
# and the pure code, and the tests over real processes (pytest).
#
#   scripts/test.sh            everything
#   scripts/test.sh --fast     without the sanitizer builds
set -euo pipefail
cd "$(dirname "$0")/.."

sanitizers=1
for argument in "$@"; do
  case "$argument" in
    --fast) sanitizers=0 ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test: unknown argument '$argument'; see scripts/test.sh --help" >&2; exit 2 ;;
  esac
done

step=start
trap 'echo "test: failed in step: $step" >&2' ERR

step="install (scripts/install.sh --tests)"
scripts/install.sh --tests
step="model (scripts/get_model.sh)"
scripts/get_model.sh

step="build (cmake --preset release)"
cmake --preset release > /dev/null
cmake --build --preset release -- --quiet
step="unit tests (ctest --preset release)"
ctest --preset release --timeout 600

if [ "$sanitizers" = 1 ]; then
  step="build (asan)"
  cmake --preset asan > /dev/null
  cmake --build --preset asan -- --quiet
  step="unit tests (asan)"
  ctest --preset asan --timeout 900
  step="build (tsan)"
  cmake --preset tsan > /dev/null
  cmake --build --preset tsan --target threaded_tests -- --quiet
  step="unit tests (tsan)"
  ctest --preset tsan --timeout 900
fi

step="tests of the quality bench (pytest)"
.venv/bin/python -m pytest -q tests/bench
export RIPPLEKV_BUILD_DIR=$PWD/build/release
step="tests of deploy/ (pytest)"
.venv/bin/python -m pytest -q tests/deploy
step="tests over real processes (pytest)"
# Two files at a time; those that measure memory or speed have the machine to themselves.
.venv/bin/python -m pytest -q -n 2 --dist loadfile -m "not alone" tests/e2e
.venv/bin/python -m pytest -q -m alone tests/e2e
echo "test: all passed"
