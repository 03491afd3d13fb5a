#!/usr/bin/env bash
# Installs from apt the packages that Seer needs to build and test, and only those that are missing. As root, or with sudo. Run
# it as often as you like: if nothing is missing it does nothing, in a moment.
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config python3
  libcaf-dev librocksdb-dev libucx-dev libssl-dev openssl
  libboost-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
  libpcre2-dev libutf8proc-dev libsentencepiece-dev libmimalloc-dev libspdlog-dev prometheus-cpp-dev
  doctest-dev python3-zmq
)

missing_packages() {
  local package
  for package in "${packages[@]}"; do
    [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || echo "$package"
  done
}

main() {
  case ${1:-} in
    -h | --help)
      sed -n '2,3s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      echo "Packages: ${packages[*]}"
      exit 0
      ;;
    ?*)
      echo "setup: unexpected argument $1: it takes none but --help" >&2
      exit 2
      ;;
  esac
  if ! command -v apt-get >/dev/null; then
    echo "setup: this machine has no apt-get; install these packages by other means: ${packages[*]}" >&2
    exit 1
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]} == 0)); then return; fi

  local as_root=()
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      echo "setup: missing ${missing[*]}; run deploy/setup.sh as root, or install sudo" >&2
      exit 1
    fi
    as_root=(sudo)
    # Without a terminal nobody can type a password.
    if [[ ! -t 0 ]]; then as_root=(sudo -n); fi
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)

  echo "setup: installing ${missing[*]}"
  # Fetch package lists only if the present ones do not suffice: that takes longer than many installs.
  if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1; then
    "${apt[@]}" update
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null
  fi
}

main "$@"
