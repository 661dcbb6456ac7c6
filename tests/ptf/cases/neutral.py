"""Mode neutral: copies keep the ICRC that came; identification and source port cancel the rewriting."""

import struct

from bed import NEUTRAL, from_router, host_ip, roce, routed
from groups import MC_DST, MC_ID, GroupBed, Member, Region, copy_for, member, multicast
from merging import A, MergeBed
from p4rt import Replica
from wire import (
    AETH,
    BTH,
    IP,
    SEND_FIRST,
    SEND_ONLY,
    UDP,
    WRITE_FIRST,
    WRITE_ONLY,
    WRITE_ONLY_IMM,
    Roce,
    icrc,
    ip,
    ip_checksum,
    neutral,
    patch,
)

FIRST = 0x7F0000000000
RETH_FIELDS = {"va": FIRST + 0x100, "rkey": 0x1000, "length": 4096}


def still(port: int) -> Member:
    """A member whose region has the addresses that the sender's packets carry."""
    return Member(port, 0x100 + port, (Region(0x1000, FIRST, FIRST + 0xFFFFF, 0, 0x2000 + port),))


def udp_checksum(frame: bytes) -> int:
    """RFC 768, over the pseudo header, the UDP header and the payload."""
    data = frame[UDP : UDP + 6] + bytes(2) + frame[UDP + 8 :]
    data = frame[IP + 12 : IP + 20] + struct.pack("!HH", 17, len(data)) + data
    return ip_checksum(data + bytes(len(data) % 2)) or 0xFFFF


def summed(packet: Roce) -> Roce:
    """The packet with its UDP checksum."""
    return packet.to(udp_checksum=udp_checksum(packet.bytes()))


def kept(packet: Roce, m: Member) -> bytes:
    """What a member has to receive: unicast, under the ICRC that came."""
    constant = neutral(dst=packet.dst ^ host_ip(m.port), qpn=packet.qpn ^ m.qpn)
    out = packet.to(hop=from_router(m.port), dst=host_ip(m.port), qpn=m.qpn, ttl=packet.ttl - 1)
    if packet.va is not None:
        constant ^= neutral(rkey=packet.rkey ^ m.regions[0].to_rkey)
        out = out.to(rkey=m.regions[0].to_rkey)
    out = out.to(ident=packet.ident ^ constant >> 16, sport=packet.sport ^ constant & 0xFFFF)
    if packet.udp_checksum:
        out = summed(out)
    return out.bytes()[:-4] + packet.bytes()[-4:]


class NeutralBed(GroupBed):
    def setUp(self):
        super().setUp()
        self.configure(icrc_mode=NEUTRAL)

    def keeps(self, packet: Roce, members: list[Member]) -> None:
        want = {m.port: [kept(packet, m)] for m in members}
        for (frame,) in want.values():
            self.assertEqual(frame[-4:], icrc(frame), "what the test wants is wrong")
        self.passes(1, packet.bytes(), want)


class Members(NeutralBed):
    """Every opcode of SEND and WRITE reaches 2, 3 and 7 members."""

    def runTest(self):
        for count in (2, 3, 7):
            members = [still(p) for p in range(2, 2 + count)]
            self.install(members, group=count, mc_id=MC_ID + count)
            for opcode in range(SEND_FIRST, WRITE_ONLY_IMM + 1):
                reth = RETH_FIELDS if opcode in (WRITE_FIRST, WRITE_ONLY, WRITE_ONLY_IMM) else {}
                packet = multicast(opcode, opcode, payload=b"immediate, payload", ident=opcode, **reth)
                self.keeps(packet.to(qpn=MC_ID + count), members)
        self.assertEqual(set(self.drops().values()), {0})


