#!/usr/bin/env bash
# deploy/systemd: systemd finds no fault in the units, the program knows the options that they give it, and those that wait for a
# cluster are started again without limit.
# Usage: systemd.sh [<build folder>]    Exit: 0 passed, 1 failed, 77 skipped.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
seer=${1:-$root/build/release}/bin/seer
command -v systemd-analyze >/dev/null || { echo "systemd: skipped: systemd-analyze is not installed (apt-get install systemd)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "systemd: FAILED: $*"; exit 1; }

for unit in "$root"/deploy/systemd/*.service; do
  # The program is not installed here: systemd looks at that of the build.
  sed "s,^ExecStart=/usr/local/bin/seer ,ExecStart=$seer ," "$unit" >"$work/${unit##*/}"
  grep -q "^ExecStart=$seer " "$work/${unit##*/}" || fail "$unit does not start /usr/local/bin/seer"
done
cp "$work/seer-node@.service" "$work/seer-node@3.service"
systemd-analyze verify --man=no "$work/seer-controller.service" "$work/seer-node@3.service" "$work/seer-serve.service" >"$work/said" 2>&1 || fail "$(cat "$work/said")"
[[ ! -s $work/said ]] || fail "$(cat "$work/said")"

for unit in seer-node@ seer-serve; do
  grep -qx 'StartLimitIntervalSec=0' "$root/deploy/systemd/$unit.service" || fail "$unit gives up while there is no cluster"
done

for unit in "$root"/deploy/systemd/*.service; do
  command=$(sed -n 's,^ExecStart=/usr/local/bin/seer \([a-z]*\) .*,\1,p' "$unit")
  "$seer" "$command" --help >"$work/help" || fail "seer $command --help"
  for option in $(grep '^ExecStart=' "$unit" | grep -oE -- ' --[a-z-]+'); do
    grep -qE -- "^  $option " "$work/help" || fail "${unit##*/} gives $option, which seer $command does not have"
  done
done
echo "systemd: passed"
