#!/usr/bin/env bash
# deploy/quickstart.sh, with a program that is built already: it tells wrong options before it builds, and options given override its own.
# Usage: quickstart.sh [<build folder>]    Exit: 0 passed, 1 failed.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
seer=${1:-$root/build/release}/bin/seer
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "quickstart: FAILED: $*"; exit 1; }

# A tree whose scripts install and build nothing.
mkdir -p "$work/deploy" "$work/build/release/bin"
cp "$root/deploy/quickstart.sh" "$work/deploy/"
ln -s "$root/deploy/models" "$root/deploy/examples" "$work/deploy/"
ln -s "$(realpath "$seer")" "$work/build/release/bin/seer"
for script in setup build; do
  printf '#!/bin/sh\necho %s >>"%s/steps"\n' "$script" "$work" >"$work/deploy/$script.sh"
  chmod +x "$work/deploy/$script.sh"
done
quickstart() { "$work/deploy/quickstart.sh" "$@" >"$work/said" 2>&1; }

quickstart --no-such-option
code=$?
((code == 2)) || fail "exit code $code for a wrong option: $(cat "$work/said")"
grep -q -- '--no-such-option' "$work/said" || fail "it does not name the wrong option: $(cat "$work/said")"
[[ ! -e $work/steps ]] || fail "it built before it told the wrong option"

prompts=$work/two.jsonl
head -n 2 "$root/deploy/examples/scratchpad/prompts.jsonl" >"$prompts"
quickstart --model "$root/deploy/models/scratchpad-1m8" --prompts="$prompts" --group-size 1 --max-tokens 16 --chunk-tokens 16 ||
  fail "with --model and --prompts: $(cat "$work/said")"
[[ $(cat "$work/steps") == $'setup\nbuild' ]] || fail "it did $(cat "$work/steps"), expected setup and build"
responses=$(wc -l <"$work/build/quickstart/responses.jsonl")
((responses == 2)) || fail "$responses responses, expected 2"
echo "quickstart: passed"
