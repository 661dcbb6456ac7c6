"""The test bed: two switches, hosts on their ports, and a base class for tests.

PTF's ports 1 to 8 are ports 1 to 8 of the first switch, 11 to 14 are ports 1 to 4
of the second. Port 9 of each leads to the other. The host on port p is 10.0.0.p.
"""

from __future__ import annotations

import itertools
import queue
import re
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

import ptf
from ptf.base_tests import BaseTest
from ptf.testutils import test_params_get

from p4rt import Info, PacketIn, Replica, Switch
from wire import IP, Hop, Roce, fields, ip, ip_checksum, ipv4, mac, patch

HERE = Path(__file__).resolve().parent.parent
ARTIFACTS = HERE.parent.parent / "bmv2"
CAPTURES = HERE.parent.parent / "pkg/rocev2/testdata"

PORTS = {1: range(1, 9), 2: range(11, 15)}  # by switch
LINK = 9
ROUTER_MAC = mac("02:00:00:00:ff:01")
QUEUE = 50  # frames that may come at once: bmv2's egress queues hold 64
DEADLINE = 5.0  # s until a packet has come out of a switch

MARKER = 253  # an IP protocol for experiments
SCTP = 132  # hardware may have its checksum to compute: the kernel leaves it to the switch itself
HELLO = 0x88B5
PUNT_ARP, PUNT_LOCAL, PUNT_HELLO = 1, 2, 3
RECOMPUTE, CHECK_OFF, NEUTRAL = range(3)  # modes of the ICRC

# The indices of the drop counters, by the reasons' names.
DROPS = {name: i for i, name in enumerate(re.findall(r'"(\w+)"', (ARTIFACTS / "reasons.go").read_text()))}

_switches: dict[int, Switch] = {}
_tags = itertools.count(1)


def host_ip(port: int) -> int:
    return ip("10.0.0.0") + port


def host_mac(port: int) -> int:
    return mac("02:00:00:00:00:00") + port


def to_router(port: int) -> Hop:
    """The Ethernet header of what the host on a port sends to its router."""
    return Hop(ROUTER_MAC, host_mac(port))


def from_router(port: int) -> Hop:
    return Hop(host_mac(port), ROUTER_MAC)


def routed(frame: bytes, hop: Hop) -> bytes:
    """What a router makes of a frame: MACs, TTL, IP checksum, and nothing else."""
    ihl = (frame[IP] & 15) * 4
    frame = patch(frame, 0, hop.bytes(0x0800))
    frame = patch(frame, IP + 8, bytes([frame[IP + 8] - 1]))
    frame = patch(frame, IP + 10, b"\0\0")
    return patch(frame, IP + 10, struct.pack("!H", ip_checksum(frame[IP : IP + ihl])))


def switch(number: int) -> Switch:
    """The connection to a switch, kept from test to test."""
    if number not in _switches:
        info = Info(ARTIFACTS / "mcrdma.p4info.txtpb")
        _switches[number] = Switch(test_params_get()[f"switch{number}"], number, info)
    return _switches[number]


@dataclass
class Out:
    """What came out of the switches, by PTF's port number, and what went to the agent of the first."""

    ports: dict[int, list[bytes]] = field(default_factory=dict)
    cpu: list[PacketIn] = field(default_factory=list)


