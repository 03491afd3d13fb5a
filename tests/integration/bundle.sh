#!/usr/bin/env bash
# deploy/bundle.sh: unpacked in an empty folder, the program runs with an empty environment, takes only the C library from
# elsewhere, and gives the same bits as here, alone and as a cluster.
# Usage: bundle.sh [<build folder>]    Exit: 0 passed, 1 failed.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
seer=${1:-$root/build/release}/bin/seer
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "bundle: FAILED: $*"; exit 1; }
cd "$work" || exit 1
rollout=(rollout --model deploy/models/scratchpad-1m8 --prompts deploy/examples/scratchpad/prompts.jsonl --limit 2 --group-size 2
         --max-tokens 64)
source "$root/tests/integration/exact_part.sh"

"$root/deploy/bundle.sh" --seer "$seer" "$work/seer.tar.gz" >log 2>&1 || fail "$(cat log)"
mkdir "a folder" && tar -xzf seer.tar.gz -C "a folder" || fail "unpacking"
tree=$(echo "$work/a folder"/*)
for file in bin/seer deploy/local_cluster.sh deploy/client/seer_client.py LICENSE README.md docs/rollout.md docs/deploy.md \
  tests/integration/netns_cluster.sh tests/integration/lossy_links.py; do
  [[ -s $tree/$file ]] || fail "$file is missing or empty"
done
[[ -z $(find "$tree" -type l) ]] || fail "links in the bundle: $(find "$tree" -type l)"

(cd "$root" && "$seer" "${rollout[@]}" --instances 1 --out "$work/here.jsonl") >log 2>&1 || fail "seer rollout: $(cat log)"
[[ $(wc -l <here.jsonl) == 4 ]] || fail "seer rollout wrote $(wc -l <here.jsonl) responses, not 4"
(cd "$tree" && env -i bin/seer "${rollout[@]}" --instances 1 --out "$work/bundle.jsonl") >log 2>&1 || fail "bin/seer: $(cat log)"
diff <(exact_part here.jsonl) <(exact_part bundle.jsonl) || fail "responses here (<) and of the bundle (>)"

(cd "$tree" && env -i PATH="$PATH" tests/integration/local_cluster.sh .) >log 2>&1 || fail "a test in the bundle: $(cat log)"

# Once more as a cluster, by a link as one in /usr/local/bin would be; the loader says which libraries it starts.
ln -s "$tree/bin/seer" seer
(cd "$tree" && env -i LD_DEBUG=libs LD_DEBUG_OUTPUT="$work/loader" deploy/local_cluster.sh --seer "$work/seer" \
  --logs "$work/logs" 2 --instances 1 --kv-bytes 2MiB --dram-bytes 16MiB -- \
  bash -c '"$@" --cluster "$SEER_CLUSTER"' bash bin/seer "${rollout[@]}" --out "$work/cluster.jsonl") >log 2>&1 ||
  fail "a cluster of the bundle: $(cat log)"
diff <(exact_part here.jsonl) <(exact_part cluster.jsonl) || fail "responses here (<) and on a cluster of the bundle (>)"
# A process may be several programs in turn (a shell, then seer): libraries start before their program does.
awk 'FNR == 1 {is_seer = 0; libraries = ""}
     /calling init: / {sub(/.*calling init: /, ""); if (is_seer) print; else libraries = libraries $0 "\n"; next}
     /transferring control: / {is_seer = /seer$/; if (is_seer) printf "%s", libraries; libraries = ""}' loader.* | sort -u >loaded
grep -qF "$tree/" loaded || fail "no library of the bundle was loaded"
others=$(grep -vF "$tree/" loaded | grep -vE '/(ld-linux.*|lib(c|m|mvec|pthread|dl|rt|resolv))\.so[^/]*$')
[[ -z $others ]] || fail "libraries from elsewhere: $others"
if [[ $(ldd "$seer") == */libucs.so* ]]; then
  modules=$(cd "$tree/lib/ucx" && ls)
  [[ -n $modules ]] || fail "no module of UCX is in the bundle"
  for module in $modules; do grep -q "/lib/ucx/$module\$" loaded || fail "$module was not loaded: $(cat loaded)"; done
fi

refused() {
  local sentence=$1
  shift
  ! "$root/deploy/bundle.sh" "$@" >log 2>&1 || fail "$* is taken"
  grep -q "^bundle: $sentence" log || fail "$*: $(cat log)"
}
refused "there is no program nowhere" --seer nowhere
refused "out.zip: expected a name that ends in .tar.gz" --seer "$seer" out.zip
refused "nowhere/out.tar.gz: there is no folder nowhere" --seer "$seer" nowhere/out.tar.gz
printf '#!/bin/sh\necho seer 0\n' >script && chmod +x script
refused "ldd cannot read $work/script" --seer "$work/script"
echo "bundle: passed"
