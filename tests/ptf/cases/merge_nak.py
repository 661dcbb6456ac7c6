"""Merging of NAKs: what a NAK acknowledges counts, and it goes on with the minimum's PSN + 1."""

from merging import A, MergeBed
from wire import NAK_ACCESS, NAK_INVALID, NAK_OPERATIONAL, NAK_SEQUENCE, RNR_NAK

RNR = RNR_NAK | 14


class Sequence(MergeBed):
    """A sequence NAK makes the sender go back to where the slowest member is."""

    def runTest(self):
        self.play([
            (0, A, 5, None), (1, A, 5, None), (2, A, 3, (A, 3)),
            (0, NAK_SEQUENCE, 8, (NAK_SEQUENCE, 4)),  # 0 has up to 7
            (2, A, 7, (A, 5)),
            (1, A, 9, (A, 7)),
            (1, NAK_SEQUENCE, 12, (NAK_SEQUENCE, 8)),
            (2, A, 11, None), (0, A, 11, (A, 11)),
        ])  # fmt: skip
        self.assertEqual(self.sw.counter("sequence_naks", 5 * 16 + 0).packets, 1)
        self.assertEqual(self.sw.counter("sequence_naks", 5 * 16 + 1).packets, 1)
        self.assertEqual(self.sw.counter("sequence_naks", 5 * 16 + 2).packets, 0)


class SlowestNaks(MergeBed):
    """A NAK of the slowest member goes on with its own PSN, and what it acknowledges is news."""

    def runTest(self):
        self.play([
            (0, A, 9, None), (1, A, 9, None), (2, A, 0, (A, 0)),
            (2, NAK_SEQUENCE, 5, (NAK_SEQUENCE, 5)),
            (2, A, 4, (A, 4)),
            (2, A, 6, (A, 6)),
        ])  # fmt: skip


class BeforeAnyAck(MergeBed):
    """A NAK of the very first packet passes although other members have not been heard of."""

    first_psn = 0xFFFFFF

    def runTest(self):
        self.play([
            (0, NAK_SEQUENCE, 0xFFFFFF, (NAK_SEQUENCE, 0xFFFFFF)),
            (1, NAK_SEQUENCE, 3, (NAK_SEQUENCE, 0xFFFFFF)),
            (2, A, 4, None),  # the sender knows that it is at the beginning
        ])  # fmt: skip
        self.play([(0, A, 4, (A, 2)), (1, A, 4, (A, 4))])


class Rnr(MergeBed):
    """An RNR NAK keeps its timer, acknowledges what came before, and never more than the minimum."""

    def runTest(self):
        self.play([
            (0, A, 5, None), (1, A, 5, None), (2, A, 5, (A, 5)),
            (0, RNR, 9, (RNR, 6)),  # 0 has up to 8, the others up to 5
            (1, A, 8, None), (2, A, 8, (A, 8)),
            (2, RNR_NAK | 1, 9, (RNR_NAK | 1, 9)),
            (2, RNR_NAK | 31, 9, (RNR_NAK | 31, 9)),
            (2, RNR_NAK, 9, (RNR_NAK, 9)),
        ])  # fmt: skip
        self.assertEqual(self.sw.counter("rnr_naks", 5 * 16 + 0).packets, 1)
        self.assertEqual(self.sw.counter("rnr_naks", 5 * 16 + 2).packets, 3)


class Fatal(MergeBed):
    """A fatal NAK of any code goes on at once, with the minimum + 1, and counts against its member."""

    def runTest(self):
        self.play([(0, A, 5, None), (1, A, 7, None), (2, A, 9, (A, 5))])
        for syndrome in (NAK_INVALID, NAK_ACCESS, NAK_OPERATIONAL, 0x64, 0x7F):
            self.play([(1, syndrome, 8, (syndrome, 6))])
        self.assertEqual(self.sw.counter("fatal_naks", 5 * 16 + 1).packets, 5)
        self.assertEqual(self.sw.counter("fatal_naks", 5 * 16 + 0).packets, 0)


class FatalFirst(MergeBed):
    """A fatal NAK of the first packet passes although others have not been heard of."""

    def runTest(self):
        self.play([(2, NAK_ACCESS, 0, (NAK_ACCESS, 0)), (1, NAK_ACCESS, 0, (NAK_ACCESS, 0))])


class Stale(MergeBed):
    """A NAK of a packet that its member has acknowledged since is dropped and counted."""

    def runTest(self):
        self.play([(0, A, 5, None), (1, A, 5, None), (2, A, 5, (A, 5)), (0, A, 9, None)])
        for syndrome in (NAK_SEQUENCE, RNR, NAK_ACCESS):
            for psn in (9, 6):
                self.refused(0, syndrome, psn, "stale_nak")
            self.refused(0, syndrome, 5, "window")  # behind what the sender was told
        self.play([(0, NAK_SEQUENCE, 10, (NAK_SEQUENCE, 6))])


class Again(MergeBed):
    """A NAK that repeats passes again."""

    def runTest(self):
        self.play([(0, A, 5, None), (1, A, 5, None), (2, A, 5, (A, 5))])
        self.play([(0, NAK_SEQUENCE, 6, (NAK_SEQUENCE, 6))] * 3)
        self.play([(1, NAK_SEQUENCE, 6, (NAK_SEQUENCE, 6)), (0, A, 6, None), (0, RNR, 7, (RNR, 6))])


class Wrap(MergeBed):
    """NAKs across the wrap of PSNs: a NAK of 0 acknowledges 0xffffff."""

    first_psn = 0xFFFFF0

    def runTest(self):
        self.play([
            (0, A, 0xFFFFFE, None), (1, A, 0xFFFFFF, None), (2, A, 0, (A, 0xFFFFFE)),
            (0, NAK_SEQUENCE, 0, (NAK_SEQUENCE, 0)),
            (2, NAK_SEQUENCE, 2, (NAK_SEQUENCE, 0)),
        ])  # fmt: skip
        self.refused(2, NAK_SEQUENCE, 1, "stale_nak")
        self.refused(2, NAK_SEQUENCE, 0xFFFFFF, "window")


class Unknown(MergeBed):
    """Syndromes that mean nothing are dropped and counted, and change nothing."""

    def runTest(self):
        self.play([(0, A, 5, None), (1, A, 5, None), (2, A, 5, (A, 5))])
        for syndrome in (0x40, 0x5F, 0x80, 0x9F, 0xA0, 0xC0, 0xE0, 0xFF):
            self.refused(0, syndrome, 9, "syndrome")
        self.play([(1, A, 9, None), (2, A, 9, None), (0, A, 9, (A, 9))])


class AckCounters(MergeBed):
    """What each member has answered, and all that a group has, is counted."""

    def runTest(self):
        for i, times in ((0, 3), (1, 1), (2, 2)):
            for _ in range(times):
                self.answer(i, A, 4)
        self.assertEqual([self.sw.counter("acks", 5 * 16 + i).packets for i in range(4)], [3, 1, 2, 0])
        self.assertEqual(self.sw.direct_counter("merge_groups", {"slot": 5}).packets, 6)
