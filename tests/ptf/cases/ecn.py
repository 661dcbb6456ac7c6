"""ECN marking by the depth of the egress queue.

A flood of many copies to one port fills its queue: copies are made faster than they leave. The last of them
leaves an empty queue, the one before it a queue of one, and so on: there, the outcome is certain.
"""

from bed import QUEUE, Bed, host_ip, host_mac
from p4rt import Replica
from wire import IP, Hop, ip_checksum, ipv4

COPIES = QUEUE
GROUP = 1


class EcnBed(Bed):
    def setUp(self):
        super().setUp()
        self.hosts(1, 2)
        self.multicast(GROUP, [Replica(2, n) for n in range(1, COPIES + 1)])
        self.sw.insert("bridge_ports", {"port": 1}, "bridge_port", flood_group=GROUP)

    def marks(self, tos: int = 2, port: int = 2) -> list[int]:
        """The ECN fields of the copies, in the order in which they leave."""
        hop = Hop(host_mac(99), host_mac(1))
        frame = ipv4(hop, host_ip(1), host_ip(99), 17, bytes(100), tos=tos)
        self.send(1, frame)
        seen = []
        for _ in range(COPIES):
            got = self.receive(port)
            self.assertEqual(ip_checksum(got[IP : IP + 20]), 0)
            self.assertEqual((got[:15], got[16:24], got[26:]), (frame[:15], frame[16:24], frame[26:]))
            self.assertEqual(got[15] >> 2, tos >> 2)
            seen.append(got[15] & 3)
        return seen

    def profile(self, kmin: int, kmax: int, pmax: int) -> None:
        write = self.sw.modify if getattr(self, "_has_profile", False) else self.sw.insert
        write("ports", {"port": 2}, "red", kmin=kmin, kmax=kmax, pmax=pmax)
        self._has_profile = True


class Threshold(EcnBed):
    """With Kmin = Kmax: never up to it, always above it."""

    def runTest(self):
        for k in (0, 3, 15):
            self.profile(k, k, 0)
            for _ in range(50):
                seen = self.marks()
                self.assertEqual(seen[-(k + 1) :], [2] * (k + 1), f"the last {k + 1} leave a queue of {k} or less")
                if 3 in seen:
                    break
            self.assertIn(3, seen, f"no queue grew longer than {k}")


class NoProfile(EcnBed):
    """A port without thresholds marks nothing."""

    def runTest(self):
        self.assertEqual(set(self.marks()), {2})


class HighKmin(EcnBed):
    """A queue that stays below Kmin marks nothing."""

    def runTest(self):
        self.profile(COPIES, COPIES, 0xFFFF)
        self.assertEqual(set(self.marks()), {2})


class Probability(EcnBed):
    """Between Kmin and Kmax: nothing with Pmax 0, some with Pmax 1, more as the queue grows."""

    def runTest(self):
        self.profile(0, COPIES * 2, 0)
        self.assertEqual(set(self.marks()), {2})
        self.profile(0, COPIES * 2, 0xFFFF)
        seen = [self.marks() for _ in range(10)]
        self.assertEqual({m for marks in seen for m in marks}, {2, 3})
        self.assertEqual({marks[-1] for marks in seen}, {2})
        late = sum(marks[-15:].count(3) for marks in seen)
        before = sum(marks[-40:-25].count(3) for marks in seen)
        self.assertGreater(before, late, "the chance does not grow with the queue")


class NotCapable(EcnBed):
    """What cannot be marked is not, and what is marked stays so; the other bits of ToS stay."""

    def runTest(self):
        self.profile(0, 0, 0)
        self.assertEqual(set(self.marks(tos=0)), {0})
        self.assertEqual(set(self.marks(tos=0xB8)), {0})
        self.assertEqual(set(self.marks(tos=3)), {3})
        for tos in (1, 0xB8 | 2):
            self.eventually(lambda tos=tos: 3 in self.marks(tos=tos), f"a mark with ToS {tos:#x}")


class Looked(EcnBed):
    """The packets that could have been marked are counted."""

    def runTest(self):
        self.profile(0, 0, 0)
        self.marks(tos=2)
        self.marks(tos=0)
        self.assertEqual(self.sw.direct_counter("ports", {"port": 2}).packets, COPIES)


class OtherPort(EcnBed):
    """Thresholds belong to a port."""

    def runTest(self):
        self.profile(0, 0, 0)
        frame = ipv4(Hop(host_mac(3), host_mac(1)), host_ip(1), host_ip(3), 17, bytes(8), tos=2)
        self.sw.insert("bridge", {"mac": host_mac(3)}, "to_port", port=3)
        out = self.exchange(1, *[frame] * QUEUE)
        self.expect(out, {3: [frame] * QUEUE})
