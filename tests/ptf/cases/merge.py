"""Merging of acknowledgements: the sender is told the minimum over the members."""

import random

from bed import Bed, from_router, host_ip, roce, routed
from merging import PSNS, SENDER_AS_SEEN, A, MergeBed, member_ip, msn_of
from wire import ACK, NAK_SEQUENCE


class Minimum(MergeBed):
    """Records 4, 2, 5, then 6: the minimum goes from 2 to 4, and the sender learns of it."""

    def runTest(self):
        self.play([
            (0, A, 4, None),
            (1, A, 2, None),
            (2, A, 5, (A, 2)),  # now every member has been heard of
            (1, A, 6, (A, 4)),
            (0, A, 5, (A, 5)),
            (0, A, 9, None),  # 9, 6, 5: no news
            (2, A, 9, (A, 6)),
            (1, A, 9, (A, 9)),
        ])  # fmt: skip
        self.assertEqual(self.drops()["egress", "absorbed"], 3)


class Lockstep(MergeBed):
    """Members that answer each packet in turn: one ACK for each packet, with the last answer."""

    def runTest(self):
        for psn in range(10):
            self.play([(0, A, psn, None), (1, A, psn, None), (2, A, psn, (A, psn))])


class Credits(MergeBed):
    """Whatever credits members grant, the sender sees no limit; how far MSNs are apart does not matter."""

    def runTest(self):
        for psn, credits in enumerate((0, 1, 30, 31)):
            self.play([(0, credits, psn, None), (1, credits, psn, None), (2, credits, psn, (A, psn))])


class MsnOfMinimum(MergeBed):
    """The MSN that is passed on belongs to the member whose PSN is."""

    def runTest(self):
        self.assertIsNone(self.answer(0, A, 10, msn=7))
        self.assertIsNone(self.answer(1, A, 3, msn=2))
        self.assertEqual(self.answer(2, A, 20, msn=12), (A, 3, 2))
        self.assertEqual(self.answer(1, A, 15, msn=9), (A, 10, 7))
        self.assertEqual(self.answer(0, A, 18, msn=0xFFFFFF), (A, 15, 9))
        self.assertEqual(self.answer(1, A, 19, msn=0), (A, 18, 0xFFFFFF))


class Again(MergeBed):
    """An ACK that answers a retransmission passes again, with the minimum as it is now."""

    def runTest(self):
        self.play([
            (0, A, 3, None), (1, A, 3, None), (2, A, 3, (A, 3)),
            (0, A, 3, (A, 3)), (1, A, 3, (A, 3)), (2, A, 3, (A, 3)), (2, A, 3, (A, 3)),
            (0, A, 7, None),
            (0, A, 7, (A, 3)),
            (1, A, 7, None),
            (2, A, 7, (A, 7)),
            (2, A, 7, (A, 7)),
        ])  # fmt: skip


class Reordered(MergeBed):
    """An ACK older than what its member has said moves nothing back."""

    def runTest(self):
        self.play([
            (0, A, 5, None), (1, A, 5, None), (2, A, 5, (A, 5)),
            (0, A, 2, None),
            (0, A, 0, None),
            (1, A, 8, None), (1, A, 6, (A, 5)),
            (0, A, 9, None), (0, A, 8, (A, 5)),
            (2, A, 9, (A, 8)),  # member 1 is at 8, not at 6
        ])  # fmt: skip


class SilentMember(MergeBed):
    """As long as one member has not answered, no ACK passes, not even for a retransmission."""

    def runTest(self):
        self.play([
            (0, A, 0, None), (1, A, 0, None), (0, A, 0, None), (1, A, 0, None), (0, A, 5, None), (1, A, 9, None),
            (2, A, 0, (A, 0)),
            (2, A, 9, (A, 5)),
        ])  # fmt: skip


class BeforeTheFirst(MergeBed):
    """An ACK of what came before the first PSN is no news, and counts as having been heard of."""

    first_psn = 100

    def runTest(self):
        self.play([(0, A, 100, None), (1, A, 100, None)])
        self.play([(2, A, 99, None), (2, A, 99, (A, 99)), (2, A, 100, (A, 100))])


class Wrap(MergeBed):
    """PSNs wrap from 0xffffff to 0."""

    first_psn = 0xFFFFFD

    def runTest(self):
        self.play([
            (0, A, 0xFFFFFE, None), (1, A, 0xFFFFFF, None), (2, A, 0, (A, 0xFFFFFE)),
            (0, A, 1, (A, 0xFFFFFF)),
            (1, A, 0, (A, 0)),
            (1, A, 0xFFFFFF, None),  # old, although the larger number
            (1, A, 2, None),  # 1, 2, 0
            (2, A, 2, (A, 1)),
            (0, A, 2, (A, 2)),
        ])  # fmt: skip


