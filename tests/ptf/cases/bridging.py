"""Bridging and flooding."""

from bed import MARKER, PORTS, Bed, host_ip, host_mac, roce, to_router
from p4rt import Replica
from wire import SEND_ONLY, Hop, arp, ipv4

BROADCAST = 0xFFFFFFFFFFFF


class Known(Bed):
    """A frame to a known MAC leaves by its port, unchanged, whatever it carries."""

    def runTest(self):
        self.sw.insert("bridge", {"mac": host_mac(2)}, "to_port", port=2)
        hop = Hop(host_mac(2), host_mac(1))
        for frame in (
            ipv4(hop, host_ip(1), host_ip(2), 6, bytes(20), ttl=1),
            roce(1, 2, SEND_ONLY, 5, 6, payload=b"x").to(hop=hop).bytes(),
            hop.bytes(MARKER) + bytes(1),
            hop.bytes(0x86DD) + bytes(1400),
            arp(hop, 2, host_mac(1), host_ip(1), host_mac(2), host_ip(2)),
        ):
            self.passes(1, frame, {2: [frame]})


class Flood(Bed):
    """Broadcasts and unknown MACs go to all ports of the bridge but that which they came from."""

    def runTest(self):
        self.multicast(1, [Replica(p, 0) for p in (1, 2, 3)])
        self.multicast(2, [Replica(p, 0) for p in (4, 5)])
        for group, ports in ((1, (1, 2, 3)), (2, (4, 5))):
            for p in ports:
                self.sw.insert("bridge_ports", {"port": p}, "bridge_port", flood_group=group)
        for dst in (BROADCAST, host_mac(99), 0x01005E000001):
            for port, others in ((1, (2, 3)), (2, (1, 3)), (3, (1, 2)), (4, (5,)), (5, (4,))):
                frame = Hop(dst, host_mac(port)).bytes(MARKER) + b"flood" * 20
                self.passes(port, frame, {p: [frame] for p in others})


class NoBridge(Bed):
    """A frame to an unknown MAC, from a port without a bridge, is dropped and counted."""

    def runTest(self):
        for port in PORTS[1]:
            self.dropped(port, Hop(BROADCAST, host_mac(port)).bytes(MARKER) + bytes(50), "unknown_mac")


class RouterFirst(Bed):
    """What is addressed to the router's MAC is never bridged."""

    def runTest(self):
        self.hosts(1)
        self.sw.insert("bridge_ports", {"port": 1}, "bridge_port", flood_group=1)
        self.multicast(1, [Replica(1, 0), Replica(2, 0)])
        self.dropped(1, ipv4(to_router(1), host_ip(1), host_ip(2), 6, bytes(20)), "no_route")
        self.dropped(1, to_router(1).bytes(MARKER) + bytes(50), "no_route")