class Sizes(NeutralBed):
    """Payloads of 0 to 4096 bytes, with and without a UDP checksum."""

    def runTest(self):
        members = [still(2), still(3)]
        self.install(members)
        data = bytes(n * 7 & 0xFF for n in range(4096))
        for size in [*range(0, 18), 63, 255, 256, 511, 1023, 1024, 1025, 2047, 2048, 4093, 4094, 4095, 4096]:
            for packet in (
                multicast(SEND_ONLY, size, payload=data[:size]),
                multicast(WRITE_ONLY, size, payload=data[:size], **RETH_FIELDS),
            ):
                self.keeps(packet, members)
                self.keeps(summed(packet), members)


class Branch(NeutralBed):
    """A copy that will be copied again keeps MC_ID, address and rkey, and its ICRC; one that stays as it is, all."""

    def runTest(self):
        self.install([], pre_groups=[[Replica(2, 2), Replica(3, 3)]])
        to = ip("10.88.0.1")
        constant = neutral(dst=MC_DST ^ to)
        branch = {"group": 1, "rid": 2}
        self.sw.insert("replicas", branch, "to_branch", dst=to, next_hop=2, neutral=constant)
        self.sw.insert("replicas", {"group": 1, "rid": 3}, "to_branch", dst=MC_DST, next_hop=3, neutral=0)
        packet = multicast(WRITE_ONLY, 5, payload=b"payload!", **RETH_FIELDS)
        moved = packet.to(
            hop=from_router(2), dst=to, ttl=63, ident=packet.ident ^ constant >> 16, sport=packet.sport ^ constant & 0xFFFF
        )
        self.assertEqual(moved.bytes()[-4:], packet.bytes()[-4:])
        self.passes(1, packet.bytes(), {2: [moved.bytes()], 3: [routed(packet.bytes(), from_router(3))]})


class ComputedAnew(NeutralBed):
    """Where the address moves or no region is there, the ICRC is checked, and computed anew."""

    def runTest(self):
        elsewhere, here = member(2), still(3)
        self.install([elsewhere, here])
        packet = multicast(WRITE_ONLY, 1, payload=b"abcd", **RETH_FIELDS)
        self.passes(1, packet.bytes(), {2: [copy_for(packet, elsewhere)], 3: [kept(packet, here)]})
        nowhere = packet.to(rkey=7)
        self.passes(1, nowhere.bytes(), {2: [copy_for(nowhere, elsewhere)], 3: [copy_for(nowhere, here)]})
        bad = packet.bytes()[:-5] + b"?" + packet.bytes()[-4:]
        out = self.exchange(1, bad)
        self.assertEqual(sorted(out.ports), [3])
        self.assertEqual(self.drops()["egress", "icrc"], 1)


class Damaged(NeutralBed):
    """What is damaged on the way in is passed on damaged: its receiver finds it."""

    def runTest(self):
        self.install([still(2), still(3)])
        for packet in (multicast(SEND_ONLY, 1, payload=b"abcd"), multicast(WRITE_ONLY, 1, payload=b"abcd", **RETH_FIELDS)):
            frame = packet.bytes()
            end = len(frame)
            for at in (*range(BTH + 1, BTH + 4), *range(BTH + 8, BTH + 12), *range(end - 8, end)):
                out = self.exchange(1, frame[:at] + bytes([frame[at] ^ 4]) + frame[at + 1 :])
                for port in (2, 3):
                    (got,) = out.ports[port]
                    self.assertNotEqual(got[-4:], icrc(got), f"byte {at} was damaged")
        unicast = roce(1, 2, SEND_ONLY, 7, 9, payload=b"eight by").bytes()[:-4] + b"none"
        self.passes(1, unicast, {2: [routed(unicast, from_router(2))]})
        self.assertEqual(set(self.drops().values()), {0})


class Answers(MergeBed):
    """Answers are checked, merged, and their ICRC computed anew."""

    members = 2

    def runTest(self):
        self.configure(icrc_mode=NEUTRAL)
        frame = self.packet(0, A, 9).bytes()
        self.dropped(2, frame[: AETH + 3] + bytes([frame[AETH + 3] ^ 1]) + frame[AETH + 4 :], "icrc")
        self.assertIsNone(self.answer(1, A, 9))
        self.assertEqual(self.answer(0, A, 3)[:2], (A, 3))
