#!/bin/sh
# The page of `seer simulate` in a browser: it draws all its charts, without an error on the console, in the light and
# the dark scheme. The page is that of the test "sim html: write an example page".
# Usage: sim_html.sh [<build folder>]    Exit: 0 passed, 1 failed, 77 skipped. SEER_SIM_HTML_KEEP=FOLDER keeps the page
# and screenshots of both schemes there. Takes about 5 s.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build/release}
tests=$build/bin/seer_cli_tests

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
[ -n "$browser" ] || { echo "sim_html: skipped: chromium is not installed (apt-get install chromium)"; exit 77; }
[ -x "$tests" ] || { echo "sim_html: $tests is not built"; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "sim_html: FAILED: $1"; exit 1; }

SEER_SIM_HTML_FILE=$work/page.html "$tests" --no-skip --test-case='sim html: write an example page' >"$work/test.log" ||
  fail "the page was not written: $(cat "$work/test.log")"

# open SCHEME OPTION...: 0 is dark and 1 is light, as Blink numbers them. What the page says goes to $work/console.
open() {
  scheme=$1
  shift
  timeout 600 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --window-size=1280,5000 \
    --enable-logging=stderr --blink-settings=preferredColorScheme="$scheme" "$@" "file://$work/page.html" \
    2>"$work/console"
}

for scheme in 0 1; do
  open "$scheme" --dump-dom >"$work/dom.html" || fail "$browser did not open the page: $(tail -3 "$work/console")"
  ! grep 'CONSOLE' "$work/console" || fail "the page wrote to the console (scheme $scheme)"
  ! grep -o 'data-error="[^"]*"' "$work/dom.html" || fail "the script failed (scheme $scheme)"
  # Two workloads of 10 policies, each with 8 charts and 10 x 2 maps of instances, and one of which 4 figures are known.
  drawn=$(sed -n 's/.*<html[^>]* data-drawn="\([0-9]*\)".*/\1/p' "$work/dom.html")
  [ "${drawn:-0}" -eq 60 ] || fail "${drawn:-0} charts and maps were drawn, not 60 (scheme $scheme)"
  grep -q '&lt;b&gt;small&lt;/b&gt; &amp; odd' "$work/dom.html" || fail "a name is not shown as it is (scheme $scheme)"
  # What is shown ends where the script, which has such words, begins.
  ! sed '/id="tip"/,$d' "$work/dom.html" | grep -q 'NaN\|undefined\|Infinity' ||
    fail "NaN, undefined or Infinity is on the page (scheme $scheme)"
done
if [ -n "${SEER_SIM_HTML_KEEP:-}" ]; then
  mkdir -p "$SEER_SIM_HTML_KEEP"
  cp "$work/page.html" "$SEER_SIM_HTML_KEEP/"
  open 1 --screenshot="$SEER_SIM_HTML_KEEP/light.png"
  open 0 --screenshot="$SEER_SIM_HTML_KEEP/dark.png"
fi
echo "sim_html: passed: $drawn charts and maps drawn in each scheme"
