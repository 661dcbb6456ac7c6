"""Equal-cost paths for unicast."""

import struct
from collections import Counter

from bed import Bed, from_router, host_ip, roce, routed, to_router
from p4rt import Group
from wire import SEND_ONLY, ip, ipv4

PATHS = (2, 3, 4, 5)
FLOWS = 200
TARGET = ip("10.50.0.1")


class EcmpBed(Bed):
    def setUp(self):
        super().setUp()
        self.hosts()
        for p in PATHS:
            self.next_hop(p, p, from_router(p))
            self.sw.member("ecmp_selector", p, "to_next_hop", next_hop=p)
        self.sw.group("ecmp_selector", Group(1, {p: 1 for p in PATHS}))
        self.sw.insert_group("ecmp_groups", {"ecmp": 9}, 1)
        self.sw.insert("routes", {"dst": (ip("10.50.0.0"), 16)}, "to_ecmp", ecmp=9)

    def frame(self, flow: int) -> bytes:
        return roce(1, 2, SEND_ONLY, 7, flow, sport=0xC000 + flow).to(dst=TARGET).bytes()

    def paths(self, frames: list[bytes]) -> list[int]:
        """The port by which each frame leaves, once and as it should be."""
        ports = []
        for frame in frames:
            out = self.exchange(1, frame)
            ((port, got),) = out.ports.items()
            self.assertEqual(got, [routed(frame, from_router(port))])
            ports.append(port)
        return ports


class Spread(EcmpBed):
    """Flows spread over all paths, and each keeps to its own."""

    def runTest(self):
        frames = [self.frame(flow) for flow in range(FLOWS)]
        ports = self.paths(frames)
        share = Counter(ports)
        self.assertEqual(set(share), set(PATHS))
        for port in PATHS:
            self.assertGreater(share[port], FLOWS // len(PATHS) // 2, f"{share}")
        self.assertEqual(self.paths(frames), ports)


class Tcp(EcmpBed):
    """TCP flows spread too: its ports count."""

    def runTest(self):
        headers = [struct.pack("!HH", 30000 + n, 50051) + bytes(16) for n in range(60)]
        frames = [ipv4(to_router(1), host_ip(1), TARGET, 6, h) for h in headers]
        self.assertEqual(set(self.paths(frames)), set(PATHS))


class Fragments(EcmpBed):
    """The fragments of a packet take one path, whatever stands where its ports would be."""

    def runTest(self):
        frames = [
            ipv4(to_router(1), host_ip(1), TARGET, 17, struct.pack("!I", n) * 10, frag=frag)
            for n in range(20)
            for frag in (0x2000, 0x2005, 0x0010)
        ]
        self.assertEqual(len(set(self.paths(frames))), 1)


class Seed(EcmpBed):
    """Switches with other seeds choose independently: flows that share one path spread again at the next switch."""

    def runTest(self):
        frames = [self.frame(flow) for flow in range(FLOWS)]
        self.configure(hash_seed=1)
        first = self.paths(frames)
        self.configure(hash_seed=2)
        second = self.paths(frames)
        for path in PATHS:
            again = {b for a, b in zip(first, second, strict=True) if a == path}
            self.assertEqual(again, set(PATHS), f"where the flows of path {path} go")
        self.configure(hash_seed=1)
        self.assertEqual(self.paths(frames), first)


class PathGone(EcmpBed):
    """Without one of its members the group uses the others."""

    def runTest(self):
        frames = [self.frame(flow) for flow in range(60)]
        self.sw.group("ecmp_selector", Group(1, {2: 1, 4: 1}), modify=True)
        self.assertEqual(set(self.paths(frames)), {2, 4})
