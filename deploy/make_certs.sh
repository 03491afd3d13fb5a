#!/usr/bin/env bash
# Makes certificates for mutual TLS in a cluster: a CA, and for each NAME a certificate with its key.
#   deploy/make_certs.sh DIR [DAYS [NAME...]]      DIR/ca.pem, DIR/ca.key (keep it away from the machines), DIR/NAME.pem, DIR/NAME.key
# They suit tests and a cluster with one owner. DAYS defaults to 365; without NAMEs it makes one certificate, node, that all machines
# may share. Existing files are not replaced.
set -euo pipefail
if [[ ${1:-} == -h || ${1:-} == --help || $# -lt 1 ]]; then
  sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0
  exit 2
fi
folder=$1
days=${2:-365}
names=("${@:3}")
((${#names[@]} > 0)) || names=(node)
if ! command -v openssl >/dev/null; then
  echo "make_certs: needs openssl: apt-get install openssl" >&2
  exit 1
fi
if [[ ! $days =~ ^[1-9][0-9]*$ ]]; then
  echo "make_certs: $days: expected a number of days, at least 1" >&2
  exit 2
fi
for name in "${names[@]}"; do
  if [[ ! $name =~ ^[A-Za-z0-9._-]+$ || $name == ca ]]; then
    echo "make_certs: $name: expected a name of letters, digits, dots, _ and -, but not ca" >&2
    exit 2
  fi
done
files=()
for name in ca "${names[@]}"; do files+=("$folder/$name.pem" "$folder/$name.key" "$folder/$name.csr"); done
for file in "${files[@]}"; do
  if [[ -e $file ]]; then
    echo "make_certs: $file is there already: expected another folder" >&2
    exit 1
  fi
done
mkdir -p "$folder"
umask 077  # only the owner may read keys

new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
log=$(mktemp)
trap 'rm -f "$log"; for name in "${names[@]}"; do rm -f "$folder/$name.csr"; done' EXIT
run() {
  openssl "$@" >"$log" 2>&1 || { cat "$log" >&2; echo "make_certs: openssl $1 failed" >&2; exit 1; }
}
run req -x509 "${new_key[@]}" -days "$days" -subj "/CN=seer cluster CA" -keyout "$folder/ca.key" -out "$folder/ca.pem"
for name in "${names[@]}"; do
  run req "${new_key[@]}" -subj "/CN=seer $name" -keyout "$folder/$name.key" -out "$folder/$name.csr"
  run x509 -req -in "$folder/$name.csr" -CA "$folder/ca.pem" -CAkey "$folder/ca.key" -set_serial "0x$(openssl rand -hex 8)" \
    -days "$days" -out "$folder/$name.pem"
  echo "make_certs: --tls-cert $folder/$name.pem --tls-key $folder/$name.key --tls-ca $folder/ca.pem"
done
