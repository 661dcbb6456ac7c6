"""Groups that change: members that leave, new epochs, first PSNs that are not known."""

from bed import from_router, host_ip, routed
from merging import SENDER_AS_SEEN, SLOT, A, MergeBed, member_ip, msn_of
from wire import NAK_ACCESS, NAK_SEQUENCE, RNR_NAK


class Removed(MergeBed):
    """Without the member that lags behind, the next answer of another tells the sender where the rest is."""

    def runTest(self):
        self.play([(0, A, 9, None), (1, A, 9, None), (2, A, 3, (A, 3))])
        self.install(modify=True, members=0b011)
        self.refused(2, A, 9, "not_member")
        self.refused(2, NAK_SEQUENCE, 9, "not_member")
        self.play([(0, A, 9, (A, 9)), (1, A, 12, None), (0, A, 12, (A, 12))])


class RemovedSilent(MergeBed):
    """A member that never answered no longer holds the others back once it is removed."""

    def runTest(self):
        self.play([(0, A, 9, None), (1, A, 7, None)])
        self.install(modify=True, members=0b011)
        self.play([(1, A, 7, (A, 7)), (1, A, 9, (A, 9))])


class RemovedRule(MergeBed):
    """Without its rule, a member's answers pass as those of any host; they do not count."""

    def runTest(self):
        self.sw.delete("merge_members", {"src": member_ip(2), "dst": host_ip(1), "dest_qp": SENDER_AS_SEEN})
        frame = self.packet(2, A, 9).bytes()
        self.passes(2, frame, {1: [routed(frame, from_router(1))]})
        self.play([(0, A, 9, None), (1, A, 9, None)])


class Joined(MergeBed):
    """A member that joins within an epoch, behind the others: the sender is not told less than before."""

    def runTest(self):
        self.install(modify=True, members=0b011)
        self.play([(0, A, 9, None), (1, A, 9, (A, 9))])
        self.install(modify=True, members=0b111)
        self.play([(2, A, 5, None), (0, A, 12, None), (1, A, 12, None), (2, A, 9, None), (2, A, 11, (A, 11))])


class NewEpoch(MergeBed):
    """A group that is installed again under another epoch knows nothing of what was said before."""

    def runTest(self):
        self.play([(0, A, 900, None), (1, A, 900, None), (2, A, 900, (A, 900))])
        self.first_psn = 100
        self.install(modify=True, epoch=2)
        self.play([(0, A, 100, None), (1, A, 105, None), (2, A, 103, (A, 100)), (0, A, 104, (A, 103))])
        self.first_psn = 0x800000
        self.sw.delete("merge_groups", {"slot": SLOT})
        self.install(epoch=3)
        self.play([(2, A, 0x800000, None), (1, A, 0x800000, None), (0, A, 0x800000, (A, 0x800000))])


class OldEpochBack(MergeBed):
    """State of an earlier epoch does not come back to life by itself; epochs must not be used twice."""

    def runTest(self):
        self.play([(0, A, 5, None), (1, A, 5, None), (2, A, 5, (A, 5))])
        self.install(modify=True, epoch=2)
        self.play([(0, A, 1, None)])
        self.install(modify=True, epoch=3)
        self.play([(1, A, 2, None), (2, A, 2, None), (0, A, 1, (A, 1))])


class EpochZero(MergeBed):
    """Epoch 0 is none: it is what registers hold that were never written."""

    def runTest(self):
        self.install(modify=True, epoch=0)
        for i in range(3):
            self.refused(i, A, 0, "not_member")


class UnknownGroup(MergeBed):
    """A member of a group that is not there is no member."""

    def runTest(self):
        self.sw.delete("merge_groups", {"slot": SLOT})
        self.refused(0, A, 5, "not_member")
        self.refused(0, NAK_SEQUENCE, 5, "not_member")
        self.dropped(2, self.cnp(0).bytes(), "not_member", "egress")


class Learn(MergeBed):
    """Where the first PSN is not known, nothing passes until every member has been heard of."""

    learn = 1
    first_psn = 0x123456  # means nothing here

    def runTest(self):
        self.play([(0, A, 70, None), (1, A, 60, None), (0, A, 70, None), (1, A, 60, None)])
        self.assertEqual(self.drops()["egress", "absorbed"], 4)
        for syndrome in (NAK_SEQUENCE, RNR_NAK | 3, NAK_ACCESS):
            self.refused(0, syndrome, 71, "undecided_nak")
        self.play(
            [(2, A, 65, (A, 60)), (1, A, 80, (A, 65)), (2, A, 80, (A, 70)), (0, NAK_SEQUENCE, 74, (NAK_SEQUENCE, 74))]
        )


class LearnFromNak(MergeBed):
    """A NAK tells where its member is, even while it cannot be passed on."""

    learn = 1

    def runTest(self):
        self.refused(0, NAK_SEQUENCE, 50, "undecided_nak")
        self.play([(1, A, 90, None), (2, A, 90, (A, 49))])


class LearnAnyPsn(MergeBed):
    """The first PSN that is heard may be any, also one far behind 0."""

    learn = 1
    members = 2

    def runTest(self):
        for epoch, psn in enumerate((0, 0x7FFFFF, 0x800000, 0xFFFFFF), start=10):
            self.install(modify=True, epoch=epoch)
            self.assertIsNone(self.answer(0, A, psn))
            self.assertEqual(self.answer(1, A, psn), (A, psn, msn_of(psn)))
