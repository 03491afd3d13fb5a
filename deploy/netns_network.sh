# shellcheck shell=bash
# A network of machines that are network namespaces of this host: seer-PID-net has a bridge, and each machine seer-PID-NAME has an
# address on it. Sourced by netns_cluster.sh and tests, which call remove_network at their end. Needs root.
# To cut off a machine, use `ip -n seer-PID-net link set portNAME down`; `up` connects it again.
network=seer-$$
machines=()

# make_network: makes the network, without machines. Fails if this kernel has no network namespaces.
make_network() {
  ip netns add "$network-net" || return
  ip -n "$network-net" link add bridge type bridge
  ip -n "$network-net" link set bridge up
}

# add_machine NAME ADDRESS: makes a namespace with one end of a cable; the other end is at the bridge. Others reach it at ADDRESS.
add_machine() {
  local machine=$network-$1
  ip netns add "$machine"
  machines+=("$1")
  ip -n "$network-net" link add "port$1" type veth peer name eth0 netns "$machine"
  ip -n "$network-net" link set "port$1" master bridge up
  ip -n "$machine" address add "$2/24" dev eth0
  ip -n "$machine" link set lo up
  ip -n "$machine" link set eth0 up
}

remove_network() {
  local name
  for name in net "${machines[@]}"; do ip netns del "$network-$name" 2>/dev/null || true; done
}
