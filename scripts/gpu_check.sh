#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: installs, builds the preset `cuda`, and runs what elsewhere can only be built: the
# kernels' tests on the GPU, the same under compute-sanitizer where that works, and the kernels' benchmarks.
#
#   scripts/gpu_check.sh               everything
#   scripts/gpu_check.sh --no-build    runs what build/cuda holds (say, copied from a machine that built it)
#
# Ends with 0 where all passed, 1 where something failed and 77 where there is no GPU: then nothing was checked.
set -euo pipefail
cd "$(dirname "$0")/.."

build=1
for argument in "$@"; do
  case "$argument" in
    --no-build) build=0 ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "gpu_check: unknown argument '$argument'; see scripts/gpu_check.sh --help" >&2; exit 2 ;;
  esac
done

no_gpu() { echo "gpu_check: $1; nothing was checked" >&2; exit 77; }
fail() { echo "gpu_check: $1" >&2; exit 1; }

if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader ||
    no_gpu "nvidia-smi finds no GPU"
elif [ ! -e /dev/nvidiactl ]; then
  no_gpu "no NVIDIA GPU here (neither nvidia-smi nor /dev/nvidiactl)"
fi

if [ "$build" = 1 ]; then
  scripts/install.sh --cuda
  cmake --preset cuda > /dev/null
  cmake --build --preset cuda -- --quiet
fi
for program in device_kernels_test ripplekv-cuda-bench; do
  [ -x build/cuda/$program ] || fail "build/cuda/$program is not there; run without --no-build"
done

# What runs on the GPU; the rest of the test program is the processor's.
filter='--gtest_filter=*/CudaF32:*/CudaBf16:*/Cuda'
log=$(mktemp)
trap 'rm -f "$log"' EXIT
build/cuda/device_kernels_test "$filter" --gtest_brief=1 > "$log" 2>&1 || { cat "$log" >&2; fail "the tests failed on the GPU"; }
if grep -q Skipped "$log"; then no_gpu "$(grep -m1 'no usable GPU' "$log")"; fi
tail -n 1 "$log"

sanitizer=$(command -v compute-sanitizer || ls .venv/lib/python3*/site-packages/nvidia/cu13/bin/compute-sanitizer 2> /dev/null || true)
if [ -z "$sanitizer" ]; then
  echo "gpu_check: no compute-sanitizer here; went on without it"
else
  for tool in memcheck racecheck synccheck; do
    if "$sanitizer" --tool "$tool" --error-exitcode 9 build/cuda/device_kernels_test "$filter" --gtest_brief=1 > "$log" 2>&1; then
      echo "compute-sanitizer $tool: no errors"
    elif grep -qi "device not supported" "$log"; then
      echo "compute-sanitizer $tool: does not work on this machine (device not supported)"
    else
      tail -n 40 "$log" >&2
      fail "compute-sanitizer $tool found errors"
    fi
  done
fi

build/cuda/ripplekv-cuda-bench
echo "gpu_check: all passed"
