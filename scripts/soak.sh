#!/usr/bin/env bash
# Builds the server and soaks it: thousands of random calls, cancelled, refused, killed and answered, after which no page,
# thread, descriptor or memory may be missing, and a sample of the answers must be those of the same requests alone.
# Exit code 0: all of it held.
#
#   scripts/soak.sh [--requests N] [--seed S] [--model FILE [--kv-memory SIZE]] [--sample N]
#
# --help explains the options. Needs what scripts/install.sh --tests installs.
set -euo pipefail
cd "$(dirname "$0")/.."

for argument in "$@"; do
  if [ "$argument" = -h ] || [ "$argument" = --help ]; then
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    exec .venv/bin/python tests/e2e/soak.py --server build/release/ripplekv-server --help
  fi
done
build=${RIPPLEKV_BUILD_DIR:-build/release}
if [ -z "${RIPPLEKV_BUILD_DIR:-}" ]; then
  cmake --preset release > /dev/null
  cmake --build --preset release --target ripplekv-server -- --quiet
fi
exec .venv/bin/python tests/e2e/soak.py --server "$build/ripplekv-server" "$@"
