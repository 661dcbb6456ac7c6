"""Unicast routing."""

import struct

from bed import CAPTURES, PUNT_LOCAL, Bed, from_router, host_ip, roce, routed, to_router
from p4rt import PacketIn
from wire import ACK, CMP_SWAP, IP, READ_REQUEST, SEND_ONLY, UDP, WRITE_ONLY, ip, ipv4, patch, pcap, udp


class KernelCaptures(Bed):
    """What Linux's own RoCE stack sends passes unchanged but for MACs, TTL and IP checksum."""

    def runTest(self):
        self.hosts(1, 2)
        frames = [f for path in sorted(CAPTURES.glob("*.pcap")) for f in pcap(path)]
        self.assertGreater(len(frames), 100)
        for dst in {f[30:34] for f in frames}:
            self.sw.insert("routes", {"dst": (int.from_bytes(dst, "big"), 32)}, "to_next_hop", next_hop=2)
        for frame in frames:
            frame = patch(frame, 0, to_router(1).bytes(0x0800))
            self.passes(1, frame, {2: [routed(frame, from_router(2))]})


class LongestPrefix(Bed):
    """The longest prefix wins, whatever the order of insertion."""

    def runTest(self):
        self.hosts()
        for p in (1, 2, 3, 4):
            self.next_hop(p, p, from_router(p))
        for prefix, length, hop in (("10.1.2.0", 24, 2), ("10.0.0.0", 8, 1), ("0.0.0.0", 0, 4), ("10.1.2.3", 32, 3)):
            self.sw.insert("routes", {"dst": (ip(prefix), length)}, "to_next_hop", next_hop=hop)
        for dst, hop in (("10.1.2.3", 3), ("10.1.2.2", 2), ("10.1.3.3", 1), ("11.1.2.3", 4), ("255.255.255.255", 4)):
            frame = roce(8, 1, SEND_ONLY, 7, 1).to(dst=ip(dst)).bytes()
            self.passes(8, frame, {hop: [routed(frame, from_router(hop))]})


class Drops(Bed):
    """What cannot be routed is dropped and counted under its reason."""

    def runTest(self):
        self.hosts(1, 2)
        packet = roce(1, 2, SEND_ONLY, 7, 1, payload=b"data")
        self.dropped(1, packet.to(dst=ip("10.9.9.9")).bytes(), "no_route")
        self.dropped(1, packet.to(ttl=1).bytes(), "ttl")
        self.dropped(1, packet.to(ttl=0).bytes(), "ttl")
        frame = packet.to(ttl=2).bytes()
        self.passes(1, frame, {2: [routed(frame, from_router(2))]})

        self.sw.insert("routes", {"dst": (ip("10.3.0.0"), 16)}, "to_next_hop", next_hop=77)
        self.dropped(1, packet.to(dst=ip("10.3.0.1")).bytes(), "no_next_hop")
        self.sw.insert("next_hops", {"next_hop": 77}, "to_port", port=3)
        self.dropped(1, packet.to(dst=ip("10.3.0.1")).bytes(), "no_neighbour", "egress")
        self.sw.insert("routes", {"dst": (ip("10.4.0.0"), 16)}, "no_route")
        self.dropped(1, packet.to(dst=ip("10.4.0.1")).bytes(), "no_route")

        self.dropped(1, to_router(1).bytes(0x86DD) + bytes(60), "no_route")


class DropBytes(Bed):
    """The drop counters count bytes too."""

    def runTest(self):
        self.hosts(1)
        frame = roce(1, 2, SEND_ONLY, 7, 1, payload=bytes(100)).bytes()
        self.exchange(1, frame, frame)
        self.assertEqual(self.sw.counter("ingress.drops", 4), (2, 2 * len(frame)))


