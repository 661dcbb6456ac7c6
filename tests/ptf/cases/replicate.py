"""Replication on one switch, and the rewriting of each copy."""

from collections import Counter

from bed import QUEUE, from_router, host_ip, roce, routed
from groups import MC_DST, MC_ID, GroupBed, Member, copy_for, member, multicast, region_for
from p4rt import Replica
from wire import (
    READ_REQUEST,
    SEND_FIRST,
    SEND_LAST,
    SEND_LAST_IMM,
    SEND_MIDDLE,
    SEND_ONLY,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_LAST_IMM,
    WRITE_MIDDLE,
    WRITE_ONLY,
    WRITE_ONLY_IMM,
    ip,
)  # fmt: skip

VA = 0x7F0000000100
RETH = {"va": VA, "rkey": 0x1000, "length": 4096}


class Members(GroupBed):
    """Every opcode of SEND and WRITE reaches 2, 3 and 7 members, rewritten for each."""

    def runTest(self):
        for count in (2, 3, 7):
            members = [member(p) for p in range(2, 2 + count)]
            mc_id = MC_ID + count
            self.install(members, group=count, mc_id=mc_id)
            for opcode in range(SEND_FIRST, WRITE_ONLY_IMM + 1):
                reth = RETH if opcode in (WRITE_FIRST, WRITE_ONLY, WRITE_ONLY_IMM) else {}
                packet = multicast(opcode, 0x10 + opcode, payload=b"immediate, payload", ack_req=True, **reth)
                self.replicated(packet.to(qpn=mc_id), members)
        self.assertEqual(set(self.drops().values()), {0})


class Sizes(GroupBed):
    """Payloads of 0 to 4096 bytes, with padding to whole words, and with immediate data before them."""

    def runTest(self):
        members = [member(2), member(3)]
        self.install(members)
        data = bytes(n * 7 & 0xFF for n in range(4100))
        for size in [*range(0, 18), 63, 64, 65, 255, 256, 511, 1023, 1024, 1025, 2047, 2048, 4093, 4094, 4095, 4096]:
            self.replicated(multicast(SEND_ONLY, size, payload=data[:size]), members)
            self.replicated(multicast(WRITE_ONLY, size, payload=data[:size], **RETH), members)
        self.replicated(multicast(WRITE_ONLY_IMM, 1, payload=data[:4100], **RETH), members)
        self.replicated(multicast(SEND_LAST_IMM, 1, payload=data[:4100]), members)


class Message(GroupBed):
    """A message of several packets: only its first has an address to translate."""

    def runTest(self):
        members = [member(p) for p in (2, 5, 8)]
        self.install(members)
        for first, middle, last, more in (
            (WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, RETH),
            (WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST_IMM, RETH),
            (SEND_FIRST, SEND_MIDDLE, SEND_LAST, {}),
        ):
            packets = [
                multicast(first, 0xFFFFFE, payload=bytes(1024), **more),
                multicast(middle, 0xFFFFFF, payload=b"\1" * 1024),
                multicast(last, 0, payload=b"end", ack_req=True),
            ]
            out = self.exchange(1, *(p.bytes() for p in packets))
            self.expect(out, {m.port: [copy_for(p, m) for p in packets] for m in members})


class UdpChecksum(GroupBed):
    """A UDP checksum that no longer fits becomes 0; where nothing that it covers changes, it stays."""

    def runTest(self):
        self.install([member(2), member(3)])
        self.replicated(multicast(SEND_ONLY, 1, payload=b"x", udp_checksum=0xBEEF), [member(2), member(3)])
        frame = roce(1, 2, SEND_ONLY, 1, 1, payload=b"x", udp_checksum=0xBEEF).bytes()
        self.passes(1, frame, {2: [routed(frame, from_router(2))]})


class Matching(GroupBed):
    """Only the group's source, MC_ID and destination together make a packet multicast."""

    def runTest(self):
        self.install([member(3), member(4)])
        self.sw.insert("routes", {"dst": (MC_DST, 32)}, "to_next_hop", next_hop=2)
        packet = multicast(SEND_ONLY, 1, payload=b"data")
        for other in (packet.to(src=host_ip(5)), packet.to(qpn=MC_ID + 1), packet.to(dst=host_ip(2))):
            frame = other.bytes()
            self.passes(1, frame, {2: [routed(frame, from_router(2))]})
        self.replicated(packet, [member(3), member(4)])
        self.sw.delete("groups", {"src": host_ip(1), "mc_id": MC_ID, "dst": MC_DST})
        self.passes(1, packet.bytes(), {2: [routed(packet.bytes(), from_router(2))]})


class Opcodes(GroupBed):
    """READ, atomics and unknown opcodes to a group are dropped and counted; ACKs and CNPs are not copied."""

    def runTest(self):
        self.install([member(2), member(3)])
        for opcode in [*range(READ_REQUEST, 0x11), *range(0x12, 0x20), 0x40, 0x80, 0xFF]:
            self.dropped(1, multicast(opcode, 1, payload=bytes(28)).bytes(), "opcode")


class Ttl(GroupBed):
    """A packet to a group whose time to live has run out is dropped and counted."""

    def runTest(self):
        self.install([member(2), member(3)])
        for ttl in (1, 0):
            self.dropped(1, multicast(SEND_ONLY, 1, ttl=ttl).bytes(), "ttl")
        self.replicated(multicast(SEND_ONLY, 1, ttl=2), [member(2), member(3)])


class NoReplica(GroupBed):
    """A copy that no rule describes is dropped and counted; the others arrive."""

    def runTest(self):
        self.install([member(2), member(3)])
        self.sw.delete("replicas", {"group": 1, "rid": 3})
        packet = multicast(SEND_ONLY, 1, payload=b"data")
        self.passes(1, packet.bytes(), {2: [copy_for(packet, member(2))]})
        self.assertEqual(self.drops()["egress", "no_replica"], 1)


