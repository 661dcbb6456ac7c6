"""Source guard: hosts at guarded ports speak for themselves only."""

from bed import HELLO, MARKER, Bed, host_ip, host_mac, roce, to_router
from wire import SEND_ONLY, Hop, arp, ipv4

BROADCAST = 0xFFFFFFFFFFFF


class GuardBed(Bed):
    """Port 1 is guarded, and host 1 is there. Port 2 is not. All goes on to port 3."""

    guarded = frozenset({1})

    def setUp(self):
        super().setUp()
        self.sw.insert("guarded_ports", {"port": 1}, "NoAction")
        self.sw.insert("port_hosts", {"port": 1, "ip": host_ip(1)}, "host", mac=host_mac(1))
        self.sw.insert("bridge", {"mac": host_mac(3)}, "to_port", port=3)
        self.sw.insert("bridge", {"mac": BROADCAST}, "to_port", port=3)


class OwnName(GuardBed):
    """What a host sends in its own name passes, and so does what is neither IPv4 nor ARP."""

    def runTest(self):
        hop = Hop(host_mac(3), host_mac(1))
        for frame in (
            ipv4(hop, host_ip(1), host_ip(3), 6, bytes(20)),
            roce(1, 3, SEND_ONLY, 5, 6, payload=b"x").to(hop=hop).bytes(),
            arp(hop, 2, host_mac(1), host_ip(1), host_mac(3), host_ip(3)),
            hop.bytes(MARKER) + bytes(50),
        ):
            self.passes(1, frame, {3: [frame]})


class Spoofed(GuardBed):
    """Another's address, another's MAC, and both in ARP, are dropped and counted."""

    def runTest(self):
        own = Hop(host_mac(3), host_mac(1))
        for frame in (
            ipv4(own, host_ip(2), host_ip(3), 6, bytes(20)),
            roce(2, 3, SEND_ONLY, 5, 6, payload=b"x").to(hop=own).bytes(),
            ipv4(Hop(host_mac(3), host_mac(2)), host_ip(1), host_ip(3), 6, bytes(20)),
            ipv4(own, 0, host_ip(3), 17, bytes(8)),
            arp(own, 2, host_mac(1), host_ip(2), host_mac(3), host_ip(3)),
            arp(own, 2, host_mac(2), host_ip(1), host_mac(3), host_ip(3)),
            arp(Hop(BROADCAST, host_mac(2)), 1, host_mac(1), host_ip(1), 0, host_ip(3)),
            to_router(1).bytes(HELLO) + bytes(60),
        ):
            self.dropped(1, frame, "spoofed")


class Unguarded(GuardBed):
    """At other ports anybody is believed."""

    def runTest(self):
        frame = ipv4(Hop(host_mac(3), host_mac(2)), host_ip(1), host_ip(3), 6, bytes(20))
        self.passes(2, frame, {3: [frame]})


class GroupOfAnother(GuardBed):
    """Data into a group of another source does not reach the replication engine."""

    guarded = frozenset({1, 2})

    def runTest(self):
        own = Hop(host_mac(3), host_mac(1))
        self.sw.insert("guarded_ports", {"port": 2}, "NoAction")
        self.dropped(1, roce(2, 3, SEND_ONLY, 0x800001, 6, payload=b"x").to(hop=own).bytes(), "spoofed")
        self.dropped(2, roce(1, 3, SEND_ONLY, 0x800001, 6, payload=b"x").to(hop=own).bytes(), "spoofed")
