"""Congestion notifications: rewritten for the sender, and filtered if the group says so."""

import time

from bed import DEADLINE, from_router, host_ip, routed
from merging import SENDER_QPN, SOURCE, A, MergeBed

GAP = 200_000  # µs


class CnpBed(MergeBed):
    def told(self, i: int) -> bytes:
        return self.cnp(i).to(hop=from_router(1), src=SOURCE, qpn=SENDER_QPN, ttl=63).bytes()


class Rewritten(CnpBed):
    """A CNP of a member reaches the sender as from its one receiver; all pass."""

    def runTest(self):
        for i in (0, 1, 2, 0, 1):
            self.passes(2, self.cnp(i).bytes(), {1: [self.told(i)]})
        self.assertEqual([self.sw.counter("cnps", 5 * 16 + i).packets for i in range(3)], [2, 2, 1])
        self.play([(0, A, 4, None), (1, A, 4, None), (2, A, 4, (A, 4))])


class Filtered(CnpBed):
    """With a gap, one CNP passes in so many microseconds, whichever member it is from; then one passes again."""

    def runTest(self):
        self.install(modify=True, cnp_gap=GAP)
        start = time.monotonic()
        self.passes(2, self.cnp(0).bytes(), {1: [self.told(0)]})
        passed = time.monotonic()
        refused = 0
        while not self.exchange(2, self.cnp(refused % 3).bytes()).ports:
            refused += 1
            self.assertLess(time.monotonic() - passed, DEADLINE, "no further CNP passes")
        self.assertGreaterEqual(time.monotonic() - start, GAP / 1e6)
        self.assertGreater(refused, 0)  # how many more depends on how fast this machine sends them
        drops = self.drops()
        self.assertEqual(drops["egress", "cnp_filter"], refused)
        self.assertEqual(sum(drops.values()), refused)


class Removed(CnpBed):
    """A CNP of a member that was removed is dropped."""

    def runTest(self):
        self.install(modify=True, members=0b110)
        self.dropped(2, self.cnp(0).bytes(), "not_member", "egress")
        self.passes(2, self.cnp(1).bytes(), {1: [self.told(1)]})


class UnrelatedCnp(CnpBed):
    """A CNP from elsewhere passes as it is."""

    def runTest(self):
        frame = self.cnp(0).to(src=host_ip(2)).bytes()
        self.passes(2, frame, {1: [routed(frame, from_router(1))]})