class FromZero(MergeBed):
    """The first PSN 0: what came before is 0xffffff."""

    members = 2

    def runTest(self):
        self.play([(0, A, 0, None), (1, A, 0, (A, 0)), (1, A, 1, None), (0, A, 1, (A, 1))])


class OneMember(MergeBed):
    """A group of one: everything passes, in the sender's terms."""

    members = 1

    def runTest(self):
        self.play([(0, A, 0, (A, 0)), (0, A, 1, (A, 1)), (0, A, 1, (A, 1)), (0, A, 9, (A, 9)), (0, A, 3, None)])
        self.play([(0, NAK_SEQUENCE, 12, (NAK_SEQUENCE, 12))])


class Sixteen(MergeBed):
    """Sixteen members: each of them can be the one that holds the others back."""

    members = 16

    def runTest(self):
        all_members = range(16)
        self.play([(i, A, 0, (A, 0) if i == 15 else None) for i in all_members])
        for last in all_members:
            psn = last + 1
            self.play([(i, A, psn, None) for i in all_members if i != last])
            self.play([(last, A, psn, (A, psn))])


class Sizes(MergeBed):
    """Groups of any size up to 16: the last answer decides."""

    members = 16

    def runTest(self):
        for size in range(1, 17):
            self.install(modify=True, members=(1 << size) - 1, epoch=size)
            self.play([(i, A, 3, (A, 3) if i == size - 1 else None) for i in range(size)])
            if size < 16:
                self.refused(size, A, 3, "not_member")


class Sparse(MergeBed):
    """Members need not have the lowest indices."""

    members = 16

    def runTest(self):
        self.install(modify=True, members=0x8011, epoch=7)
        self.play([(0, A, 3, None), (15, A, 2, None), (4, A, 9, (A, 2)), (15, A, 9, (A, 3)), (0, A, 9, (A, 9))])


class UnrelatedAck(MergeBed):
    """ACKs from elsewhere, for other queue pairs or other hosts pass as they are."""

    def runTest(self):
        ack = self.packet(0, 5, 9)
        for other in (ack.to(src=host_ip(2)), ack.to(qpn=SENDER_AS_SEEN + 1), ack.to(src=member_ip(15))):
            self.passes(2, other.bytes(), {1: [routed(other.bytes(), from_router(1))]})


class TwoGroups(Bed):
    """Groups with neighbouring slots do not disturb each other."""

    def runTest(self):
        self.hosts(1, 2)
        groups = {}
        for slot in (0, 1, 16383):
            qpn = 0x100 + slot
            for i in (0, 15):
                match = {"src": member_ip(i), "dst": host_ip(1), "dest_qp": qpn}
                self.sw.insert("merge_members", match, "from", slot=slot, index=i)
            self.sw.insert(
                "merge_groups", {"slot": slot}, "merge", members=0x8001, epoch=3, initial_psn=0, learn=0,
                source=host_ip(9), sender_qpn=0x200 + slot, cnp_gap=0,
            )  # fmt: skip
            groups[slot] = qpn

        def ack(slot: int, i: int, psn: int):
            packet = roce(2, 1, ACK, groups[slot], psn, syndrome=A, msn=msn_of(psn)).to(src=member_ip(i))
            out = self.exchange(2, packet.bytes())
            told = packet.to(hop=from_router(1), src=host_ip(9), qpn=0x200 + slot, ttl=63)
            return out, told

        for slot, psn in ((0, 10), (1, 20), (16383, 30)):
            self.expect(ack(slot, 0, psn)[0], {})
        for slot, psn in ((0, 10), (1, 20), (16383, 30)):
            out, told = ack(slot, 15, psn)
            self.expect(out, {1: [told.bytes()]})


class Safety(MergeBed):
    """Whatever is lost, doubled or reordered: never told more than all have said, and in the end told all of it."""

    members = 7
    first_psn = PSNS - 40

    def runTest(self):
        rng = random.Random(20231)
        said = [-1] * self.members  # PSNs since the first, cumulatively
        told = -1
        pending: list[tuple[int, int]] = []
        for _ in range(600):
            i = rng.randrange(self.members)
            if rng.random() < 0.7 or not pending:
                pending.append((i, min(said[i] + rng.randrange(0, 5), 400)))
            i, ack = pending.pop(rng.randrange(len(pending))) if rng.random() < 0.8 else rng.choice(pending)
            said[i] = max(said[i], ack)
            if got := self.answer(i, A, (self.first_psn + ack) % PSNS):
                news = (got.psn - self.first_psn) % PSNS
                news = news - PSNS if news > PSNS // 2 else news
                self.assertLessEqual(news, min(said), "told more than all members have said")
                self.assertGreaterEqual(news, told, "told less than before")
                told = news
            else:
                self.assertTrue(min(said) <= told or -1 in said, f"{min(said)} was expected, {told} came")
        self.assertEqual(told, min(said))
        self.assertGreater(told, 60)
