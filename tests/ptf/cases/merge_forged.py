"""Members that lie: answers outside the window, and answers that avoid the merging."""

from bed import from_router, host_ip, roce, routed, to_router
from merging import PSNS, SENDER_QPN, SOURCE, A, MergeBed
from wire import ACK, ATOMIC_ACK, CNP, NAK_ACCESS, NAK_SEQUENCE, READ_FIRST, READ_REQUEST, SEND_ONLY, Roce

WINDOW = 1 << 22
SPREAD = 1 << 20


class Window(MergeBed):
    """An answer behind what the sender was told, or more than the window ahead, is dropped, and moves nothing."""

    def runTest(self):
        self.play([(0, A, 9, None), (1, A, 9, None), (2, A, 9, (A, 9))])
        for kind, first in ((A, 0), (NAK_SEQUENCE, 1), (NAK_ACCESS, 1)):
            for acknowledged in (8, 9 + WINDOW + 1, 9 + PSNS // 2 - 1, 9 + PSNS // 2, PSNS - 2):
                self.refused(0, kind, acknowledged + first, "window")
        self.play([(1, A, 19, None), (2, A, 29, None), (0, A, 9 + WINDOW, (A, 19))])


class BeforeAnything(MergeBed):
    """Before the sender has been told anything, the window begins before the first PSN."""

    first_psn = 1000

    def runTest(self):
        self.refused(0, A, 998, "window")
        self.refused(0, A, 999 + WINDOW + 1, "window")
        self.play([(0, A, 999 + WINDOW, None), (1, A, 1000, None), (2, A, 1001, (A, 1000))])


class Liar(MergeBed):
    """Half the PSNs at a time, a member claims to be around them once: the others do not lose by it."""

    def runTest(self):
        self.play([(0, A, 0, None), (1, A, 0, None), (2, A, 0, (A, 0)), (2, A, 100, None), (0, A, WINDOW, None)])
        self.refused(0, A, PSNS // 2 + 50, "window")
        self.play([(1, A, 50, (A, 50)), (1, A, 200, (A, 100))])


class LiarWhileLearning(MergeBed):
    """Where the first PSN is not known, nothing passes until all records are near the answer."""

    learn = 1
    first_psn = 77

    def runTest(self):
        at = 9_000_000
        self.play([(0, A, at + SPREAD + 1, None), (1, A, at, None), (2, A, at, None)])
        self.refused(2, NAK_SEQUENCE, at + 1, "undecided_nak")
        self.play([(0, A, at - SPREAD - 1, None), (2, A, at, None), (0, A, (at + PSNS // 2) % PSNS, None), (1, A, at, None)])
        self.play([(0, A, at - SPREAD, (A, at - SPREAD))])
        self.install(modify=True, members=0b110)
        self.play([(1, A, at + 5, (A, at)), (2, A, at - SPREAD + WINDOW, (A, at + 5))])


class PastMerging(MergeBed):
    """No RoCE packet from the address that the sender knows goes straight to its queue pair."""

    def runTest(self):
        self.sw.insert("routes", {"dst": (SOURCE, 32)}, "to_next_hop", next_hop=2)
        for opcode in (ACK, CNP, READ_FIRST, READ_REQUEST, ATOMIC_ACK, SEND_ONLY, 0xC0):
            aeth = {"syndrome": A, "msn": 1} if opcode == ACK else {"payload": bytes(16)}
            packet = Roce(to_router(2), SOURCE, host_ip(1), opcode, SENDER_QPN, 5, **aeth)
            self.dropped(2, packet.bytes(), "bypass", "egress")
            other = packet.to(qpn=SENDER_QPN + 1).bytes()
            self.passes(2, other, {1: [routed(other, from_router(1))]})
        other = roce(2, 1, ACK, SENDER_QPN, 5, syndrome=A).bytes()
        self.passes(2, other, {1: [routed(other, from_router(1))]})  # not from what the sender knows: refused there


class NoAnswer(MergeBed):
    """What a member sends to the group other than answers goes no further."""

    def runTest(self):
        for opcode in (SEND_ONLY, READ_FIRST, ATOMIC_ACK):
            packet = self.packet(0, A, 5).to(opcode=opcode)
            self.dropped(2, packet.bytes(), "opcode", "egress")
