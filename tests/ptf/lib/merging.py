"""Groups whose answers are merged, for tests: the sender is host 1, every member is behind port 2."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bed import Bed, from_router, host_ip, to_router
from wire import ACK, CNP, NO_CREDIT_LIMIT, Roce, fields, ip

SLOT = 5
SENDER_AS_SEEN = 0x000777  # the queue pair that the members are connected to
SENDER_QPN = 0x0ABCDE  # the sender's own number
SOURCE = ip("10.77.0.1")  # what the sender is connected to
PSNS = 1 << 24


class Answer(NamedTuple):
    """What the sender is told."""

    syndrome: int
    psn: int
    msn: int


class Step(NamedTuple):
    """An answer of a member, and what the sender is told: (syndrome, PSN) or None."""

    member: int
    syndrome: int
    psn: int
    want: tuple[int, int] | None


def member_ip(i: int) -> int:
    return ip("10.0.1.1") + i


def msn_of(psn: int) -> int:
    """A message sequence number for each acknowledged PSN, so that tests see whose was passed on."""
    return (psn * 5 + 3) % PSNS


class MergeBed(Bed):
    """Three members, epoch 1, first PSN 0, unless told otherwise."""

    members = 3
    first_psn = 0
    learn = 0

    def setUp(self) -> None:
        super().setUp()
        self.hosts(1, 2)
        for i in range(self.members):
            self.add_member(i)
        self.sw.insert("merge_members", {"src": SOURCE, "dst": host_ip(1), "dest_qp": SENDER_QPN}, "bypass")
        self.install()

    def add_member(self, i: int, slot: int = SLOT) -> None:
        match = {"src": member_ip(i), "dst": host_ip(1), "dest_qp": SENDER_AS_SEEN}
        self.sw.insert("merge_members", match, "from", slot=slot, index=i)

    def install(self, modify: bool = False, **changes: int) -> None:
        rule = {
            "members": (1 << self.members) - 1, "epoch": 1, "initial_psn": self.first_psn, "learn": self.learn,
            "source": SOURCE, "sender_qpn": SENDER_QPN, "cnp_gap": 0,
        } | changes  # fmt: skip
        write = self.sw.modify if modify else self.sw.insert
        write("merge_groups", {"slot": SLOT}, "merge", **rule)

    def packet(self, i: int, syndrome: int, psn: int, msn: int | None = None) -> Roce:
        """An answer of member i. Every answer acknowledges: an ACK its PSN, a NAK the one before."""
        if msn is None:
            msn = msn_of(psn if syndrome < 0x20 else psn - 1)
        return Roce(to_router(2), member_ip(i), host_ip(1), ACK, SENDER_AS_SEEN, psn, syndrome=syndrome, msn=msn, tos=0)

    def answer(self, i: int, syndrome: int, psn: int, msn: int | None = None) -> Answer | None:
        """What the sender is told when member i answers, as from one receiver and right in every byte."""
        out = self.exchange(2, self.packet(i, syndrome, psn, msn).bytes())
        if not out.ports:
            return None
        self.assertEqual(list(out.ports), [1])
        (frame,) = out.ports[1]
        got = fields(frame)
        as_it_should_be = self.packet(i, got.syndrome, got.psn, got.msn).to(
            hop=from_router(1), src=SOURCE, qpn=SENDER_QPN, ttl=63
        )
        self.expect(out, {1: [as_it_should_be.bytes()]})
        return Answer(got.syndrome, got.psn, got.msn)

    def play(self, steps: Iterable[tuple[int, int, int, tuple[int, int] | None]]) -> None:
        """Goes through a script. Of an ACK with PSN p or a NAK with p+1, the MSN must be p's."""
        for number, step in enumerate(map(Step._make, steps)):
            got = self.answer(step.member, step.syndrome, step.psn)
            what = f"step {number}: {step}"
            self.assertEqual(got and got[:2], step.want, what)
            if got:
                told = got.psn if got.syndrome < 0x20 else (got.psn - 1) % PSNS
                if told != (self.first_psn - 1) % PSNS:
                    self.assertEqual(got.msn, msn_of(told), what)

    def refused(self, i: int, syndrome: int, psn: int, reason: str) -> None:
        self.dropped(2, self.packet(i, syndrome, psn).bytes(), reason, "egress")

    def cnp(self, i: int) -> Roce:
        return Roce(to_router(2), member_ip(i), host_ip(1), CNP, SENDER_AS_SEEN, 0, payload=bytes(16), becn=True, tos=0)


A = NO_CREDIT_LIMIT  # the syndrome of an ACK to the sender
