#!/usr/bin/env bash
# Tries Seer on a fresh machine: the two commands of README.md in a root folder with only apt, and the archive of
# deploy/bundle.sh in a root without apt and without a network. mmdebstrap makes both roots, of this machine's release and from
# its mirrors. Prints how long each part took. Takes a full build and all tests. Needs root and apt-get install mmdebstrap.
#   tests/fresh_machine.sh [BUILD_FOLDER [PART...]]
# BUILD_FOLDER has the program for the archive; default: build/release. PARTs, run in the order given: bundle, quickstart, tests;
# default: all three. TMPDIR must have room for a system with all packages, and a full build. Exit: 0 passed, 1 failed, 77 skipped.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit 0
fi
build=${1:-$root/build/release}
parts=("${@:2}")
((${#parts[@]} > 0)) || parts=(bundle quickstart tests)

fail() { echo "fresh_machine: FAILED: $*" >&2; exit 1; }
skip() { echo "fresh_machine: skipped: $*"; exit 77; }

for part in "${parts[@]}"; do
  [[ $part =~ ^(bundle|quickstart|tests)$ ]] || fail "unknown part $part: expected bundle, quickstart or tests"
done
((EUID == 0)) || skip "needs root"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is not installed (apt-get install mmdebstrap)"
unshare --mount --pid --net --fork true 2>/dev/null || skip "no namespaces here"
# What apt fetches on this machine from Debian or Ubuntu themselves; keys of other sources would be missing in the root.
sources=$(apt-get indextargets --format '$(ORIGIN) deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
  sed -nE 's/^(Debian|Ubuntu) (deb )/\2/p')
[[ -n $sources ]] || skip "apt has no lists of Debian or Ubuntu packages here (apt-get update)"
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[[ -n $release ]] || skip "/etc/os-release has no VERSION_CODENAME"

work=$(mktemp -d)
child=""  # what timed() runs
finish() {
  if [[ -n $child ]]; then kill "$child" && wait "$child" || true; fi 2>/dev/null
  rm -rf --one-file-system "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# make_root NAME VARIANT: $work/NAME has a bare system, as mmdebstrap's VARIANT says.
make_root() {
  local certificates=()
  if [[ $sources == *https://* ]]; then certificates=(--include=ca-certificates); fi
  mmdebstrap --quiet --mode=root --variant="$2" "${certificates[@]}" "$release" "$work/$1" - <<<"$sources" >"$work/log" 2>&1 ||
    fail "mmdebstrap: $(tail -n 5 "$work/log")"
}

# in_root NAME UNSHARE_OPTIONS COMMAND...: runs there with an empty environment. All that it started ends with it, or with us.
in_root() {
  local target=$work/$1
  # shellcheck disable=SC2016,SC2086
  setpriv --pdeathsig KILL unshare --mount --pid --ipc --uts --fork --kill-child $2 bash -euc '
    hostname fresh
    mount -t proc proc "$0/proc"
    mount -t sysfs sysfs "$0/sys"
    if [[ -d /sys/fs/cgroup ]]; then mount --rbind /sys/fs/cgroup "$0/sys/fs/cgroup"; fi  # says how much memory there is
    mount --rbind /dev "$0/dev"
    mount -t tmpfs tmpfs "$0/dev/shm"
    exec chroot "$0" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' \
    "$target" "${@:3}" </dev/null
}

# timed WHAT COMMAND...: its output goes to a log, the end of which is shown where it fails.
timed() {
  local what=$1 begin=$SECONDS code=0
  shift
  "$@" >"$work/$what.log" 2>&1 &
  child=$!
  wait "$child" || code=$?
  child=""
  echo "fresh_machine: $what took $((SECONDS - begin)) s"
  ((code == 0)) || fail "$what: exit code $code: $(tail -n 40 "$work/$what.log")"
}

# Responses, in one order, with what no machine may change: all but turns and times.
exact_part() { sed 's/,"chunks":.*,"run_s":[0-9.e+-]*//' "$1" | sort; }
rollout=(rollout --model deploy/models/scratchpad-1m8 --prompts deploy/examples/scratchpad/prompts.jsonl)

bundle() {
  "$root/deploy/bundle.sh" --seer "$build/bin/seer" "$work/seer.tar.gz" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
  make_root bare essential
  [[ ! -e $work/bare/usr/bin/apt-get ]] || fail "the root for the archive has apt"
  mkdir "$work/bare/opt/seer"
  timed bundle bundle_commands
  (cd "$root" && "$build/bin/seer" "${rollout[@]}" --limit 8 --instances 1 --out "$work/here.jsonl") >"$work/log" 2>&1 || fail "$(cat "$work/log")"
  [[ $(wc -l <"$work/here.jsonl") == 64 ]] || fail "seer rollout wrote $(wc -l <"$work/here.jsonl") responses, not 64"
  diff <(exact_part "$work/here.jsonl") <(exact_part "$work/bare/opt/seer/responses.jsonl") ||
    fail "responses here (<) and of the archive (>)"
  rm -rf --one-file-system "$work/bare"
}
bundle_commands() {
  tar -xzf "$work/seer.tar.gz" --strip-components=1 -C "$work/bare/opt/seer"
  in_root bare --net sh -euc 'cd /opt/seer; bin/seer doctor; exec bin/seer "$@"' sh "${rollout[@]}" --limit 8 --out responses.jsonl
}

make_fresh() {
  [[ ! -d $work/fresh ]] || return 0
  make_root fresh apt
  # Names are looked up, and packages fetched, as this machine does.
  cp -L /etc/resolv.conf "$work/fresh/etc/"
  apt-config dump | grep -iE '^Acquire::.*Proxy' >"$work/fresh/etc/apt/apt.conf.d/proxy" || true
  mkdir "$work/fresh/opt/seer"
  tar -C "$root" --exclude-vcs --exclude=./build -cf - . | tar -C "$work/fresh/opt/seer" --no-same-owner -xf -
}
quickstart() {
  make_fresh
  timed quickstart in_root fresh "" /opt/seer/deploy/quickstart.sh
  [[ -s $work/fresh/opt/seer/build/quickstart/responses.jsonl ]] || fail "quickstart has written no responses: $(tail "$work/quickstart.log")"
  tail -n 12 "$work/quickstart.log"
}
tests() {
  make_fresh
  timed tests in_root fresh "" /opt/seer/tests/run.sh
  sed -n '/ tests passed/,$p' "$work/tests.log"
}

for part in "${parts[@]}"; do "$part"; done
echo "fresh_machine: passed"