class IpChecksum(Bed):
    """A packet with a wrong IP checksum goes no further; the checksum covers options too."""

    def runTest(self):
        self.hosts(1, 2)
        for frame in (
            roce(1, 2, SEND_ONLY, 7, 1).bytes(),
            ipv4(to_router(1), host_ip(1), host_ip(2), 6, bytes(20)),
            ipv4(to_router(1), host_ip(1), host_ip(2), 1, bytes(8), options=b"\x07\x07\x04" + bytes(5)),
        ):
            self.passes(1, frame, {2: [routed(frame, from_router(2))]})
            self.dropped(1, patch(frame, IP + 11, bytes([frame[IP + 11] ^ 1])), "ip_checksum")
        self.dropped(1, patch(frame, IP + 22, b"\x08"), "ip_checksum")


class OtherTraffic(Bed):
    """TCP, ICMP, other UDP, IP options and fragments are routed like RoCE."""

    def runTest(self):
        self.hosts(1, 2)
        a, b = host_ip(1), host_ip(2)
        here = to_router(1)
        roce_payload = roce(1, 2, SEND_ONLY, 7, 1, payload=b"abcd").bytes()[UDP:]
        for frame in (
            ipv4(here, a, b, 6, struct.pack("!HH", 1000, 50051) + bytes(36)),
            ipv4(here, a, b, 1, b"\x08\0" + bytes(30)),
            ipv4(here, a, b, 17, udp(53, 53, b"question", 0x1234)),
            ipv4(here, a, b, 47, bytes(1)),
            ipv4(here, a, b, 89, b""),
            ipv4(here, a, b, 17, roce_payload, options=b"\x01" * 4),
            ipv4(here, a, b, 17, roce_payload, options=b"\x01" * 40),
            ipv4(here, a, b, 17, roce_payload, frag=0x2000),  # the first fragment
            ipv4(here, a, b, 17, roce_payload, frag=0x0003),  # a later one
            ipv4(here, a, b, 17, b"", frag=0x0003),
            ipv4(here, a, b, 6, b"", frag=0x0003),
            ipv4(here, a, b, 6, bytes(1400), tos=0xB8),
        ):
            self.passes(1, frame, {2: [routed(frame, from_router(2))]})


class EveryOpcode(Bed):
    """Unicast RoCE passes whatever its opcode: also READ, atomics, unknown ones, ACKs of no group."""

    def runTest(self):
        self.hosts(1, 2)
        for opcode in range(256):
            packet = roce(1, 2, opcode, 0x123456, opcode, payload=bytes(range(32)), udp_checksum=0xBEEF)
            frame = packet.bytes()
            self.passes(1, frame, {2: [routed(frame, from_router(2))]})
        for packet in (
            roce(1, 2, WRITE_ONLY, 1, 2, va=1 << 63, rkey=5, length=4, payload=b"data"),
            roce(1, 2, READ_REQUEST, 1, 2, payload=bytes(16)),
            roce(1, 2, CMP_SWAP, 1, 2, payload=bytes(28)),
            roce(1, 2, ACK, 1, 2, syndrome=0x1F, msn=9),
        ):
            frame = packet.bytes()
            self.passes(1, frame, {2: [routed(frame, from_router(2))]})


class Trailer(Bed):
    """Padding behind the IP packet, as Ethernet needs it for short ones, is no error and stays."""

    def runTest(self):
        self.hosts(1, 2)
        for packet in (
            roce(1, 2, SEND_ONLY, 7, 1).bytes(),
            roce(1, 2, ACK, 7, 1, syndrome=0x1F, msn=1).bytes(),
            ipv4(to_router(1), host_ip(1), host_ip(2), 6, bytes(20)),
        ):
            for padding in (b"\0", bytes(6), b"\xaa" * 30):
                frame = packet + padding
                self.passes(1, frame, {2: [routed(frame, from_router(2))]})


class Local(Bed):
    """IP to an address of the router goes to the agent, unchanged and whatever its TTL."""

    def runTest(self):
        self.hosts(1, 2)
        self.sw.insert("routes", {"dst": (ip("10.0.0.254"), 32)}, "to_agent")
        for ttl in (64, 1, 0):
            frame = ipv4(to_router(1), host_ip(1), ip("10.0.0.254"), 6, bytes(40), ttl=ttl)
            self.expect(self.exchange(1, frame), {}, [PacketIn(1, PUNT_LOCAL, frame)])
