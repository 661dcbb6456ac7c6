"""Replication and merging on two switches: a branch is copied again by the next."""

from bed import LINK, from_router, host_ip, roce, switch
from groups import MC_DST, MC_ID, GroupBed, Member, copy_for, link_hop, member, multicast
from merging import SENDER_AS_SEEN, SENDER_QPN, SLOT
from p4rt import Replica
from wire import ACK, NAK_SEQUENCE, SEND_ONLY, WRITE_ONLY, neutral

BRANCH = 90  # replication id, next hop of the link
RETH = {"va": 0x7F0000000040, "rkey": 0x1000, "length": 12}


class TwoLevels(GroupBed):
    """Installs a group below host 1: some members on the first switch, the others on the second."""

    numbers = (1, 2)

    def setUp(self):
        super().setUp()
        self.second = switch(2)
        self.hosts(*range(11, 15), sw=self.second)
        for number, sw in ((1, self.sw), (2, self.second)):
            sw.insert("router_macs", {"mac": link_hop(3 - number).dst}, "NoAction")
            self.next_hop(BRANCH, LINK, link_hop(number), sw)

    def tree(self, here: list[Member], there: list[Member]) -> None:
        """One group: members on this switch, and a branch to those on the second."""
        representative = host_ip(there[0].port)
        self.install(there, dst=representative, sw=self.second)
        self.sw.insert(
            "replicas", {"group": 1, "rid": BRANCH}, "to_branch",
            dst=representative, next_hop=BRANCH, neutral=neutral(dst=MC_DST ^ representative),
        )  # fmt: skip
        self.install(here, pre_groups=[[*(Replica(m.port, m.port) for m in here), Replica(LINK, BRANCH)]])

    def check(self, here: list[Member], there: list[Member]) -> None:
        """Fails unless each member gets its one copy, one hop older on the second switch."""
        self.tree(here, there)
        for packet in (
            multicast(SEND_ONLY, 3, payload=b"twelve bytes"),
            multicast(WRITE_ONLY, 4, payload=b"twelve bytes", ack_req=True, **RETH),
        ):
            below = packet.to(ttl=packet.ttl - 1)
            want = {m.port: [copy_for(packet, m)] for m in here} | {m.port: [copy_for(below, m)] for m in there}
            self.expect(self.exchange(1, packet.bytes()), want)


class TwoMembers(TwoLevels):
    """One member on each switch."""

    def runTest(self):
        self.check([member(2)], [member(11)])


class ThreeMembers(TwoLevels):
    """One member on the first, two on the second switch."""

    def runTest(self):
        self.check([member(2)], [member(11), member(12)])


class SevenMembers(TwoLevels):
    """Three members on the first, four on the second switch."""

    def runTest(self):
        self.check([member(p) for p in (2, 5, 8)], [member(p) for p in (11, 12, 13, 14)])


class NoneHere(TwoLevels):
    """All members on the second switch: the first only passes the branch on."""

    def runTest(self):
        self.check([], [member(13), member(14)])


class Merged(TwoLevels):
    """The sender's switch merges the answers of members on both: they pass the second as unicast."""

    def runTest(self):
        members = [2, 3, 11, 12, 13]
        self.second.insert("routes", {"dst": (host_ip(1), 32)}, "to_next_hop", next_hop=BRANCH)
        for i, p in enumerate(members):
            match = {"src": host_ip(p), "dst": host_ip(1), "dest_qp": SENDER_AS_SEEN}
            self.sw.insert("merge_members", match, "from", slot=SLOT, index=i)
        self.sw.insert(
            "merge_groups", {"slot": SLOT}, "merge", members=0b11111, epoch=1, initial_psn=0, learn=0,
            source=MC_DST, sender_qpn=SENDER_QPN, cnp_gap=0,
        )  # fmt: skip

        def answer(i: int, psn: int, told: tuple[int, int, int] | None, syndrome: int = 0x1F) -> None:
            port = members[i]
            packet = roce(port, 1, ACK, SENDER_AS_SEEN, psn, syndrome=syndrome, msn=psn + 1)
            want = {}
            if told:
                s, p, m = told
                merged = packet.to(
                    hop=from_router(1), src=MC_DST, qpn=SENDER_QPN, syndrome=s, psn=p, msn=m, ttl=63 - (port > 10)
                )
                want = {1: [merged.bytes()]}
            self.expect(self.exchange(port, packet.bytes()), want)

        for i in range(4):
            answer(i, 5 + i, None)
        answer(4, 9, (0x1F, 5, 6))
        answer(0, 9, (0x1F, 6, 7))
        answer(2, 9, None)
        answer(3, 8, (0x1F, 6, 7))
        answer(3, 9, None)
        answer(4, 11, (NAK_SEQUENCE, 7, 7), NAK_SEQUENCE)
        answer(1, 9, (0x1F, 9, 10))


class Whole(TwoLevels):
    """MC_ID is still there between the switches, and gone behind the last."""

    def runTest(self):
        near, far = [member(2)], [member(11), member(12)]
        self.tree(near, far)
        # Without its group, the second switch routes the copy as it is: to the representative, still with the MC_ID.
        self.second.delete("groups", {"src": host_ip(1), "mc_id": MC_ID, "dst": host_ip(11)})
        packet = multicast(WRITE_ONLY, 4, payload=b"twelve bytes", **RETH)
        between = packet.to(hop=from_router(11), dst=host_ip(11), ttl=62)
        self.expect(self.exchange(1, packet.bytes()), {2: [copy_for(packet, near[0])], 11: [between.bytes()]})
