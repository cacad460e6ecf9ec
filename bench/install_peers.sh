#!/usr/bin/env bash
# Installs what bench/compare.py compares RippleKV with, into build/peers: OpenVINO GenAI and ONNX Runtime GenAI from
# PyPI, llama.cpp built for this processor from llama-cpp-python's sdist, and the model in the types that llama.cpp is
# fastest with and as ONNX Runtime's own builder quantizes it. Takes PyTorch and transformers for the latter from .venv.
# Safe to repeat: what is there already is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."

usage="usage: bench/install_peers.sh [MODEL.gguf]   (default: models/SmolLM2-135M-Instruct.Q4_1.gguf)"
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
case "${1-}" in
  -h | --help) echo "$usage"; exit 0 ;;
  -*) echo "install_peers: unknown argument '$1'; $usage" >&2; exit 2 ;;
  ?*) model=$1 ;;
esac
fail() { echo "install_peers: $1" >&2; exit 1; }
here=$(.venv/bin/python -c 'import sysconfig, torch, transformers; print(sysconfig.get_path("purelib"))' 2> /dev/null) ||
  fail "no .venv with torch and transformers; run scripts/install.sh --tests first"
[ -f "$model" ] || fail "no model $model; scripts/get_model.sh gets the default one"

peers=build/peers
version=0.3.36
source=$peers/llama_cpp_python-$version
libraries=$peers/llama-build/bin
mkdir -p "$peers"

# Runs a step with its output in a log that is shown where it fails.
step() {
  local what=$1 log; shift
  echo "install_peers: $what"
  log=$(mktemp)
  "$@" > "$log" 2>&1 || { tail -n 15 "$log" >&2; fail "$what failed (log: $log)"; }
  rm -f "$log"
}

[ -x "$peers/venv/bin/python" ] || python3 -m venv "$peers/venv" || fail "python3 -m venv failed; is python3-venv installed?"
pip=("$peers/venv/bin/python" -m pip --disable-pip-version-check)
if ! cmp -s bench/peers/requirements.txt "$peers/installed.txt"; then
  step "Python packages" "${pip[@]}" install --no-deps --only-binary :all: -r bench/peers/requirements.txt
  cp bench/peers/requirements.txt "$peers/installed.txt"
fi

if [ ! -d "$source" ]; then
  [ -f "$source.tar.gz" ] ||
    step "source of llama-cpp-python $version" "${pip[@]}" download --no-deps --no-binary :all: -d "$peers" "llama-cpp-python==$version"
  tar -xzf "$source.tar.gz" -C "$peers"
fi
if [ ! -e "$libraries/libllama.so" ]; then
  step "llama.cpp: configure" cmake -S "$source/vendor/llama.cpp" -B "$peers/llama-build" -G Ninja \
    -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_COMMON=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF
  step "llama.cpp: build (some minutes)" cmake --build "$peers/llama-build" --target llama
fi

name=$(basename "$model" .gguf)
for type in q4_0 bf16; do
  file=$peers/$name.$type.gguf
  [ -f "$file" ] && continue
  step "the model in $type" env PYTHONPATH="$source" LLAMA_CPP_LIB_PATH="$PWD/$libraries" \
    "$peers/venv/bin/python" bench/peers/quantize.py "$model" "$file.part" "$type"
  mv "$file.part" "$file"
done

if [ ! -d "$peers/$name.ort" ]; then
  step "the model for transformers" .venv/bin/python bench/peers/export.py "$model" "$peers/$name.hf"
  step "the model in ONNX, int4" env PYTHONPATH="$here" "$peers/venv/bin/python" -m onnxruntime_genai.models.builder \
    -i "$peers/$name.hf" -o "$peers/$name.ort.part" -p int4 -e cpu -c "$peers/$name.hf" --extra_options hf_token=false
  mv "$peers/$name.ort.part" "$peers/$name.ort"
  rm -r "$peers/$name.hf"
fi
