#!/usr/bin/env bash
# Checks what is in deploy/ with the tools that operators use. What they are is in deploy/requirements-deploy.txt (by pip,
# into build/deploy-tools); podman comes from the system. Without an argument all parts but the last one:
#
#   scripts/deploy_check.sh manifests   linters; every overlay rendered, against the schemas of two versions of Kubernetes,
#                                       and by checkov; the tests of the manifests
#   scripts/deploy_check.sh envoy       the tests behind a real Envoy
#   scripts/deploy_check.sh container   the image with podman: its size, and serving as it is meant to run
#   scripts/deploy_check.sh kube        `podman kube play` of the overlay `single`
#   scripts/deploy_check.sh e2e         the tests over real processes, each server and client a container; minutes
#
# The last three take the images ripplekv and ripplekv-with-model of this version where they are there, and make them of
# build/release otherwise (scripts/image.sh --from-build: on Debian 12).
set -Eeuo pipefail
cd "$(dirname "$0")/.."

parts=()
for argument in "$@"; do
  case "$argument" in
    manifests | envoy | container | kube | e2e) parts+=("$argument") ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "deploy_check: unknown argument '$argument'; see scripts/deploy_check.sh --help" >&2; exit 2 ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=(manifests envoy container kube)

step=start
trap 'echo "deploy_check: failed in step: $step" >&2' ERR
begin() { step=$1; echo "== $step"; }
fail() { echo "deploy_check: $1" >&2; false; }

