#!/usr/bin/env bash
# From a fresh machine to a rollout: installs what is missing, builds, and rolls out the shipped prompts on the shipped model with
# two CPU instances, as many as take about a minute here. Options given here are passed to `seer rollout` and override those below:
# --policy divided or --limit 0 (all prompts), say; build/release/bin/seer help rollout lists them all.
set -euo pipefail
for argument in "$@"; do
  if [[ $argument == -h || $argument == --help ]]; then
    echo "usage: deploy/quickstart.sh [OPTION...]"
    sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
  fi
done
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
seer=$root/build/release/bin/seer

models=("$here"/models/*/)
if ((${#models[@]} != 1)); then
  echo "quickstart: expected one model folder in deploy/models, found ${#models[@]}" >&2
  exit 1
fi
results=$root/build/quickstart
mkdir -p "$results"
prompts=$here/examples/scratchpad/prompts.jsonl
# Instances and DRAM have little KV, so that requests move through the pool and some KV goes to disk and comes back.
defaults=(--model "${models[0]%/}" --prompts "$prompts" --instances 2
          --max-tokens 3072 --chunk-tokens 512 --kv-bytes 96MiB --dram-bytes 64MiB
          --group-size 8 --out "$results/responses.jsonl" --report "$results/report.json")

# Sets `arguments`: the defaults that "$@" does not name, then "$@". An option may be given only once.
merge() {
  local i
  arguments=(rollout)
  for ((i = 0; i < ${#defaults[@]}; i += 2)); do
    if [[ " $* " != *" ${defaults[i]} "* && " $* " != *" ${defaults[i]}="* ]]; then
      arguments+=("${defaults[i]}" "${defaults[i + 1]}")
    fi
  done
  arguments+=("$@")
}

# Wrong options are told before minutes of building, where the program is there already.
if [[ -x $seer ]]; then
  merge "$@"
  "$seer" "${arguments[@]}" --print-config >/dev/null
fi

"$here/setup.sh"
"$here/build.sh" release seer
# A build without RocksDB keeps no KV on disk, and refuses the option.
if ldd "$seer" | grep librocksdb >/dev/null; then defaults+=(--cold-dir "$results/cold"); fi

# Rolls out one response of each of the first prompts and prints how many tokens per second and per response that gave.
trial_responses=32
measure() {
  merge --group-size 1 --limit $trial_responses --out "$results/trial.jsonl" --report "$results/trial.json"
  "$seer" "${arguments[@]}" >"$results/trial.log" 2>&1 || { cat "$results/trial.log" >&2; return 1; }
  python3 - "$results/trial.json" <<'END'
import json, sys
report = json.load(open(sys.argv[1]))
print(int(report["tokens_per_s"]), report["output_tokens"] // report["finished"])
END
}

# The value of option $1 in `arguments`.
value_of() {
  local i
  for ((i = 0; i < ${#arguments[@]}; ++i)); do
    case ${arguments[i]} in
      "$1") echo "${arguments[i + 1]}" ;;
      "$1="*) echo "${arguments[i]#*=}" ;;
    esac
  done
}

# Unless the caller chose the work: as many prompts as take about this long.
seconds=60
if [[ " $* " =~ " --"(limit|model|prompts|engines|cluster)[\ =] ]]; then
  merge "$@"
else
  measured=$(measure)
  read -r tokens_per_s response_tokens <<<"$measured"
  merge "$@"
  group_size=$(value_of --group-size)
  total=$(wc -l <"$prompts")
  limit=$((seconds * tokens_per_s / (response_tokens * (group_size > 0 ? group_size : 1))))
  limit=$((limit < 4 ? 4 : limit > total ? total : limit))
  echo "quickstart: this machine makes about $tokens_per_s tokens per second, so $limit of $total prompts take about" \
    "$((limit * group_size * response_tokens / tokens_per_s)) seconds"
  arguments+=(--limit "$limit")
fi
echo "+ build/release/bin/seer ${arguments[*]}"
"$seer" "${arguments[@]}"
