"""The ICRC: checked on the way in, computed anew only where something covered has changed."""

import struct

from bed import CHECK_OFF, RECOMPUTE, Bed, from_router, roce, routed
from groups import GroupBed, member, multicast
from merging import A, MergeBed
from wire import ACK, AETH, BTH, IP, RETH, SEND_ONLY, UDP, WRITE_ONLY, ip_checksum, patch

RETH_FIELDS = {"va": 0x7F0000000100, "rkey": 0x1000, "length": 8}


def flipped(frame: bytes, at: int, bit: int) -> bytes:
    """The frame with one bit turned round, and its IP checksum right."""
    frame = patch(frame, at, bytes([frame[at] ^ 1 << bit]))
    frame = patch(frame, IP + 10, b"\0\0")
    return patch(frame, IP + 10, struct.pack("!H", ip_checksum(frame[IP : IP + 20])))


class EveryByte(Bed):
    """A bit that is wrong in any byte that the ICRC covers stops the packet."""

    def runTest(self):
        self.hosts(1, 2)
        for packet in (
            roce(1, 2, SEND_ONLY, 7, 9, payload=b"eight by"),
            roce(1, 2, WRITE_ONLY, 7, 9, payload=b"eight by", **RETH_FIELDS),
            roce(1, 2, ACK, 7, 9, syndrome=0x1F, msn=1),
        ):
            frame = packet.bytes()
            self.passes(1, frame, {2: [routed(frame, from_router(2))]})
            addresses = [*range(IP + 4, IP + 6), *range(IP + 12, IP + 20), *range(UDP, UDP + 2)]
            rest = [at for at in range(BTH, len(frame)) if at not in (BTH, BTH + 4)]  # not the opcode, not FECN/BECN
            for at in addresses + rest:
                self.dropped(1, flipped(frame, at, at % 8), "icrc")


class NotCovered(Bed):
    """ToS, TTL, UDP checksum and BECN may change on the way."""

    def runTest(self):
        self.hosts(1, 2)
        frame = roce(1, 2, SEND_ONLY, 7, 9, payload=b"eight by", udp_checksum=1).bytes()
        for at in (IP + 1, IP + 8, UDP + 6, UDP + 7, BTH + 4):
            for bit in range(8) if at != IP + 8 else (0, 1, 2):
                other = flipped(frame, at, bit)
                self.passes(1, other, {2: [routed(other, from_router(2))]})


class NeverMadeRight(GroupBed):
    """A wrong ICRC is never replaced by a right one: neither in copies nor in merged answers."""

    def runTest(self):
        self.install([member(2), member(3)])
        for packet in (
            multicast(SEND_ONLY, 1, payload=b"abcd"),
            multicast(WRITE_ONLY, 1, payload=b"abcd", **RETH_FIELDS),
        ):
            frame = packet.bytes()
            self.dropped(1, frame[:-1] + bytes([frame[-1] ^ 0x80]), "icrc")
            self.dropped(1, frame[:-4] + bytes(4), "icrc")
            self.dropped(1, frame[:-4] + frame[:-5:-1], "icrc")  # the other byte order


class BadAnswer(MergeBed):
    """A damaged answer acknowledges nothing."""

    members = 2

    def runTest(self):
        frame = self.packet(0, A, 9).bytes()
        self.dropped(2, flipped(frame, AETH + 3, 0), "icrc")
        self.assertIsNone(self.answer(1, A, 9))
        self.assertEqual(self.answer(0, A, 3)[:2], (A, 3))
        self.dropped(2, flipped(self.cnp(0).bytes(), BTH + 20, 1), "icrc")


class CheckOff(GroupBed):
    """Mode nic-check-off: ICRCs are neither checked nor set, in unicast as in copies."""

    def runTest(self):
        self.configure(icrc_mode=CHECK_OFF)
        self.install([member(2), member(3)])
        unicast = roce(1, 2, SEND_ONLY, 7, 9, payload=b"eight by").bytes()[:-4] + b"none"
        self.passes(1, unicast, {2: [routed(unicast, from_router(2))]})
        packet = multicast(WRITE_ONLY, 1, payload=b"abcd", **RETH_FIELDS)
        out = self.exchange(1, packet.bytes()[:-4] + b"kept")
        for m in (member(2), member(3)):
            (got,) = out.ports[m.port]
            region = m.regions[0]
            want = packet.to(
                hop=from_router(m.port), dst=0x0A000000 + m.port, qpn=m.qpn, ttl=63,
                va=region.translate(packet.va), rkey=region.to_rkey,
            ).bytes()[:-4] + b"kept"  # fmt: skip
            self.assertEqual(got, want)
        self.configure(icrc_mode=RECOMPUTE)
        self.dropped(1, unicast, "icrc")


class CheckOffAnswers(MergeBed):
    """Mode nic-check-off: a merged answer keeps the ICRC that it came with."""

    members = 1

    def runTest(self):
        self.configure(icrc_mode=CHECK_OFF)
        frame = self.packet(0, A, 4).bytes()[:-4] + b"kept"
        out = self.exchange(2, frame)
        ((port, (got,)),) = out.ports.items()
        self.assertEqual(port, 1)
        self.assertEqual(got[-4:], b"kept")
        self.assertEqual(got[RETH:-4], frame[AETH:-4])
