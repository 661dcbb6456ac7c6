"""Source guard: hosts at guarded ports speak for themselves only."""

from bed import HELLO, Bed, host_ip, host_mac, roce, to_router
from wire import ACK, SEND_ONLY, Hop, arp, ipv4, patch

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
    """What a host sends in its own name passes."""

    def runTest(self):
        hop = Hop(host_mac(3), host_mac(1))
        for frame in (
            ipv4(hop, host_ip(1), host_ip(3), 6, bytes(20)),
            roce(1, 3, SEND_ONLY, 5, 6, payload=b"x").to(hop=hop).bytes(),
            arp(hop, 2, host_mac(1), host_ip(1), host_mac(3), host_ip(3)),
        ):
            self.passes(1, frame, {3: [frame]})


def hidden() -> dict[str, bytes]:
    """Frames that Linux takes for an ACK of host 2, or for part of one, though no plain IPv4 header says so."""
    hop = Hop(host_mac(3), host_mac(1))
    ack = roce(2, 3, ACK, 5, 6, syndrome=0x1F).to(hop=hop).bytes()
    macs, rest = ack[:12], ack[12:]
    udp = ack[34:]
    return {
        "VID 0": macs + b"\x81\0\0\0" + rest,
        "two tags": macs + b"\x81\0\0\0\x81\0\0\0" + rest,
        "802.1ad": macs + b"\x88\xa8\0\0" + rest,
        "QinQ of old": macs + b"\x91\0\0\0" + rest,
        "LLC and SNAP": macs + (len(rest) + 6).to_bytes(2, "big") + b"\xaa\xaa\3\0\0\0" + rest,
        "options": ipv4(hop, host_ip(1), host_ip(3), 17, udp, options=b"\1\1\1\1"),
        "first fragment": ipv4(hop, host_ip(1), host_ip(3), 17, udp[:16], frag=0x2000),
        "later fragment": ipv4(hop, host_ip(1), host_ip(3), 17, udp[16:], frag=0x0002),
        "IPv6": macs + b"\x86\xdd\x60" + bytes(5) + b"\x11\x40" + bytes(32) + udp,
        "neighbor discovery": macs + b"\x86\xdd\x60" + bytes(4) + b"\x08\x3a\xff" + bytes(32) + b"\x88" + bytes(7),
        "any other": macs + b"\x88\xcc" + bytes(50),
    }


class Unreadable(GuardBed):
    """What the guard cannot read does not pass."""

    def runTest(self):
        for frame in hidden().values():
            self.dropped(1, frame, "unreadable")


class MalformedArp(GuardBed):
    """ARP that is not about IPv4 over Ethernet, or neither asks nor answers, does not pass."""

    def runTest(self):
        frame = arp(Hop(host_mac(3), host_mac(1)), 2, host_mac(1), host_ip(1), host_mac(3), host_ip(3))
        for at, value in ((1, 6), (2, 0x86), (4, 8), (5, 16), (7, 3), (6, 1)):
            self.dropped(1, patch(frame, 14 + at, bytes([value])), "unreadable")


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
    """At other ports every sender is believed, and what the guard cannot read is bridged."""

    def runTest(self):
        frame = ipv4(Hop(host_mac(3), host_mac(2)), host_ip(1), host_ip(3), 6, bytes(20))
        for frame in (frame, *hidden().values()):
            self.passes(2, frame, {3: [frame]})


class GroupOfAnother(GuardBed):
    """Data into a group of another source does not reach the replication engine."""

    guarded = frozenset({1, 2})

    def runTest(self):
        own = Hop(host_mac(3), host_mac(1))
        self.sw.insert("port_hosts", {"port": 2, "ip": host_ip(2)}, "host", mac=host_mac(2))
        self.sw.insert("guarded_ports", {"port": 2}, "NoAction")
        self.dropped(1, roce(2, 3, SEND_ONLY, 0x800001, 6, payload=b"x").to(hop=own).bytes(), "spoofed")
        self.dropped(2, roce(1, 3, SEND_ONLY, 0x800001, 6, payload=b"x").to(hop=own).bytes(), "spoofed")
