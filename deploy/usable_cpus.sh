# shellcheck shell=bash
# What control groups leave to this process: `docker run --cpus`, limits of Kubernetes and Slurm. nproc does not see them; the program
# does (cli/machine_memory.cpp). Sourced, not run.
machine_root=""  # another folder with proc/ and sys/, to try these by hand

# control_groups KIND: prints the folders of this process's groups and of all groups above them, of version 2, and of version 1 for KIND
# (cpu, memory). In a container the names may be the host's; then only the topmost folders exist.
control_groups() {
  local kinds path mount
  while IFS=: read -r _ kinds path; do
    case ,$kinds, in
      ,,) mount=/sys/fs/cgroup ;;
      *,"$1",*) mount=/sys/fs/cgroup/$1 ;;
      *) path="" ;;
    esac
    while [[ -n $path ]]; do
      echo "$machine_root$mount$path"
      path=${path%/*}
    done
  done < <(cat "$machine_root/proc/self/cgroup" 2>/dev/null)
  printf '%s\n' "$machine_root/sys/fs/cgroup" "$machine_root/sys/fs/cgroup/$1"
}

# usable_cpus: prints how many CPUs this process can use at a time: those that it may run on, but no more than the smallest quota allows.
# Rounded down, because threads beyond a quota only wait; at least 1.
usable_cpus() {
  local cpus group quota period
  cpus=$(nproc)
  while IFS= read -r group; do
    # Version 2 has "QUOTA PERIOD" or "max PERIOD", version 1 a file for each, with -1 for no quota.
    read -r quota period < <(cat "$group"/cpu.{max,cfs_quota_us,cfs_period_us} 2>/dev/null | tr '\n' ' ') || true
    if [[ "$quota $period" =~ ^[1-9][0-9]*\ [1-9][0-9]*$ ]] && ((quota / period < cpus)); then cpus=$((quota / period)); fi
  done < <(control_groups cpu)
  echo $((cpus > 0 ? cpus : 1))
}
