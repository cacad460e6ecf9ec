#!/usr/bin/env bash
# From a fresh machine to an answer: installs, builds, gets a model, starts the server, calibrates it, and asks a
# question about a long document over the compressed cache. Safe to repeat; what is done already is not done again.
#
#   scripts/quickstart.sh          stop the server at the end
#   scripts/quickstart.sh --keep   leave the server up and say how to call it
set -euo pipefail
cd "$(dirname "$0")/.."

keep=0
for argument in "$@"; do
  case "$argument" in
    --keep) keep=1 ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "quickstart: unknown argument '$argument'; see scripts/quickstart.sh --help" >&2; exit 2 ;;
  esac
done

model=models/SmolLM2-135M-Instruct.Q4_1.gguf
document=scripts/quickstart-document.txt
question="Based on the text above, when does the last ferry of the day leave the spit?"
run=build/quickstart
server_pid=""

step="" advice=""
begin() { step=$1 advice=$2; printf '\n== %s\n' "$step"; }
finish() {
  local code=$?
  if [ $code != 0 ] && [ -n "$step" ]; then
    printf '\nquickstart: failed in step "%s". %s\n' "$step" "$advice" >&2
  fi
  if [ -n "$server_pid" ] && { [ $code != 0 ] || [ $keep = 0 ]; }; then
    kill -TERM "$server_pid" 2> /dev/null || true
    wait "$server_pid" 2> /dev/null || true
  fi
}
trap finish EXIT

begin "Install packages" "Run scripts/install.sh alone to see why; it needs root or sudo and a package index."
scripts/install.sh

begin "Build into build/release" "Read the compiler's message above; 'rm -rf build/release' starts afresh."
if [ ! -f build/release/build.ninja ]; then
  echo "The first time this takes some minutes: about five on two processors."
  cmake --preset release -DRIPPLEKV_TESTS=OFF -Wno-dev > build-configure.log 2>&1 || { cat build-configure.log >&2; false; }
  rm -f build-configure.log
fi
cmake --build build/release --target ripplekv-server ripplekv-calibration-server ripplekv -- --quiet

begin "Get the model" "Run scripts/get_model.sh alone to see why."
scripts/get_model.sh

begin "Start the server" "Its log is $run/server.log."
mkdir -p "$run"
read -r port metrics_port < <(.venv/bin/python - <<'PYTHON'
import socket
sockets = [socket.socket() for _ in range(2)]
for s in sockets:
    s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))
PYTHON
)
server=127.0.0.1:$port
build/release/ripplekv-server --model "$model" --listen "$server" --metrics-listen "127.0.0.1:$metrics_port" \
  --profile-dir profiles --retention 0.2 > "$run/server.log" 2>&1 &
server_pid=$!
ripplekv() { build/release/ripplekv --server "$server" "$@"; }
ripplekv health --wait 60 || { tail -n 5 "$run/server.log" >&2; exit 1; }

begin "Calibrate: measure how much each layer's cache matters" "The server's log is $run/server.log."
ripplekv calibrate

begin "The profile, and what each layer keeps of a prompt of 4,096 tokens" "The server's log is $run/server.log."
ripplekv profile
ripplekv plan --prompt-tokens 4096

begin "Ask a question about a document ($document)" "The server's log is $run/server.log."
printf '%s\n\n' "$question"
ripplekv generate --document "$document" --question "$question" --max-tokens 96 --next-token-kl --stats

if [ $keep = 1 ]; then
  disown "$server_pid"
  cat <<EOF_KEEP

The server stays up (process $server_pid, log $run/server.log). Call it:
  build/release/ripplekv --server $server generate --document FILE --question "..."
  build/release/ripplekv --server $server chat
  curl http://127.0.0.1:$metrics_port/metrics
Stop it: kill $server_pid
EOF_KEEP
else
  begin "Stop the server" "Kill process $server_pid by hand."
  kill -TERM "$server_pid"
  wait "$server_pid"
  server_pid=""
  echo "done"
fi