tools=$PWD/build/deploy-tools work=$PWD/build/deploy-check
version=$(sed -n 's/^project(ripplekv VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
image=ripplekv:$version with_model=ripplekv-with-model:$version
export RIPPLEKV_BUILD_DIR=${RIPPLEKV_BUILD_DIR:-$PWD/build/release}

install_tools() {
  begin "tools of deploy/requirements-deploy.txt in build/deploy-tools"
  [ -x "$tools/bin/python" ] || python3 -m venv "$tools"
  cmp -s deploy/requirements-deploy.txt "$tools/.installed" ||
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check -r deploy/requirements-deploy.txt
  cp deploy/requirements-deploy.txt "$tools/.installed"
  export PATH=$tools/bin:$PATH
}

manifests() {
  install_tools
  mkdir -p "$work"
  begin "linters"
  yamllint --strict -c deploy/yamllint.yaml deploy/kubernetes deploy/envoy deploy/prometheus
  hadolint deploy/Containerfile
  shellcheck deploy/runtime_files.sh scripts/image.sh scripts/container.sh scripts/deploy_check.sh scripts/monitoring_check.sh
  for overlay in single split; do
    begin "overlay $overlay: kubectl kustomize, kubernetes-validate, checkov"
    kubectl kustomize "deploy/kubernetes/$overlay" > "$work/$overlay.yaml"
    # The oldest that has all that is used here, and the newest that the tool knows.
    kubernetes-validate --strict --quiet -k 1.33 "$work/$overlay.yaml"
    kubernetes-validate --strict --quiet "$work/$overlay.yaml"
    checkov --config-file deploy/kubernetes/checkov.yaml --file "$work/$overlay.yaml"
  done
  begin "overlay monitoring: kubectl kustomize"
  kubectl kustomize deploy/kubernetes/monitoring > "$work/monitoring.yaml"
  begin "deploy/envoy: kubectl kustomize, kubernetes-validate, checkov"
  kubectl kustomize deploy/envoy > "$work/envoy.yaml"
  kubernetes-validate --strict --quiet -k 1.33 "$work/envoy.yaml"
  kubernetes-validate --strict --quiet "$work/envoy.yaml"
  checkov --config-file deploy/kubernetes/checkov.yaml --file "$work/envoy.yaml"
  begin "tests of the manifests"
  .venv/bin/python -m pytest -q tests/deploy/test_kubernetes.py
}

envoy() {
  install_tools
  begin "tests behind Envoy"
  .venv/bin/python -m pytest -q tests/deploy/test_envoy.py
}

need_images() {
  command -v podman > /dev/null || fail "no podman in the PATH: apt-get install podman"
  if ! podman image exists "$image" || ! podman image exists "$with_model"; then
    begin "images of build/release"
    scripts/image.sh --builder podman --from-build "$RIPPLEKV_BUILD_DIR" --with-model quickstart > "$work/image.log" 2>&1 ||
      { tail -n 20 "$work/image.log" >&2; false; }
  fi
}

# The client, in a container of its own: server's address, then its arguments.
client() { podman run --rm --no-healthcheck --interactive --network host --entrypoint /usr/bin/ripplekv "$image" --server "$@"; }

# A stream that runs while `$2...` stops the server must come to its end.
stop_under_a_stream() {
  local address=$1 stream
  shift
  client "$address" --json generate --prompt "Tell a long story." --max-tokens 400 --ignore-eos > "$work/stream.json" &
  stream=$!
  for _ in $(seq 200); do
    [ "$(wc -l < "$work/stream.json")" -lt 5 ] || break
    sleep 0.1
  done
  [ "$(wc -l < "$work/stream.json")" -ge 5 ] || fail "no stream"
  grep -q '"complete"' "$work/stream.json" && fail "the stream was over before the server was stopped"
  "$@" > /dev/null
  wait "$stream" || fail "the stream was lost"
  tail -n 1 "$work/stream.json" | grep -q 'output_tokens":\s*400' || fail "the stream was cut: $(tail -n 1 "$work/stream.json")"
}

container() {
  mkdir -p "$work"
  need_images
  local name=ripplekv-deploy-check address=127.0.0.1:50951 size
  begin "size of $image"
  size=$(podman image inspect --format '{{.Size}}' "$image")
  echo "$((size / 1000000)) MB"
  [ "$size" -le 450000000 ] || fail "more than 450 MB"
  [ "$(podman image inspect --format '{{index .Config.Labels "org.opencontainers.image.version"}}' "$image")" = "$version" ]
  podman image inspect --format '{{index .Config.Labels "org.opencontainers.image.revision"}}' "$image" | grep -qE '^[0-9a-f]{40}|unknown'
  for program in ripplekv-server ripplekv-calibration-server ripplekv; do
    podman run --rm --no-healthcheck --entrypoint "/usr/bin/$program" "$image" --version
  done

  begin "read-only, as user 10001, without capabilities, with 1 GB"
  podman rm --force --time 0 "$name" > /dev/null 2>&1 || true
  podman run --detach --name "$name" --read-only --read-only-tmpfs=false --cap-drop all --security-opt no-new-privileges \
    --memory 1g --publish "$address:50051" --volume "$name:/profiles" "$with_model" --calibration off > /dev/null
  client "$address" health --wait 60
  client "$address" generate --document - --question "When does the last ferry leave?" --max-tokens 16 < scripts/quickstart-document.txt
  [ "$(podman top "$name" huser | tail -n 1)" = 10001 ]
  [ -z "$(podman inspect --format '{{range .EffectiveCaps}}{{.}}{{end}}' "$name")" ]
  ! podman exec "$name" /bin/sh -c true 2> /dev/null || fail "there is a shell"

  begin "SIGTERM with a stream running"
  stop_under_a_stream "$address" podman stop --time 40 "$name"
  [ "$(podman inspect --format '{{.State.ExitCode}}' "$name")" = 0 ]
  podman rm "$name" > /dev/null
  podman volume rm "$name" > /dev/null
}

kube() {
  install_tools
  mkdir -p "$work"
  need_images
  local file=$work/play.yaml address=127.0.0.1:50952 pod=ripplekv-pod-0-ripplekv first
  # What podman needs: ports of this machine's loopback. What the check needs: a measurement that takes seconds.
  kubectl kustomize deploy/kubernetes/single |
    sed -e "s/^\( *\)- containerPort: 50051/&\n\1  hostPort: 50952\n\1  hostIP: 127.0.0.1/" \
      -e "s/^\( *\)- containerPort: 9464/&\n\1  hostPort: 50953\n\1  hostIP: 127.0.0.1/" \
      -e 's/^  RIPPLEKV_DRAIN_TIMEOUT: .*/&\n  RIPPLEKV_CALIBRATION_EXAMPLES: "2"\n  RIPPLEKV_CALIBRATION_PREFIX: "128"\n  RIPPLEKV_CALIBRATION_WINDOW: "16"/' \
      > "$file"
  podman kube down "$file" > /dev/null 2>&1 || true
  ! podman volume exists ripplekv-profiles || fail "there is a volume ripplekv-profiles: podman volume rm ripplekv-profiles"

  begin "podman kube play of the overlay single"
  podman kube play "$file" > "$work/play.log" 2>&1 || { cat "$work/play.log" >&2; false; }
  client "$address" health --wait 60 --service ripplekv.v1.DecodeService
  client "$address" generate --prompt "Name three rivers." --max-tokens 12
  client "$address" --json calibrate > "$work/calibrate.json"
  first=$(client "$address" --json profile | grep -o '"profile_id": *"[0-9a-f]*"' | head -n 1)
  [ -n "$first" ]

  begin "SIGTERM with a stream running"
  stop_under_a_stream "$address" podman stop --time 80 "$pod"
  [ "$(podman inspect --format '{{.State.ExitCode}}' "$pod")" = 0 ]

  begin "another pod finds the profile"
  podman kube down "$file" > /dev/null 2>&1
  # podman refuses to make a volume that is there; the claim's volume is found without it.
  awk 'BEGIN { RS = ORS = "---\n" } !/kind: PersistentVolumeClaim/' "$file" > "$work/play-again.yaml"
  podman kube play "$work/play-again.yaml" > "$work/play.log" 2>&1 || { cat "$work/play.log" >&2; false; }
  client "$address" health --wait 60
  [ "$(client "$address" --json profile | grep -o '"profile_id": *"[0-9a-f]*"' | head -n 1)" = "$first" ] || fail "another profile"
  podman logs "$pod" > "$work/pod.log" 2>&1
  grep -q '"event":"plan_in_force","source":"profile"' "$work/pod.log"
  ! grep -q calibration_started "$work/pod.log" || fail "measured again"
  client "$address" generate --prompt "Name three rivers." --max-tokens 12
  podman kube down "$file" > /dev/null 2>&1
  podman volume rm ripplekv-profiles > /dev/null
}

e2e() {
  mkdir -p "$work/bin"
  need_images
  begin "tests over real processes against $image"
  # In the programs' place: containers on this machine's network that see the checkout, where tests keep their files.
  for program in ripplekv-server ripplekv-calibration-server ripplekv; do
    cat > "$work/bin/$program" <<EOF_PROGRAM
#!/bin/sh
set -- --entrypoint /usr/bin/$program "$image" "\$@"
for name in \$(env | sed -n 's/^\(RIPPLEKV_[A-Z0-9_]*\|NO_COLOR\|COLUMNS\|LC_ALL\)=.*/\1/p'); do set -- --env "\$name" "\$@"; done
exec podman run --rm --label ripplekv-e2e --interactive --no-healthcheck --network host --read-only --read-only-tmpfs=false --cap-drop all \\
  --security-opt no-new-privileges --user $(id -u):$(id -g) --volume "$PWD:$PWD" \\
  --volume "$(realpath models):$(realpath models)" --workdir "\$PWD" "\$@"
EOF_PROGRAM
    chmod +x "$work/bin/$program"
  done
  # The rest look into a server's memory, kill one by its process, are about terminals, or need programs that are not in the
  # image. A test that kills its client of podman leaves a container behind.
  # shellcheck disable=SC2064
  trap "podman ps --all --quiet --filter label=ripplekv-e2e | xargs --no-run-if-empty podman rm --force --time 0 > /dev/null" EXIT
  RIPPLEKV_BUILD_DIR=$work/bin .venv/bin/python -m pytest -q --basetemp "$work/e2e" tests/e2e/test_bad_input.py \
    tests/e2e/test_calibration_service.py tests/e2e/test_contexts.py tests/e2e/test_generate.py \
    tests/e2e/test_operations.py
}

for part in "${parts[@]}"; do "$part"; done
step=""
echo "deploy_check: ${parts[*]}: all well"
