#!/usr/bin/env bash
# Makes certificates for mutual TLS in a cluster: a CA, and for each NAME a certificate with its key.
#   deploy/make_certs.sh DIR [DAYS [NAME...]]      DIR/ca.pem, DIR/ca.key (keep it away from the machines), DIR/NAME.pem, DIR/NAME.key
# They suit tests and a cluster with one owner. DAYS defaults to 365; without NAMEs it makes one certificate, node, that all machines
# may share. If DIR has a CA already, the new certificates are signed with it. Existing files are not replaced.
# A certificate is also good for `seer serve`, if NAME is the host name or IP address that clients use (it is the subjectAltName).
# It is valid from a day before now, for hosts whose clock is behind, and no longer than its CA.
set -euo pipefail
if [[ ${1:-} == -h || ${1:-} == --help || $# -lt 1 ]]; then
  sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0
  exit 2
fi
folder=$1
days=${2:-365}
names=("${@:3}")
((${#names[@]} > 0)) || names=(node)

fail() {
  echo "make_certs: $1" >&2
  exit "${2:-1}"
}

command -v openssl >/dev/null || fail "needs openssl: apt-get install openssl"
[[ $days =~ ^[1-9][0-9]{0,4}$ ]] || fail "$days: expected a number of days, from 1 to 99999" 2
for name in "${names[@]}"; do
  [[ $name =~ ^[A-Za-z0-9._:-]+$ && $name != ca ]] || fail "$name: expected a name of letters, digits, dots, :, _ and -, but not ca" 2
done
has_ca=0
if [[ -e $folder/ca.pem || -e $folder/ca.key ]]; then
  [[ -e $folder/ca.key ]] || fail "$folder/ca.key is missing: expected the key of $folder/ca.pem, or another folder"
  [[ -e $folder/ca.pem ]] || fail "$folder/ca.pem is missing: expected the certificate of $folder/ca.key, or another folder"
  has_ca=1
fi
for name in "${names[@]}"; do
  for file in "$folder/$name.pem" "$folder/$name.key"; do
    [[ ! -e $file ]] || fail "$file is there already: expected another name, or another folder"
  done
done
mkdir -p "$folder"
umask 077  # only the owner may read keys
work=$(mktemp -d "$folder/.making.XXXXXX")  # nothing is in the folder before it is complete
trap 'rm -rf "$work"' EXIT

run() {
  openssl "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "openssl $1 failed"; }
}

# new_key NAME SUBJECT: makes NAME.key and NAME.csr.
new_key() {
  run req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$2" -keyout "$work/$1.key" -out "$work/$1.csr"
}

# sign NAME EXTENSIONS OPTION...: makes NAME.pem of NAME.csr. `openssl x509` cannot set when a certificate begins before version 3.4.
sign() {
  printf '%s\n' "$2" >"$work/extensions"
  run ca -batch -notext -config "$work/config" -extfile "$work/extensions" -startdate "$(date -u -d "@$begin" +%Y%m%d%H%M%SZ)" \
    -enddate "$(date -u -d "@$end" +%Y%m%d%H%M%SZ)" -in "$work/$1.csr" -out "$work/$1.pem" "${@:3}"
}

# name_of_host NAME: as a subjectAltName.
name_of_host() {
  if [[ $1 == *:* || $1 =~ ^[0-9]+(\.[0-9]+){3}$ ]]; then echo "IP:$1"; else echo "DNS:$1"; fi
}

export SEER_CERTS_WORK=$work  # not in the file itself, where some characters of a path would have a meaning
cat >"$work/config" <<'END'
[ca]
default_ca = own
[own]
database = $ENV::SEER_CERTS_WORK/index
new_certs_dir = $ENV::SEER_CERTS_WORK
rand_serial = yes
default_md = sha256
policy = any
[any]
commonName = supplied
END
: >"$work/index"
now=$(date +%s)
begin=$((now - 86400))
end=$((now + days * 86400))
if ((has_ca)); then
  cp "$folder/ca.pem" "$folder/ca.key" "$work/"
  ca_end=$(openssl x509 -in "$work/ca.pem" -noout -enddate) || fail "$folder/ca.pem: expected a certificate in PEM format"
  ca_end=$(date -d "${ca_end#*=}" +%s)
  ((ca_end > now)) || fail "$folder/ca.pem has expired: expected another folder, for a new CA and new certificates of all machines"
  if ((ca_end < end)); then end=$ca_end; fi
else
  new_key ca "seer cluster CA"
  sign ca "basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash" -selfsign -keyfile "$work/ca.key"
fi
for name in "${names[@]}"; do
  new_key "$name" "seer $name"
  sign "$name" "basicConstraints = CA:FALSE
subjectAltName = $(name_of_host "$name")
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid" -cert "$work/ca.pem" -keyfile "$work/ca.key"
done

if ((!has_ca)); then mv "$work"/ca.{pem,key} "$folder/"; fi
for name in "${names[@]}"; do
  mv "$work/$name.pem" "$work/$name.key" "$folder/"
  echo "make_certs: --tls-cert $folder/$name.pem --tls-key $folder/$name.key --tls-ca $folder/ca.pem"
done
