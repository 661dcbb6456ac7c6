"""Packets whose lengths lie: dropped and counted, whatever the lie; and none of them harms the next."""

import struct

from bed import Bed, from_router, host_ip, roce, routed, to_router
from groups import GroupBed, member, multicast
from wire import ACK, CNP, IP, SEND_ONLY, UDP, WRITE_FIRST, WRITE_ONLY, arp, ip_checksum, ipv4, patch, sealed, udp

RETH = {"va": 1, "rkey": 2, "length": 4}


def with_lengths(frame: bytes, ip_length: int, udp_length: int) -> bytes:
    """The frame with other lengths, and checksum and ICRC right for them."""
    frame = patch(frame, IP + 2, struct.pack("!H", ip_length & 0xFFFF))
    return sealed(patch(frame, UDP + 4, struct.pack("!H", udp_length & 0xFFFF)))


def with_ip_byte(frame: bytes, at: int, value: int) -> bytes:
    frame = patch(frame, IP + at, bytes([value]))
    ihl = max((frame[IP] & 15) * 4, 20)
    frame = patch(frame, IP + 10, b"\0\0")
    return patch(frame, IP + 10, struct.pack("!H", ip_checksum(frame[IP : IP + ihl])))


class MalformedBed(GroupBed):
    def setUp(self):
        super().setUp()
        self.install([member(2), member(3)])

    def samples(self) -> list[bytes]:
        return [
            roce(1, 2, SEND_ONLY, 7, 9, payload=b"eight by").bytes(),
            roce(1, 2, WRITE_ONLY, 7, 9, payload=b"eight by", **RETH).bytes(),
            roce(1, 2, ACK, 7, 9, syndrome=0x1F, msn=1).bytes(),
            roce(1, 2, CNP, 7, 0, payload=bytes(16)).bytes(),
            multicast(SEND_ONLY, 1, payload=b"eight by").bytes(),
            multicast(WRITE_FIRST, 1, payload=b"eight by", **RETH).bytes(),
        ]

    def malformed(self, *frames: bytes) -> None:
        """Fails unless all of them are dropped and counted as malformed."""
        before = self.drops()
        self.expect(self.exchange(1, *frames), {})
        after = self.drops()
        counted = {k: after[k] - before[k] for k in after if after[k] != before[k]}
        self.assertEqual(counted, {("ingress", "malformed"): len(frames)})


class CutShort(MalformedBed):
    """RoCE packets cut off after any byte behind the Ethernet header."""

    def runTest(self):
        for frame in self.samples():
            self.malformed(*(frame[:size] for size in range(15, len(frame))))
            out = self.exchange(1, frame)
            self.assertTrue(out.ports, "the whole frame no longer passes")


class CutShortOthers(Bed):
    """ARP, TCP and UDP headers cut off."""

    def runTest(self):
        self.hosts(1, 2)
        here, a, b = to_router(1), host_ip(1), host_ip(2)
        for frame, header in (
            (arp(here, 1, 1, a, 0, b), 14 + 28),
            (ipv4(here, a, b, 6, bytes(20)), 34 + 4),
            (ipv4(here, a, b, 17, udp(1, 2, b"")), 34 + 8),
            (ipv4(here, a, b, 1, b"", options=bytes(12)), 34 + 12),
        ):
            for size in range(15, header):
                self.dropped(1, frame[:size], "malformed")


class LengthsDisagree(MalformedBed):
    """The lengths of IP and UDP do not fit each other."""

    def runTest(self):
        for frame in self.samples():
            total, length = len(frame) - IP, len(frame) - UDP
            lies = []
            for by in (1, 2, 4, 8, 100, 1000, 0x7FFF, 0x8000, 0xFFF0):
                lies += [
                    with_lengths(frame, total + by, length), with_lengths(frame, total - by, length),
                    with_lengths(frame, total, length + by), with_lengths(frame, total, length - by),
                ]  # fmt: skip
            self.malformed(*lies)


class TooLong(MalformedBed):
    """Both lengths agree, but there is less in the frame."""

    def runTest(self):
        for frame in self.samples():
            total, length = len(frame) - IP, len(frame) - UDP
            lies = (1, 2, 3, 4, 100, 4000, 5000, 60000, 65535 - total)
            self.malformed(*(with_lengths(frame, total + by, length + by) for by in lies))


class TooShort(MalformedBed):
    """Both lengths agree, but have no room for the headers of the opcode."""

    def runTest(self):
        for frame, least in zip(self.samples(), (24, 40, 28, 24, 24, 40), strict=True):
            self.malformed(*(with_lengths(frame, 20 + n, n) for n in range(0, least)))
            self.malformed(with_lengths(frame, 3, -17))


class Shortened(MalformedBed):
    """Both lengths agree and leave bytes behind the packet: the ICRC, then elsewhere, is wrong."""

    def runTest(self):
        for frame in self.samples():
            total, length = len(frame) - IP, len(frame) - UDP
            least = 40 if frame[42] in (WRITE_ONLY, WRITE_FIRST) else 28 if frame[42] == ACK else 24
            for by in range(1, length - least + 1):
                lie = patch(frame, IP + 2, struct.pack("!H", total - by))
                lie = with_ip_byte(patch(lie, UDP + 4, struct.pack("!H", length - by)), 8, 64)
                self.dropped(1, lie, "icrc")


class TooBig(MalformedBed):
    """More payload than any path MTU has."""

    def runTest(self):
        fits = roce(1, 2, SEND_ONLY, 7, 9, payload=bytes(4128)).bytes()
        self.passes(1, fits, {2: [routed(fits, from_router(2))]})
        for size in (4132, 5000, 8000):
            self.malformed(
                roce(1, 2, SEND_ONLY, 7, 9, payload=bytes(size)).bytes(),
                roce(1, 2, WRITE_ONLY, 7, 9, payload=bytes(size), **RETH).bytes(),
            )


class IpHeader(MalformedBed):
    """Versions other than 4 and header lengths of less than five words."""

    def runTest(self):
        frame = self.samples()[0]
        self.malformed(*(with_ip_byte(frame, 0, 0x40 | words) for words in range(5)))
        self.malformed(*(with_ip_byte(frame, 0, version << 4 | 5) for version in range(16) if version != 4))


class Recovery(MalformedBed):
    """After all of them the switch works as before: no header of one packet is left in the next."""

    def runTest(self):
        good = self.samples()
        want = [self.exchange(1, f).ports for f in good]
        for frame in good:
            self.exchange(1, *(frame[:size] for size in range(15, len(frame), 3)), with_lengths(frame, 20, 0))
            self.assertEqual([self.exchange(1, f).ports for f in good], want)
