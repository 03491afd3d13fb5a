#!/usr/bin/env bash
# Packs an archive with which a machine can run Seer without installing anything: deploy/bundle.sh [--seer FILE] [OUT.tar.gz]
# The archive holds one folder: the program with its shared libraries, the shipped model and examples, the scripts that start
# clusters, tests of these, the client of trainers, and the documentation. It does not hold the C library: the machine's own must be at
# least as new as the one here. Nor does it hold NCCL, which is large and needed by --tensor-parallel on GPUs alone.
# The program finds its libraries by its RPATH if patchelf is installed here, else through a script that sets LD_LIBRARY_PATH.
# The same program and libraries give the same bytes.
#   --seer FILE   the program; default: build/release/bin/seer
#   OUT.tar.gz    default: build/seer-VERSION-linux-PROCESSOR.tar.gz
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Parts of the C library: they must fit the machine's loader, so the machine's own are used.
c_library='^(linux-vdso|ld-linux.*|lib(c|m|mvec|pthread|dl|rt|util|resolv|anl|nsl|nss_.*))\.so'

fail() {
  echo "bundle: $1" >&2
  exit "${2:-1}"
}

# libraries_of FILE...: paths of the shared libraries that they need, without those of the C library.
libraries_of() {
  local file needed path
  for file in "$@"; do
    needed=$(ldd "$file") || fail "ldd cannot read $file: expected a program or library of this system"
    ! grep 'not found' <<<"$needed" >&2 || fail "$file needs a library that is not here"
    for path in $(sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' <<<"$needed"); do
      [[ ${path##*/} =~ $c_library ]] || echo "$path"
    done
  done | sort -u
}

# UCX opens its modules itself, from the folder ucx/ beside its libraries, so ldd does not see them. Takes all of them, also for
# networks that Seer does not use: UCX would take a missing one from a UCX installed on the machine.
ucx_modules() {
  local folder module
  folder=${UCX_MODULE_DIR:-}
  if [[ -z $folder ]]; then
    local libucs
    libucs=$(grep '/libucs\.so' <<<"$1") || return 0  # a build without UCX
    folder=$(dirname "$(readlink -f "$libucs")")/ucx
  fi
  for module in "$folder"/libuct_*.so.[0-9]; do  # the name that UCX opens
    if [[ -f $module ]]; then echo "$module"; fi
  done
}

# The licences require that the libraries' notices go with them.
copy_notices() {
  local to=$1 package
  shift
  command -v dpkg >/dev/null || return 0
  mkdir "$to"
  # With /usr merged, a file is listed under the path of either folder.
  for package in $(readlink -f "$@" | sed 'p;s,^/usr,,' | xargs -d '\n' dpkg -S 2>/dev/null | sed 's/[:,].*//' | sort -u); do
    if [[ -f /usr/share/doc/$package/copyright ]]; then cp -L "/usr/share/doc/$package/copyright" "$to/$package"; fi
  done
}

copy_program() {
  local tree=$1 libraries modules more
  libraries=$(libraries_of "$seer")
  modules=$(ucx_modules "$libraries")
  if [[ -n $modules ]]; then
    mkdir "$tree/lib/ucx"
    cp -L $modules "$tree/lib/ucx/"
    more=$(libraries_of $modules)
    # A module may need another one, which is in lib/ucx already.
    libraries=$(printf '%s\n' "$libraries" "$more" | sort -u | grep -vE "/($(ls "$tree/lib/ucx" | paste -sd'|'))\$")
  fi
  cp -L $libraries "$tree/lib/"
  copy_notices "$tree/notices" $libraries
  if command -v patchelf >/dev/null; then
    cp -L "$seer" "$tree/bin/seer"
    # Not RUNPATH, which does not apply to libraries of libraries. A library with its own RUNPATH would not look here either.
    patchelf --force-rpath --set-rpath '$ORIGIN/../lib:$ORIGIN/../lib/ucx' "$tree/bin/seer"
    find "$tree/lib" -type f -exec patchelf --remove-rpath {} +
  else
    cp -L "$seer" "$tree/lib/seer"
    cat >"$tree/bin/seer" <<'SCRIPT'
#!/bin/sh
# Runs Seer with the libraries of this bundle.
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH=$here/../lib:$here/../lib/ucx exec "$here/../lib/seer" "$@"
SCRIPT
    chmod 755 "$tree/bin/seer"
  fi
}

# Finds a fault that would show only on another machine: a library that is found here, but outside of the bundle.
check_program() {
  local tree=$1 program=$1/bin/seer libraries from_elsewhere
  if [[ -f $tree/lib/seer ]]; then program=$tree/lib/seer; fi
  shopt -s nullglob  # a build without UCX has no lib/ucx
  libraries=("$tree"/lib/*.so* "$tree"/lib/ucx/*)
  shopt -u nullglob
  from_elsewhere=$(env -i LD_LIBRARY_PATH="$tree/lib:$tree/lib/ucx" ldd "$program" "${libraries[@]}" |
    sed -n 's/^\t\([^ ]*\) => \(.*\) (0x.*/\1 \2/p; s/^\t\([^ ]*\) => not found/\1 nowhere/p' |
    while read -r name path; do [[ $name =~ $c_library || $path == "$tree"/* ]] || echo "$name ($path)"; done | sort -u)
  [[ -z $from_elsewhere ]] || fail "these libraries would not come from the bundle: $from_elsewhere"
  [[ $(env -i "$tree/bin/seer" --version) == "seer $version" ]] || fail "the program of the bundle does not run"
}

write_readme() {
  cat >"$1" <<EOF_README
# Seer $version, ready to run

For Linux on $(uname -m) with $(getconf GNU_LIBC_VERSION) or later; nothing needs to be installed, and the folder may lie anywhere.

    bin/seer rollout --model deploy/models/scratchpad-1m8 --prompts deploy/examples/scratchpad/prompts.jsonl --out responses.jsonl
    bin/seer help                    # its commands
    bin/seer doctor                  # what this machine has
    deploy/local_cluster.sh 3        # a cluster of three processes on this machine
    tests/integration/local_cluster.sh .    # does such a cluster give the bits of one process here?
    tests/integration/netns_cluster.sh .    # the same with a network between them that is cut meanwhile; as root, minutes

--tensor-parallel on GPUs needs NCCL: install it, or put libnccl.so.2 into lib/.

docs/rollout.md explains rollouts, docs/deploy.md clusters. lib/ has the libraries that the program brings along, notices/ their
licences, LICENSE is that of Seer. README-seer.md is the page of the project; commands in it that build or test need its repository.
EOF_README
}

main() {
  local out="" version
  seer=$root/build/release/bin/seer
  while (($# > 0)); do
    case $1 in
      -h | --help)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
      --seer)
        (($# > 1)) || fail "--seer has no value: expected a program" 2
        seer=$2
        shift
        ;;
      --seer=*) seer=${1#*=} ;;
      -*) fail "unknown option $1: it takes --seer FILE and --help" 2 ;;
      *)
        [[ -z $out ]] || fail "a second file, $1: expected one archive, $out" 2
        out=$1
        [[ $out == *.tar.gz || $out == *.tgz ]] || fail "$out: expected a name that ends in .tar.gz" 2
        ;;
    esac
    shift
  done
  [[ -f $seer && -x $seer ]] ||
    fail "there is no program $seer: build it with deploy/build.sh release seer, or name it with --seer FILE"
  version=$("$seer" --version) || fail "$seer does not run here"
  version=${version#seer }
  local name
  name=seer-$version-linux-$(uname -m)
  out=${out:-$root/build/$name.tar.gz}
  [[ -d $(dirname "$out") ]] || fail "$out: there is no folder $(dirname "$out") to make it in"

  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  local tree=$work/$name
  mkdir -p "$tree/bin" "$tree/lib" "$tree/deploy"
  copy_program "$tree"
  local part
  for part in cluster_nodes.sh usable_cpus.sh local_cluster.sh netns_cluster.sh netns_network.sh ssh_cluster.sh ssh_host.sh make_certs.sh \
    seer.toml client models examples sim systemd slurm grafana; do
    if [[ -e $root/deploy/$part ]]; then cp -R "$root/deploy/$part" "$tree/deploy/"; fi
  done
  mkdir -p "$tree/tests/integration"
  for part in local_cluster.sh netns_cluster.sh lossy_links.py exact_part.sh; do
    cp "$root/tests/integration/$part" "$tree/tests/integration/"
  done
  cp -R "$root/docs" "$root/LICENSE" "$tree/"
  cp "$root/README.md" "$tree/README-seer.md"
  write_readme "$tree/README.md"
  check_program "$tree"

  # Written beside the old one, then renamed, so that an archive under its name is always whole.
  tar -C "$work" --exclude=__pycache__ --sort=name --owner=0 --group=0 --numeric-owner --mode=u+w,go=rX \
    --mtime="@$(stat -Lc %Y "$seer")" -cf - "$name" | gzip -n >"$out.partial" || fail "$out cannot be written"
  mv "$out.partial" "$out"
  echo "$out: $(du -h "$out" | cut -f1), to be unpacked anywhere: tar -xzf FILE && $name/bin/seer help"
  if grep -qaF libnccl.so.2 "$seer"; then
    echo "not in it: libnccl.so.2, which --tensor-parallel on GPUs needs; install NCCL there, or put the library into $name/lib"
  fi
}

main "$@"
