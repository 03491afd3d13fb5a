#!/bin/sh
# Opens the page of `seer simulate` and `seer rollout` in a browser: it draws all its charts, without an error on the console, in
# the light and the dark scheme, and fits windows of 1280, 800 and 420 px. The pages are that of the test "sim html: write
# an example page" and that of a small rollout.
# Usage: sim_html.sh [<build folder>]    Exit: 0 passed, 1 failed, 77 skipped. SEER_SIM_HTML_KEEP=FOLDER keeps the pages
# and screenshots of them there. Takes about 20 s.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build/release}
tests=$build/bin/seer_cli_tests

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
[ -n "$browser" ] || { echo "sim_html: skipped: chromium is not installed (apt-get install chromium)"; exit 77; }
seer=$build/bin/seer
[ -x "$tests" ] && [ -x "$seer" ] || { echo "sim_html: $tests or $seer is not built"; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "sim_html: FAILED: $1"; exit 1; }

SEER_SIM_HTML_FILE=$work/page.html "$tests" --no-skip --test-case='sim html: write an example page' >"$work/test.log" ||
  fail "the page was not written: $(cat "$work/test.log")"
"$seer" rollout --model "$root/deploy/models/scratchpad-1m8" --prompts "$root/deploy/examples/scratchpad/prompts.jsonl" \
  --limit 8 --group-size 4 --max-tokens 100 --instances 2 --threads-per-instance 1 --compare verl,divided \
  --html "$work/rollout.html" >"$work/rollout.log" 2>&1 || fail "seer rollout failed: $(tail -1 "$work/rollout.log")"

# open PAGE SCHEME WIDTH OPTION...: 0 is dark and 1 is light, as Blink numbers them. What the page says goes to
# $work/console.
open() {
  page=$1 scheme=$2 width=$3
  shift 3
  timeout 600 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --window-size="$width",5000 \
    --enable-logging=stderr --blink-settings=preferredColorScheme="$scheme" "$@" "file://$work/$page.html" \
    2>"$work/console"
}
# attribute NAME: of <html>, as the page's script left it.
attribute() { sed -n 's/.*<html[^>]* data-'"$1"'="\(-\{0,1\}[0-9]*\)".*/\1/p' "$work/dom.html"; }

# check PAGE SCHEME WIDTH
check() {
  which="($1, scheme $2, $3 px)"
  open "$1" "$2" "$3" --dump-dom >"$work/dom.html" || fail "$browser did not open the page: $(tail -3 "$work/console") $which"
  ! grep 'CONSOLE' "$work/console" || fail "the page wrote to the console $which"
  ! grep -o 'data-error="[^"]*"' "$work/dom.html" || fail "the script failed $which"
  # What is shown ends where the script, which has such words, begins.
  ! sed '/id="tip"/,$d' "$work/dom.html" | grep -q 'NaN\|undefined\|Infinity' ||
    fail "NaN, undefined or Infinity is on the page $which"
  overflow=$(attribute overflow)
  [ "${overflow:-1}" -le 0 ] || fail "the page is ${overflow:-?} px too wide $which"
  drawn=$(attribute drawn)
}

for scheme in 0 1; do
  check page "$scheme" 1280
  # Two workloads of 10 policies, each with 8 charts and 10 x 2 maps of instances, and one of which only the time is known.
  [ "${drawn:-0}" -eq 57 ] || fail "${drawn:-0} charts and maps were drawn, not 57 (scheme $scheme)"
  grep -q '&lt;b&gt;small&lt;/b&gt; &amp; odd' "$work/dom.html" || fail "a name is not shown as it is (scheme $scheme)"
done
for width in 1280 800 420; do
  check rollout 1 "$width"
  # Completions, times, speed and idle time, and 2 x 2 maps; others where there is something to draw.
  [ "${drawn:-0}" -ge 8 ] || fail "${drawn:-0} charts and maps of a rollout were drawn, not 8 or more ($width px)"
done
check page 1 800
check page 1 420
if [ -n "${SEER_SIM_HTML_KEEP:-}" ]; then
  mkdir -p "$SEER_SIM_HTML_KEEP"
  for page in page rollout; do
    cp "$work/$page.html" "$SEER_SIM_HTML_KEEP/"
    for width in 1280 800 420; do open $page 1 $width --screenshot="$SEER_SIM_HTML_KEEP/$page-$width.png"; done
    open $page 0 1280 --screenshot="$SEER_SIM_HTML_KEEP/$page-dark.png"
  done
fi
echo "sim_html: passed: all charts and maps are drawn in each scheme and width"
