#!/usr/bin/env bash
# From a fresh machine to a rollout: installs what is missing, builds, and rolls out the shipped prompts on the shipped
# model with two CPU instances. Options given here are passed to `seer rollout` and override those below: --policy divided, say
# (build/release/bin/seer help rollout lists them all).
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

"$here/setup.sh"
"$here/build.sh" release seer

models=("$here"/models/*/)
if ((${#models[@]} != 1)); then
  echo "quickstart: expected one model folder in deploy/models, found ${#models[@]}" >&2
  exit 1
fi
results=$root/build/quickstart
mkdir -p "$results"
# Instances and DRAM have little KV, so that requests move through the pool and some KV goes to disk and comes back.
defaults=(--model "${models[0]%/}" --prompts "$here/examples/scratchpad/prompts.jsonl" --instances 2
          --max-tokens 3072 --chunk-tokens 512 --kv-bytes 96MiB --dram-bytes 64MiB --cold-dir "$results/cold"
          --out "$results/responses.jsonl" --report "$results/report.json")
# An option may be given only once, so leave out a default that the command line overrides.
arguments=(rollout)
for ((i = 0; i < ${#defaults[@]}; i += 2)); do
  if [[ " $* " != *" ${defaults[i]} "* && " $* " != *" ${defaults[i]}="* ]]; then
    arguments+=("${defaults[i]}" "${defaults[i + 1]}")
  fi
done
echo "+ build/release/bin/seer ${arguments[*]} $*"
"$root/build/release/bin/seer" "${arguments[@]}" "$@"
