#!/usr/bin/env bash
# `cmake --install` into an empty folder: the installed program runs from elsewhere, bash completes it, its manual page
# is clean, and the scripts' --help changes nothing. Usage: install.sh [<build folder>]    Exit: 0 passed, 1 failed.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build/release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "install: FAILED: $*"; exit 1; }

cmake --install "$build" --prefix "$work/usr" >"$work/log" 2>&1 || fail "cmake --install: $(cat "$work/log")"
cd "$work" || exit 1
seer=$work/usr/bin/seer
share=$work/usr/share
for file in man/man1/seer.1 bash-completion/completions/seer zsh/site-functions/_seer fish/vendor_completions.d/seer.fish \
  doc/seer/LICENSE doc/seer/examples/seer.toml; do
  [[ -s $share/$file ]] || fail "share/$file is missing or empty"
done

# The program brings its workloads, and takes the installed example.
"$seer" simulate --workload moonlight --policies verl --seeds 1 --requests 8 >"$work/table" 2>&1 || fail "simulate: $(cat "$work/table")"
grep -q verl "$work/table" || fail "no table: $(cat "$work/table")"
"$seer" rollout --config "$share/doc/seer/examples/seer.toml" --print-config | cmp - "$root/deploy/seer.toml" || fail "seer.toml"

# complete WORD...: what bash offers for the last word.
complete_words() {
  bash --norc -c 'source "$0" && COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) && _seer 2>/dev/null; printf "%s " "${COMPREPLY[@]}"' \
    "$share/bash-completion/completions/seer" seer "$@"
}
offers() {
  local expected=$1
  shift
  [[ $(complete_words "$@") == "$expected " ]] || fail "bash offers \"$(complete_words "$@")\" for seer $*, not \"$expected\""
}
mkdir -p models/one && touch prompts.jsonl
offers "rollout" ro
offers "--policy" rollout --pol
offers "--seeds --seed" simulate --seed
offers "seer seer+" rollout --policy see
offers "seer seer+" rollout --policy = see
offers "verl,divided verl,divided-rr" rollout --compare verl,di
offers "verl,seer verl,seer+" rollout --compare = verl,se
offers "models" rollout --model mod
offers "prompts.jsonl" rollout --prompts prom
offers "bash" completion b
offers "simulate" help si
offers "" rollout --seed 1
# Every option of --help is offered, and nothing else.
for command in rollout score profile simulate doctor; do
  "$seer" "$command" --help | grep -oE '^  (-h,)?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+' | sort >help.txt
  complete_words "$command" -- | tr ' ' '\n' | grep . | sort >offered.txt
  [[ -s help.txt ]] || fail "no options in the help of $command"
  diff help.txt offered.txt || fail "options of $command in its help (<) and as completed (>)"
  sed 's/-/\\-/g; s/.*/\\fB&\\fR/' help.txt | while read -r option; do
    grep -qF -- "$option" "$share/man/man1/seer.1" || echo "$option"
  done >missing.txt
  [[ -s missing.txt ]] && fail "not in the manual page: $(cat missing.txt)"
done
for shell in zsh fish; do
  file=$share/zsh/site-functions/_seer
  [[ $shell == fish ]] && file=$share/fish/vendor_completions.d/seer.fish
  if command -v $shell >/dev/null; then $shell -n "$file" || fail "$shell does not read $file"; else echo "install: no $shell here"; fi
done

# The manual page, by whatever is here to judge it.
if command -v groff >/dev/null; then
  groff -man -ww -b -z -Tutf8 "$share/man/man1/seer.1" 2>"$work/groff" || fail "groff: $(cat "$work/groff")"
  [[ -s $work/groff ]] && fail "groff: $(cat "$work/groff")"
fi
if command -v mandoc >/dev/null; then
  mandoc -T lint -W error "$share/man/man1/seer.1" || fail "mandoc finds errors"
fi

# --help of the scripts prints, and changes nothing: where they are there is nothing that they could use.
mkdir -p tree/deploy tree/tests
cp "$root"/deploy/*.sh tree/deploy/
cp "$root/tests/run.sh" tree/tests/
find tree | sort >before.txt
for script in deploy/quickstart.sh deploy/build.sh deploy/setup.sh tests/run.sh; do
  for flag in --help -h; do
    PATH=/usr/bin:/bin timeout 20 bash "tree/$script" "$flag" >said.txt 2>err.txt || fail "$script $flag: exit $?: $(cat err.txt)"
    [[ -s said.txt && ! -s err.txt ]] || fail "$script $flag said: $(cat said.txt err.txt)"
  done
done
find tree | sort | diff before.txt - || fail "--help of a script changed its folder"
echo "install: passed"
