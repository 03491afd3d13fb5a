#!/bin/sh
# Tests `seer serve` with OpenAI's own client for Node: completions, chats, streams and errors. Fetches the npm package `openai`
# into <build>/openai_npm.
# Usage: openai_npm.sh [<build folder>]    Exit: 0 passed, 1 failed, 77 skipped.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build/release}
work=$build/openai_npm

skip() { echo "openai_npm: skipped: $1"; exit 77; }
command -v node >/dev/null || skip "node is not installed"
command -v npm >/dev/null || skip "npm is not installed"

mkdir -p "$work"
[ -f "$work/package.json" ] || echo '{"private": true}' >"$work/package.json"
npm install --prefix "$work" --ignore-scripts --no-audit --no-fund --silent openai@6 >"$work/npm.log" 2>&1 ||
  skip "npm cannot fetch openai (see $work/npm.log)"
exec node "$root/tests/integration/openai_npm.mjs" "$work" "$build/bin/seer" "$root/deploy/models/scratchpad-1m8"
