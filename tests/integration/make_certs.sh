#!/usr/bin/env bash
# deploy/make_certs.sh: its certificates suit both ends of a connection, and more can be made later with the same CA.
# Usage: make_certs.sh [<build folder>]    Exit: 0 passed, 1 failed, 77 skipped.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
command -v openssl >/dev/null || { echo "make_certs: skipped: openssl is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "make_certs: FAILED: $*"; exit 1; }
make() { "$root/deploy/make_certs.sh" "$@" >"$work/said" 2>&1; }
certs=$work/'of #1, $HOME'  # characters that a configuration file of OpenSSL gives a meaning

# check NAME OPTION...: what Python 3.13 asks of a server, and a machine of the other.
check() {
  local purpose
  for purpose in sslserver sslclient; do
    openssl verify -x509_strict -purpose "$purpose" -CAfile "$certs/ca.pem" "${@:2}" "$certs/$1.pem" >"$work/said" 2>&1 ||
      fail "$1.pem as $purpose: $(cat "$work/said")"
  done
}
make "$certs" 30 gpu1.example.com 10.0.0.1 || fail "two names: $(cat "$work/said")"
check gpu1.example.com -verify_hostname gpu1.example.com
check 10.0.0.1 -verify_ip 10.0.0.1
hours_ago=$(($(date +%s) - 20 * 3600))
check 10.0.0.1 -attime "$hours_ago"  # for a host whose clock is behind

ca=$(cat "$certs/ca.pem" "$certs/ca.key")
make "$certs" 365 gpu2 || fail "a further name: $(cat "$work/said")"
check gpu2 -verify_hostname gpu2
[[ $ca == "$(cat "$certs/ca.pem" "$certs/ca.key")" ]] || fail "it replaced the CA"
end=$(openssl x509 -in "$certs/gpu2.pem" -noout -enddate)
[[ $end == "$(openssl x509 -in "$certs/ca.pem" -noout -enddate)" ]] || fail "gpu2.pem has $end, not the CA's"

before=$(cat "$certs"/gpu2.*)
make "$certs" 365 gpu2 && fail "it made gpu2 twice"
[[ $(cat "$work/said") == "make_certs: $certs/gpu2.pem is there already: expected another name, or another folder" ]] || fail "it said $(cat "$work/said")"
[[ $before == "$(cat "$certs"/gpu2.*)" ]] || fail "it replaced gpu2"
rm "$certs/ca.key"
make "$certs" 365 gpu3 && fail "it made gpu3 without a key of the CA"
[[ $(cat "$work/said") == "make_certs: $certs/ca.key is missing: "* ]] || fail "it said $(cat "$work/said")"
[[ -z $(find "$certs" -name '.making*' -o -name '*.csr') ]] || fail "it left files behind"
[[ -z $(find "$certs" -type f -perm /077) ]] || fail "others may read a key"
echo "make_certs: passed"
