#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: installs, builds the preset `cuda`, and runs what elsewhere can only be built: the
# kernels' tests on the GPU, the same under compute-sanitizer where that works, and the kernels' benchmarks.
#
#   scripts/gpu_check.sh               everything
#   scripts/gpu_check.sh --pack        on any machine: installs, builds, and puts the programs with their libraries into
#                                      build/gpu-check, to be copied to a machine that can't build
#   scripts/gpu_check.sh --packed      runs what build/gpu-check holds
#
# Ends with 0 where all passed, 1 where something failed and 77 where there is no GPU: then nothing was checked.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=all
for argument in "$@"; do
  case "$argument" in
    --pack) mode=pack ;;
    --packed) mode=packed ;;
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "gpu_check: unknown argument '$argument'; see scripts/gpu_check.sh --help" >&2; exit 2 ;;
  esac
done

no_gpu() { echo "gpu_check: $1; nothing was checked" >&2; exit 77; }
fail() { echo "gpu_check: $1" >&2; exit 1; }

if [ "$mode" = pack ]; then
  :
elif command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader ||
    no_gpu "nvidia-smi finds no GPU"
elif [ ! -e /dev/nvidiactl ]; then
  no_gpu "no NVIDIA GPU here (neither nvidia-smi nor /dev/nvidiactl)"
fi

programs=build/cuda
if [ "$mode" = packed ]; then
  programs=build/gpu-check
  export LD_LIBRARY_PATH=$PWD/$programs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
else
  scripts/install.sh --cuda
  cmake --preset cuda > /dev/null
  cmake --build --preset cuda -- --quiet
fi
for program in device_kernels_test ripplekv-cuda-bench; do
  [ -x $programs/$program ] || fail "$programs/$program is not there; run scripts/gpu_check.sh --pack"
done

if [ "$mode" = pack ]; then
  rm -rf build/gpu-check
  mkdir -p build/gpu-check
  cp build/cuda/device_kernels_test build/cuda/ripplekv-cuda-bench build/gpu-check
  # What a plain system lacks; the C and C++ runtimes are the other machine's own.
  ldd build/gpu-check/* | awk '$3 ~ /lib(absl_|benchmark)/ {print $3}' | sort -u | xargs cp -Lt build/gpu-check
  echo "gpu_check: copy build/gpu-check and scripts/gpu_check.sh, and run scripts/gpu_check.sh --packed there"
  exit 0
fi

# What runs on the GPU; the rest of the test program is the processor's.
filter='--gtest_filter=*/CudaF32:*/CudaBf16:*/Cuda_*:*/Cuda'
log=$(mktemp)
trap 'rm -f "$log"' EXIT
$programs/device_kernels_test "$filter" --gtest_brief=1 > "$log" 2>&1 || { cat "$log" >&2; fail "the tests failed on the GPU"; }
if grep -q Skipped "$log"; then no_gpu "$(grep -m1 'no usable GPU' "$log")"; fi
tail -n 1 "$log"

sanitizer=$(command -v compute-sanitizer || ls .venv/lib/python3*/site-packages/nvidia/cu13/bin/compute-sanitizer 2> /dev/null || true)
if [ -z "$sanitizer" ]; then
  echo "gpu_check: no compute-sanitizer here; went on without it"
else
  for tool in memcheck racecheck synccheck; do
    if "$sanitizer" --tool "$tool" --error-exitcode 9 $programs/device_kernels_test "$filter" --gtest_brief=1 > "$log" 2>&1; then
      echo "compute-sanitizer $tool: no errors"
    elif grep -qi "device not supported" "$log"; then
      echo "compute-sanitizer $tool: does not work on this machine (device not supported)"
    else
      tail -n 40 "$log" >&2
      fail "compute-sanitizer $tool found errors"
    fi
  done
fi

$programs/ripplekv-cuda-bench
echo "gpu_check: all passed"