class Bed(BaseTest):
    """A test with freshly loaded switches. Nothing is in their tables but the markers' way."""

    numbers: tuple[int, ...] = (1,)  # the switches that take part
    guarded: frozenset[int] = frozenset()  # ports of the first switch

    def setUp(self) -> None:
        super().setUp()
        self.sw = switch(1)
        self.config = (ARTIFACTS / "mcrdma.json").read_bytes()
        self._groups: list[tuple[Switch, int]] = []
        for n in self.numbers:
            switch(n).set_pipeline(self.config)
            for owner in self.numbers:
                for p in PORTS[owner]:
                    way = p % 10 if owner == n else LINK
                    switch(n).insert("bridge", {"mac": self._marker_mac(p)}, "to_port", port=way)
        ptf.dataplane_instance.flush()
        while not self.sw.packet_ins.empty():
            self.sw.packet_ins.get()

    def tearDown(self) -> None:
        for sw, group in self._groups:
            sw.delete_multicast(group)
        super().tearDown()

    # Sending and receiving.

    @staticmethod
    def _marker_mac(port: int) -> int:
        return mac("02:00:00:00:fe:00") + port

    def _markers(self, src: int, dst: int, tag: bytes) -> list[bytes]:
        """Frames that the bridge takes from port to port; plain IPv4, so that guarded ports take them.

        One for each way through the switch: in the kernel, if it has a part in this, and in the switch itself.
        """
        protocols = (MARKER, SCTP) if test_params_get()["kind"] == "fastpath" else (MARKER,)
        hop = Hop(self._marker_mac(dst), host_mac(src))
        return [ipv4(hop, host_ip(src), host_ip(dst), p, tag) for p in protocols]

    def send(self, port: int, *frames: bytes) -> None:
        for f in frames:
            ptf.dataplane_instance.send(0, port, f)

    def exchange(self, port: int, *frames: bytes) -> Out:
        """Sends frames into a port and returns everything that comes out anywhere.

        Markers follow the frames from the same port to each port and to the agent.
        Queues keep the order, but for what is urgent, and the markers are not. So what
        has not come out before the marker will not come at all. If the kernel processes
        a part of the packets, two ways lead through the switch, each of which keeps the
        order, and there is a marker for each.
        """
        self.send(port, *frames)
        return self.drain(port)

    def drain(self, port: int) -> Out:
        """Waits until all that was sent into a port has come out."""
        tag = struct.pack("!I", next(_tags)) + bytes(26)
        out = Out()
        everywhere = [p for n in self.numbers for p in PORTS[n]]
        for p in everywhere:
            self.send(port, *self._markers(port, p, tag))
        for p in everywhere:
            if got := self._until(p, self._markers(port, p, tag)):
                out.ports[p] = got
        if port in PORTS[1]:
            hello = Hop(0xFFFFFFFFFFFF, 0).bytes(HELLO) + tag + bytes(20)
            # What came in at the port has left by now; a guarded port takes no hellos.
            self.send(min(set(PORTS[1]) - self.guarded) if port in self.guarded else port, hello)
            while (punted := self.packet_in()).frame != hello:
                out.cpu.append(punted)
        return out

    def _until(self, port: int, markers: list[bytes]) -> list[bytes]:
        got = []
        while markers:
            if (frame := self.receive(port)) in markers:
                markers.remove(frame)
            else:
                got.append(frame)
        return got

    def receive(self, port: int) -> bytes:
        """The next frame from a port."""
        result = ptf.dataplane_instance.poll(0, port, timeout=DEADLINE)
        if result.packet is None:
            self.fail(f"nothing came out of port {port} within {DEADLINE} s: not even the marker of the test bed")
        return result.packet

    def packet_in(self) -> PacketIn:
        try:
            return self.sw.packet_ins.get(timeout=DEADLINE)
        except queue.Empty:
            self.fail(f"no packet-in within {DEADLINE} s: not even the marker of the test bed")

    # Comparing.

    def expect(self, out: Out, ports: dict[int, list[bytes]], cpu: list[PacketIn] | None = None) -> None:
        """Fails unless exactly these frames came out."""
        for p in sorted(set(out.ports) | set(ports)):
            got, want = out.ports.get(p, []), ports.get(p, [])
            if got != want:
                self.fail(f"port {p}:\n" + "\n".join(_difference(got, want)))
        self.assertEqual(out.cpu, cpu or [], "packets to the agent")

    def passes(self, port: int, frame: bytes, ports: dict[int, list[bytes]]) -> None:
        self.expect(self.exchange(port, frame), ports)

    def dropped(self, port: int, frame: bytes, reason: str, side: str = "ingress") -> None:
        """Fails unless the frame comes out nowhere and is counted once, under this reason."""
        before = self.drops()
        self.expect(self.exchange(port, frame), {})
        after = self.drops()
        counted = {k: after[k] - before[k] for k in after if after[k] != before[k]}
        self.assertEqual(counted, {(side, reason): 1})

    def drops(self) -> dict[tuple[str, str], int]:
        """The drop counters of the first switch, in packets."""
        cells = {side: self.sw.counters(f"{side}.drops") for side in ("ingress", "egress")}
        return {(side, name): cells[side][index].packets for side in cells for name, index in DROPS.items()}

    # Setting up.

    def next_hop(self, number: int, port: int, hop: Hop, sw: Switch | None = None) -> None:
        sw = sw or self.sw
        sw.insert("next_hops", {"next_hop": number}, "to_port", port=port)
        sw.insert("egress.neighbour.neighbours", {"next_hop": number}, "rewrite", src=hop.src, dst=hop.dst)

    def hosts(self, *ports: int, sw: Switch | None = None) -> None:
        """Routes to the hosts on these ports. The next hop of a host is its port's number."""
        sw = sw or self.sw
        sw.insert("router_macs", {"mac": ROUTER_MAC}, "NoAction")
        for p in ports:
            self.next_hop(p, p % 10, from_router(p), sw)
            sw.insert("routes", {"dst": (host_ip(p), 32)}, "to_next_hop", next_hop=p)

    def multicast(self, group: int, replicas: list[Replica], sw: Switch | None = None) -> None:
        sw = sw or self.sw
        sw.multicast(group, replicas)
        self._groups.append((sw, group))

    def configure(self, icrc_mode: int = RECOMPUTE, hash_seed: int = 0) -> None:
        self.sw.set_default("settings", "configure", icrc_mode=icrc_mode, hash_seed=hash_seed, owner=0, numbers=0)

    def eventually(self, condition, what: str) -> None:
        """Polls until the condition holds."""
        end = time.monotonic() + DEADLINE
        while not condition():
            if time.monotonic() > end:
                self.fail(f"not within {DEADLINE} s: {what}")
            time.sleep(0.005)


def roce(src: int, dst: int, opcode: int, qpn: int, psn: int, **more) -> Roce:
    """A packet of the host on port src to the host on port dst, by way of the router."""
    return Roce(to_router(src), host_ip(src), host_ip(dst), opcode, qpn, psn, **more)


def _difference(got: list[bytes], want: list[bytes]) -> list[str]:
    lines = [f"{len(got)} frames instead of {len(want)}"]
    for g, w in itertools.zip_longest(got, want):
        if g != w:
            lines += [f"  got  {_describe(g)}", f"  want {_describe(w)}"]
    return lines


def _describe(frame: bytes | None) -> str:
    if frame is None:
        return "nothing"
    text = frame.hex()
    text = text if len(text) < 300 else f"{text[:300]}… ({len(frame)} bytes)"
    try:
        return f"{text}\n       {fields(frame)}"
    except (struct.error, IndexError, ValueError):
        return text
