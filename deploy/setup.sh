#!/usr/bin/env bash
# Installs from apt the packages that Seer needs to build and test, and only those that are missing. As root, or with sudo. Run
# it as often as you like: if nothing is missing it does nothing, in a moment. With --tests also what tests need that are skipped
# else: PyTorch, an ssh server, network namespaces and pip; where they cannot be had, these tests stay skipped.
# Without apt-get it only prints what to install by other means.
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config python3
  libcaf-dev libssl-dev openssl
  libboost-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev
  libpcre2-dev libspdlog-dev
  doctest-dev
)
# The build and its tests do without these where they are missing.
optional_packages=(
  ccache librocksdb-dev libucx-dev libutf8proc-dev libsentencepiece-dev libmimalloc-dev prometheus-cpp-dev python3-zmq
)
test_packages=(python3-torch iproute2 openssh-server openssh-client systemd python3-pip python3-setuptools python3-wheel)

# missing_packages PACKAGE...
missing_packages() {
  local package
  for package in "$@"; do
    [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || echo "$package"
  done
}

main() {
  local wants_tests=0
  case ${1:-} in
    -h | --help)
      sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      echo "Packages: ${packages[*]}"
      echo "Optional: ${optional_packages[*]}"
      echo "With --tests: ${test_packages[*]}"
      exit 0
      ;;
    --tests) wants_tests=1 ;;
    ?*)
      echo "setup: unexpected argument $1: expected --tests, --help or none" >&2
      exit 2
      ;;
  esac
  if ! command -v apt-get >/dev/null; then
    # They may be there already: CMake names what the build misses.
    if ((wants_tests)); then optional_packages+=("${test_packages[@]}"); fi
    echo "setup: this machine has no apt-get; install by other means what is missing of ${packages[*]};" \
      "optional: ${optional_packages[*]}" >&2
    return
  fi
  local missing missing_optional missing_tests=()
  mapfile -t missing < <(missing_packages "${packages[@]}")
  mapfile -t missing_optional < <(missing_packages "${optional_packages[@]}")
  if ((wants_tests)); then mapfile -t missing_tests < <(missing_packages "${test_packages[@]}"); fi
  local all_missing=("${missing[@]}" "${missing_optional[@]}" "${missing_tests[@]}")
  if ((${#all_missing[@]} == 0)); then return; fi

  local as_root=()
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      if ((${#missing[@]} > 0)); then
        echo "setup: missing ${all_missing[*]}; run deploy/setup.sh as root, or install sudo" >&2
        exit 1
      fi
      echo "setup: without root or sudo, the build and its tests do without ${all_missing[*]}" >&2
      return
    fi
    as_root=(sudo)
    # Without a terminal nobody can type a password.
    if [[ ! -t 0 ]]; then as_root=(sudo -n); fi
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)

  # install PACKAGE...: fetches package lists only if the present ones do not suffice, which takes longer than many installs, and once.
  local has_lists=0
  install() {
    echo "setup: installing $*"
    "${apt[@]}" install -y --no-install-recommends "$@" >/dev/null 2>&1 && return
    if ((has_lists == 0)); then "${apt[@]}" update && has_lists=1; fi
    "${apt[@]}" install -y --no-install-recommends "$@" >/dev/null
  }
  if ((${#missing[@]} > 0)); then install "${missing[@]}"; fi
  local package
  if ((${#missing_optional[@]} > 0)); then
    install "${missing_optional[@]}" ||
      for package in "${missing_optional[@]}"; do
        install "$package" || echo "setup: $package cannot be installed: the build and its tests do without it" >&2
      done
  fi
  for package in "${missing_tests[@]}"; do
    install "$package" || echo "setup: $package cannot be installed: tests that need it are skipped" >&2
  done
}

main "$@"
