"""Multicast groups for tests: members, and the rules that make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bed import Bed, from_router, host_ip, host_mac, roce
from p4rt import Replica, Switch
from wire import Hop, Roce, ip, neutral

MC_ID = 0x800001
MC_DST = ip("10.77.0.1")  # what the sender's queue pair is connected to


@dataclass(frozen=True)
class Region:
    """A memory region of the sender's, first to last byte, and where a receiver has its own."""

    rkey: int
    first: int
    last: int
    offset: int  # from the sender's addresses to the receiver's, modulo 2^64
    to_rkey: int

    def translate(self, va: int) -> int:
        return (va + self.offset) % (1 << 64)


@dataclass(frozen=True)
class Member:
    """A receiver: the host on a port, with a queue pair. Its replication id is its port."""

    port: int
    qpn: int
    regions: tuple[Region, ...] = ()


def region_for(port: int) -> Region:
    """A region of 1 MiB at 0x7f0000000000 under rkey 0x1000, elsewhere at each receiver."""
    first = 0x7F0000000000
    return Region(0x1000, first, first + 0xFFFFF, port << 32, 0x2000 + port)


def member(port: int) -> Member:
    return Member(port, 0x100 + port, (region_for(port),))


def multicast(opcode: int, psn: int, **more) -> Roce:
    """A packet of the host on port 1 to the group."""
    return roce(1, 1, opcode, MC_ID, psn, **more).to(dst=MC_DST)


def copy_for(packet: Roce, m: Member) -> bytes:
    """What a member has to receive: unicast, as far as it can tell."""
    packet = packet.to(hop=from_router(m.port), dst=host_ip(m.port), qpn=m.qpn, ttl=packet.ttl - 1, udp_checksum=0)
    if packet.va is not None:
        for r in m.regions:
            if r.rkey == packet.rkey and r.first <= packet.va <= r.last:
                return packet.to(va=r.translate(packet.va), rkey=r.to_rkey).bytes()
        packet = packet.to(rkey=0)
    return packet.bytes()


class GroupBed(Bed):
    """Installs groups: group number, PRE group and rules, in the order in which an agent would."""

    def setUp(self) -> None:
        super().setUp()
        self.hosts(*range(1, 9))

    def install(
        self, members: Sequence[Member], group: int = 1, pre_groups: Sequence[Sequence[Replica]] | None = None,
        mc_id: int = MC_ID, dst: int = MC_DST, sw: Switch | None = None,
    ) -> None:  # fmt: skip
        """A group of host 1's. Its PRE groups are 16 * group and following."""
        sw = sw or self.sw
        pre_groups = pre_groups or [[Replica(m.port % 10, m.port) for m in members]]
        for n, replicas in enumerate(pre_groups):
            self.multicast(16 * group + n, list(replicas), sw)
        for m in members:
            self.receiver(m, group, sw, mc_id, dst)
        sw.insert(
            "groups", {"src": host_ip(1), "mc_id": mc_id, "dst": dst}, "replicate",
            group=group, first_pre_group=16 * group, pre_groups=len(pre_groups),
        )  # fmt: skip

    def receiver(
        self, m: Member, group: int = 1, sw: Switch | None = None, mc_id: int = MC_ID, dst: int = MC_DST
    ) -> None:
        sw = sw or self.sw
        here = {"group": group, "rid": m.port}
        to = host_ip(m.port)
        constant = neutral(dst=dst ^ to, qpn=mc_id ^ m.qpn)
        sw.insert("replicas", here, "to_receiver", dst=to, qpn=m.qpn, next_hop=m.port, neutral=constant)
        for r in m.regions:
            match = here | {"rkey": r.rkey, "va": (r.first, r.last)}
            constant = 0 if r.offset else neutral(rkey=r.rkey ^ r.to_rkey)
            sw.insert("regions", match, "translate", priority=1, offset=r.offset, rkey=r.to_rkey, neutral=constant)

    def replicated(self, packet: Roce, members: Sequence[Member]) -> None:
        """Fails unless each member gets its copy, byte for byte, and no other port anything."""
        self.passes(1, packet.bytes(), {m.port: [copy_for(packet, m)] for m in members})


def link_hop(number: int) -> Hop:
    """The Ethernet header of what switch `number` sends over the link to the other."""
    return Hop(host_mac(0xFD00 + 3 - number), host_mac(0xFD00 + number))
