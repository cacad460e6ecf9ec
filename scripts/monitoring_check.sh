#!/usr/bin/env bash
# Checks the monitoring against running servers: starts servers, Prometheus and Alertmanager with the configuration of
# deploy/prometheus, sends requests, and sees that every recording rule and every query of the dashboard has data, that
# every alert fires when its condition is caused, and that Alertmanager passes it on. Then that the rules' unit tests
# notice rules that are a little wrong. Takes some minutes. Needs scripts/install.sh --tests, a build, and Debian's prometheus
# and prometheus-alertmanager; where those two are missing it says so and does nothing.
#
#   scripts/monitoring_check.sh                      with a tiny model made up for it
#   scripts/monitoring_check.sh --model FILE.gguf    with a real one
#   scripts/monitoring_check.sh --picture FILE.png   draw the dashboard as it is at the end, too
set -euo pipefail
cd "$(dirname "$0")/.."

for argument in "$@"; do
  case "$argument" in
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
  esac
done

missing=()
for tool in prometheus promtool amtool; do
  command -v "$tool" > /dev/null || missing+=("$tool")
done
# Debian's name of it, and its own.
command -v prometheus-alertmanager > /dev/null || command -v alertmanager > /dev/null || missing+=(alertmanager)
if [ ${#missing[@]} -gt 0 ]; then
  echo "monitoring_check: skipped: ${missing[*]} missing (Debian: apt-get install prometheus prometheus-alertmanager)"
  exit 0
fi

.venv/bin/python tests/deploy/live_monitoring.py "$@"
.venv/bin/python -m pytest -q tests/deploy/rule_mutations.py
echo "monitoring_check: all passed"
