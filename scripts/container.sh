#!/usr/bin/env bash
# From nothing to an answer in a container: builds the image where it is missing, with the quickstart's model in it, runs it
# as it is meant to run (read-only, without capabilities, as user 10001) and asks a question about a long document.
# Needs podman or docker, and nothing else.
#
#   scripts/container.sh          stop the container at the end
#   scripts/container.sh --keep   leave it up and say how to call it
#
# The profile that the server measures stays in the volume ripplekv-profiles.
set -euo pipefail
cd "$(dirname "$0")/.."

keep=0
for argument in "$@"; do
  case "$argument" in
    --keep) keep=1 ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) echo "container: unknown argument '$argument'; see scripts/container.sh --help" >&2; exit 2 ;;
  esac
done

fail() { echo "container: $1" >&2; exit 1; }
builder=$(command -v podman || command -v docker) || fail "neither podman nor docker is there: install one, e.g. apt-get install podman"
image=ripplekv-with-model:$(sed -n 's/^project(ripplekv VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
document=scripts/quickstart-document.txt
question="Based on the text above, when does the last ferry of the day leave the spit?"

"$builder" image inspect "$image" > /dev/null 2>&1 || scripts/image.sh --builder "$builder" --with-model quickstart

! "$builder" container inspect ripplekv > /dev/null 2>&1 ||
  fail "there is a container named ripplekv already: $builder rm --force ripplekv"
"$builder" run --detach --name ripplekv --read-only --cap-drop ALL --security-opt no-new-privileges --memory 2g \
  --publish 127.0.0.1:50051:50051 --publish 127.0.0.1:9464:9464 --volume ripplekv-profiles:/profiles "$image" > /dev/null
# shellcheck disable=SC2317,SC2329
finish() {
  local code=$?
  [ $code = 0 ] || "$builder" logs --tail 5 ripplekv >&2
  if [ $code != 0 ] || [ $keep = 0 ]; then
    "$builder" stop --time 40 ripplekv > /dev/null
    "$builder" rm ripplekv > /dev/null
  fi
}
trap finish EXIT
"$builder" exec ripplekv ripplekv health --wait 60
printf '%s\n\n' "$question"
"$builder" exec --interactive ripplekv ripplekv generate --document - --question "$question" --max-tokens 96 --stats < "$document"

if [ $keep = 1 ]; then
  cat <<EOF_KEEP

The container stays up. Call it:
  $builder exec --interactive ripplekv ripplekv generate --document - --question "..." < FILE
  $builder exec --interactive --tty ripplekv ripplekv chat
  curl http://127.0.0.1:9464/metrics
Stop it: $builder stop --time 40 ripplekv && $builder rm ripplekv
EOF_KEEP
fi