class TwoOnOnePort(GroupBed):
    """Two members behind one port get a copy each."""

    def runTest(self):
        a, b = member(2), Member(3, 0x333)
        self.install([a, b], pre_groups=[[Replica(2, 2), Replica(2, 3)]])
        packet = multicast(SEND_ONLY, 1, payload=b"data")
        out = self.exchange(1, packet.bytes())
        self.assertEqual(sorted(out.ports), [2])
        self.assertEqual(sorted(out.ports[2]), sorted([copy_for(packet, a), copy_for(packet, b)]))


class Branch(GroupBed):
    """A copy that will be copied again keeps MC_ID, address and rkey; its ICRC is computed anew only if it changes."""

    def runTest(self):
        self.install([], pre_groups=[[Replica(2, 2), Replica(3, 3)]])
        self.sw.insert("replicas", {"group": 1, "rid": 2}, "to_branch", dst=ip("10.88.0.1"), next_hop=2, neutral=0)
        self.sw.insert("replicas", {"group": 1, "rid": 3}, "to_branch", dst=MC_DST, next_hop=3, neutral=0)
        packet = multicast(WRITE_ONLY, 5, payload=b"payload!", udp_checksum=0xBEEF, **RETH)
        out = self.exchange(1, packet.bytes())
        moved = packet.to(hop=from_router(2), dst=ip("10.88.0.1"), ttl=63, udp_checksum=0)
        self.expect(out, {2: [moved.bytes()], 3: [routed(packet.bytes(), from_router(3))]})


class Counters(GroupBed):
    """Packets and bytes of each group, each copy and each region."""

    def runTest(self):
        members = [member(2), member(3)]
        self.install(members)
        write = multicast(WRITE_ONLY, 1, payload=bytes(64), **RETH).bytes()
        send = multicast(SEND_ONLY, 2, payload=bytes(100)).bytes()
        self.exchange(1, write, send, send)
        size = len(write) + 2 * len(send)
        group = {"src": host_ip(1), "mc_id": MC_ID, "dst": MC_DST}
        self.assertEqual(self.sw.direct_counter("groups", group), (3, size))
        for m in members:
            here = {"group": 1, "rid": m.port}
            self.assertEqual(self.sw.direct_counter("replicas", here), (3, size))
            r = region_for(m.port)
            region = here | {"rkey": r.rkey, "va": (r.first, r.last)}
            self.assertEqual(self.sw.direct_counter("regions", region, 1), (1, len(write)))


class PreGroupsBed(GroupBed):
    """A group with four PRE groups: a branch by port 2, 3, 4 or 5, and always a member on port 7."""

    def setUp(self):
        super().setUp()
        self.branches = (2, 3, 4, 5)
        self.install([member(7)], pre_groups=[[Replica(p, p), Replica(7, 7)] for p in self.branches])
        for p in self.branches:
            self.sw.insert("replicas", {"group": 1, "rid": p}, "to_branch", dst=host_ip(9), next_hop=p, neutral=0)

    def branch(self, sport: int) -> int:
        packet = multicast(SEND_ONLY, 1, payload=b"data", sport=sport)
        out = self.exchange(1, packet.bytes())
        (port,) = set(out.ports) - {7}
        moved = packet.to(hop=from_router(port), dst=host_ip(9), ttl=63)
        self.expect(out, {7: [copy_for(packet, member(7))], port: [moved.bytes()]})
        return port


class PreGroupChoice(PreGroupsBed):
    """Flows spread over a group's PRE groups, and each keeps to its own."""

    def runTest(self):
        ports = [self.branch(0xC000 + flow) for flow in range(200)]
        share = Counter(ports)
        for p in self.branches:
            self.assertGreater(share[p], 25, f"{share}")
        self.assertEqual([self.branch(0xC000 + flow) for flow in range(200)], ports)


class Seed(PreGroupsBed):
    """Another seed chooses independently."""

    def runTest(self):
        chosen = []
        for seed in (1, 2):
            self.configure(hash_seed=seed)
            chosen.append([self.branch(0xC000 + flow) for flow in range(200)])
        for p in self.branches:
            again = {b for a, b in zip(*chosen, strict=True) if a == p}
            self.assertEqual(again, set(self.branches), f"where the flows of branch {p} go")


class OtherCounts(GroupBed):
    """A single PRE group and a number of PRE groups that is no power of two work as well."""

    def runTest(self):
        self.install([member(7)], pre_groups=[[Replica(7, 7)]])
        self.replicated(multicast(SEND_ONLY, 1), [member(7)])
        ports = (2, 3, 4)
        self.install([member(p) for p in ports], group=2, mc_id=MC_ID + 1, pre_groups=[[Replica(p, p)] for p in ports])
        seen = set()
        for flow in range(60):
            packet = multicast(SEND_ONLY, 1, sport=0xC000 + flow).to(qpn=MC_ID + 1)
            ((port, got),) = self.exchange(1, packet.bytes()).ports.items()
            self.assertEqual(got, [copy_for(packet, member(port))])
            seen.add(port)
        self.assertEqual(seen, set(ports))


class Many(GroupBed):
    """As many packets at once as the queues are sure to hold: none is lost, doubled or reordered."""

    def runTest(self):
        members = [member(p) for p in (2, 3, 4)]
        self.install(members)
        for first in range(0, 200, QUEUE):
            packets = [multicast(SEND_ONLY, psn, payload=bytes([psn]) * 100) for psn in range(first, first + QUEUE)]
            out = self.exchange(1, *(p.bytes() for p in packets))
            self.expect(out, {m.port: [copy_for(p, m) for p in packets] for m in members})
