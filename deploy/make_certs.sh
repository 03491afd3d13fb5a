#!/usr/bin/env bash
# Makes certificates for mutual TLS in a cluster: a CA, and one certificate with its key that all machines may share.
#   deploy/make_certs.sh DIR [DAYS]      DIR/ca.pem, DIR/ca.key (keep it away from the machines), DIR/node.pem, DIR/node.key
# They are good for tests and for a cluster of one owner; DAYS is 365 unless given. Files that are there are not replaced.
set -euo pipefail
if [[ ${1:-} == -h || ${1:-} == --help || $# -lt 1 || $# -gt 2 ]]; then
  sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0
  exit 2
fi
folder=$1
days=${2:-365}
if ! command -v openssl >/dev/null; then
  echo "make_certs: needs openssl: apt-get install openssl" >&2
  exit 1
fi
if [[ ! $days =~ ^[1-9][0-9]*$ ]]; then
  echo "make_certs: $days: expected a number of days, at least 1" >&2
  exit 2
fi
if [[ -e $folder/ca.pem || -e $folder/node.pem ]]; then
  echo "make_certs: $folder has certificates already: expected another folder" >&2
  exit 1
fi
mkdir -p "$folder"
umask 077  # keys are for their owner

new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
log=$(mktemp)
trap 'rm -f "$log" "$folder/node.csr"' EXIT
run() {
  openssl "$@" >"$log" 2>&1 || { cat "$log" >&2; echo "make_certs: openssl $1 failed" >&2; exit 1; }
}
run req -x509 "${new_key[@]}" -days "$days" -subj "/CN=seer cluster CA" -keyout "$folder/ca.key" -out "$folder/ca.pem"
run req "${new_key[@]}" -subj "/CN=seer node" -keyout "$folder/node.key" -out "$folder/node.csr"
run x509 -req -in "$folder/node.csr" -CA "$folder/ca.pem" -CAkey "$folder/ca.key" -set_serial "0x$(openssl rand -hex 8)" -days "$days" -out "$folder/node.pem"
echo "make_certs: --tls-cert $folder/node.pem --tls-key $folder/node.key --tls-ca $folder/ca.pem"
