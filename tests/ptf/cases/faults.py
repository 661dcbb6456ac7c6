"""Fault injection: rules that act on some packets of a flow."""

from bed import Bed, from_router, host_ip, roce, routed
from wire import IP, SEND_ONLY, WRITE_ONLY, patch, sealed

DROP, CORRUPT, MARK = range(3)


class FaultBed(Bed):
    def setUp(self):
        super().setUp()
        self.hosts(1, 2, 3)

    def rule(self, side: str, kind: int, first: int, count=1, epoch=1, slot=0, modify=False, **match) -> None:
        """A rule for what comes in by port 1, or goes out by port 2."""
        match = {"port": (1 if side == "in" else 2, 0x1FF)} | match
        write = self.sw.modify if modify else self.sw.insert
        write(
            f"fault_{side}.rules", match, f"fault_{side}.fault", priority=10,
            slot=slot, epoch=epoch, first=first, count=count, kind=kind,
        )  # fmt: skip

    def flow(self, count: int, tos: int = 2) -> list[bytes]:
        return [roce(1, 2, SEND_ONLY, 7, psn, payload=b"abcd", tos=tos).bytes() for psn in range(count)]

    def through(self, frames: list[bytes]) -> list[bytes]:
        """What comes out of port 2."""
        out = self.exchange(1, *frames)
        self.assertLessEqual(set(out.ports), {2})
        return out.ports.get(2, [])

    @staticmethod
    def routed(frames: list[bytes]) -> list[bytes]:
        return [routed(f, from_router(2)) for f in frames]


class Drop(FaultBed):
    """The packets from number `first` on are dropped, `count` of them, and counted; the others pass."""

    def runTest(self):
        for slot, (side, name) in enumerate((("in", "ingress"), ("out", "egress"))):
            self.rule(side, DROP, first=2, count=3, slot=slot)
            frames = self.flow(8)
            self.assertEqual(self.through(frames), self.routed(frames[:2] + frames[5:]))
            self.assertEqual(self.drops()[name, "fault"], 3)
            self.assertEqual(self.through(frames), self.routed(frames))
            self.sw.delete(f"fault_{side}.rules", {"port": (1 if side == "in" else 2, 0x1FF)}, 10)


class Corrupt(FaultBed):
    """A packet that is corrupted on the way in fails the check; on the way out it leaves with a wrong ICRC."""

    def runTest(self):
        frames = self.flow(3)
        self.rule("in", CORRUPT, first=1)
        self.assertEqual(self.through(frames), self.routed([frames[0], frames[2]]))
        self.assertEqual(self.drops()["ingress", "icrc"], 1)
        self.rule("out", CORRUPT, first=1)
        want = self.routed(frames)
        got = self.through(frames)
        self.assertEqual([got[0], got[2]], [want[0], want[2]])
        self.assertEqual(got[1][:-4], want[1][:-4])
        self.assertNotEqual(got[1][-4:], want[1][-4:])


class Mark(FaultBed):
    """A packet is marked as having seen congestion."""

    def runTest(self):
        frames = self.flow(3)
        marked = sealed(patch(frames[1], IP + 1, b"\3"))
        self.assertEqual(marked[-4:], frames[1][-4:])
        for slot, side in enumerate(("in", "out")):
            self.rule(side, MARK, first=1, slot=slot)
            self.assertEqual(self.through(frames), self.routed([frames[0], marked, frames[2]]))


class Epochs(FaultBed):
    """A rule that is installed again counts anew under another epoch, and goes on under the same."""

    def runTest(self):
        frames = self.flow(4)
        self.rule("in", DROP, first=1)
        self.assertEqual(len(self.through(frames)), 3)
        self.rule("in", DROP, first=5, modify=True)  # numbers go on: 4, 5, 6, 7
        self.assertEqual(self.through(frames), self.routed([frames[0], *frames[2:]]))
        self.rule("in", DROP, first=0, count=2, epoch=2, modify=True)
        self.assertEqual(self.through(frames), self.routed(frames[2:]))


class Matching(FaultBed):
    """A rule acts on the packets that match all of its fields, and counts only these."""

    def runTest(self):
        target = roce(1, 2, SEND_ONLY, 0x777, 0x1234, payload=b"abcd")
        full = 0xFFFFFFFF
        self.rule(
            "in", DROP, first=0, count=100, src=(host_ip(1), full), dst=(host_ip(2), full), dest_qp=(0x777, 0xFFFFFF),
            opcode=(SEND_ONLY, 0xFF), psn=(0x1234, 0xFFFFFF),
        )  # fmt: skip
        self.dropped(1, target.bytes(), "fault")
        for other in (
            target.to(src=host_ip(5)), target.to(dst=host_ip(3)), target.to(qpn=0x776), target.to(psn=0x1235),
            target.to(opcode=WRITE_ONLY, va=1, rkey=2, length=4),
        ):  # fmt: skip
            port = other.dst & 0xFF
            self.passes(1, other.bytes(), {port: [routed(other.bytes(), from_router(port))]})
        frame = target.bytes()
        self.passes(3, frame, {2: [routed(frame, from_router(2))]})


class Slots(FaultBed):
    """Rules with slots of their own count apart, up to the last slot."""

    def runTest(self):
        self.rule("in", DROP, first=1, slot=0, psn=(0, 1))
        self.rule("in", DROP, first=0, slot=255, psn=(1, 1))
        frames = self.flow(5)
        self.assertEqual(self.through(frames), self.routed([frames[0], frames[3], frames[4]]))


class NotRoce(FaultBed):
    """Rules act on RoCE packets only: the way of everything else stays."""

    def runTest(self):
        self.rule("in", DROP, first=0, count=1000)
        self.rule("out", DROP, first=0, count=1000)
        frame = roce(1, 2, SEND_ONLY, 1, 1).bytes()
        frame = patch(frame, 36, b"\x12\xb6")  # UDP port 4790
        self.passes(1, frame, {2: [routed(frame, from_router(2))]})
