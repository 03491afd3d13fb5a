#!/usr/bin/env python3
"""Links with delay and loss between machines that are network namespaces, where the kernel has no netem.

Takes the ports of the machines off their bridge, and passes their frames on itself: each after the delay, except those that it
loses. At the end the ports are at the bridge again, and a line of JSON says how many frames were passed on and lost.
Run it in the namespace of the bridge: ip netns exec seer-PID-net lossy_links.py --seconds 10 port0 port1 ...
"""

import argparse
import heapq
import json
import random
import select
import socket
import subprocess
import time

ETH_P_ALL = 3
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
VNET_HEADER_BYTES = 10  # before each frame: it may have 64 KiB, to be cut, and no checksum yet
FRAME_BYTES_MAX = 1 << 17


def open_port(name):
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)  # of no protocol: it receives nothing before bind()
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    port.bind((name, ETH_P_ALL))
    port.setblocking(False)
    return port


def carry(ports, delay_s, loss, seconds):
    """Returns how many frames were passed on and lost."""
    chance = random.Random(1)
    at_port = {}  # MAC address: the port behind which it was seen last
    due = []  # (when, number, port it came from, frame)
    taken = passed = lost = 0
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        until = min(due[0][0], end) if due else end
        for port in select.select(ports, [], [], max(0.0, until - now))[0]:
            try:
                frame = port.recv(FRAME_BYTES_MAX)
            except OSError:  # it was set down, or its machine is gone
                continue
            at_port[frame[VNET_HEADER_BYTES + 6 : VNET_HEADER_BYTES + 12]] = port
            if chance.random() < loss:
                lost += 1
                continue
            taken += 1
            heapq.heappush(due, (time.monotonic() + delay_s, taken, port, frame))
        while due and due[0][0] <= time.monotonic():
            _, _, source, frame = heapq.heappop(due)
            passed += 1
            known = at_port.get(frame[VNET_HEADER_BYTES : VNET_HEADER_BYTES + 6])
            for port in [known] if known else ports:
                if port is not source:
                    try:
                        port.send(frame)
                    except OSError:  # its queue is full, or its machine is gone
                        pass
    return passed, lost


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--delay-ms", type=float, default=50)
    arguments.add_argument("--loss", type=float, default=0.1)
    arguments.add_argument("--seconds", type=float, required=True)
    arguments.add_argument("ports", nargs="+")
    given = arguments.parse_args()
    ports = [open_port(name) for name in given.ports]
    try:
        for name in given.ports:
            subprocess.run(["ip", "link", "set", name, "nomaster"], check=True)
        passed, lost = carry(ports, given.delay_ms / 1000, given.loss, given.seconds)
    finally:
        for name in given.ports:
            subprocess.run(["ip", "link", "set", name, "master", "bridge"], check=False)
    print(json.dumps({"passed": passed, "lost": lost}))


if __name__ == "__main__":
    main()
