"""The agent's packets: ARP, hellos, packet-out, digests."""

from bed import DEADLINE, HELLO, PORTS, PUNT_ARP, PUNT_HELLO, ROUTER_MAC, Bed, host_ip, host_mac
from p4rt import PacketIn, Replica
from wire import Hop, arp, ip

BROADCAST = 0xFFFFFFFFFFFF
ROUTER_IP = ip("10.0.0.254")


class ArpBed(Bed):
    def setUp(self):
        super().setUp()
        self.sw.insert("router_macs", {"mac": ROUTER_MAC}, "NoAction")
        self.sw.insert("arp_targets", {"ip": ROUTER_IP}, "NoAction")
        self.multicast(1, [Replica(p, 0) for p in (1, 2, 3)])
        for p in (1, 2, 3):
            self.sw.insert("bridge_ports", {"port": p}, "bridge_port", flood_group=1)

    def request(self, target: int) -> bytes:
        return arp(Hop(BROADCAST, host_mac(1)), 1, host_mac(1), host_ip(1), 0, target)


class ArpForRouter(ArpBed):
    """A request for an address of the router goes to the agent only."""

    def runTest(self):
        frame = self.request(ROUTER_IP)
        self.expect(self.exchange(1, frame), {}, [PacketIn(1, PUNT_ARP, frame)])
        padded = frame + bytes(18)
        self.expect(self.exchange(1, padded), {}, [PacketIn(1, PUNT_ARP, padded)])


class ArpToRouter(ArpBed):
    """ARP to the MAC of the router, such as the answer to its request, goes to the agent."""

    def runTest(self):
        frame = arp(Hop(ROUTER_MAC, host_mac(1)), 2, host_mac(1), host_ip(1), ROUTER_MAC, ip("10.0.0.77"))
        self.expect(self.exchange(1, frame), {}, [PacketIn(1, PUNT_ARP, frame)])


class ArpForOthers(ArpBed):
    """A request for another host's address is flooded; the agent does not see it."""

    def runTest(self):
        frame = self.request(host_ip(2))
        self.passes(1, frame, {2: [frame], 3: [frame]})


class ArpDigest(ArpBed):
    """The agent learns the sender of every ARP packet: port, MAC, address."""

    def runTest(self):
        while not self.sw.digests.empty():
            self.sw.digests.get()
        self.sw.enable_digest("arp_digest_t")
        for port, target in ((1, ROUTER_IP), (2, host_ip(3)), (3, host_ip(1))):
            self.exchange(port, arp(Hop(BROADCAST, host_mac(port)), 1, host_mac(port), host_ip(port), 0, target))
            digests = self.sw.digests.get(timeout=DEADLINE)
            self.sw.acknowledge(digests)
            got = [[int.from_bytes(m.bitstring, "big") for m in d.struct.members] for d in digests.data]
            self.assertEqual(got, [[port, host_mac(port), host_ip(port)]])


class Hello(Bed):
    """Hellos go to the agent, from any port, to any MAC, of any length."""

    def runTest(self):
        self.hosts()
        for port in PORTS[1]:
            for dst in (BROADCAST, ROUTER_MAC, host_mac(5)):
                for size in (1, 46, 1500, 8000):
                    frame = Hop(dst, host_mac(port)).bytes(HELLO) + bytes([port]) * size
                    self.expect(self.exchange(port, frame), {}, [PacketIn(port, PUNT_HELLO, frame)])


class PacketOut(Bed):
    """A packet from the agent leaves by the port that it names, unchanged, even if it is no valid packet."""

    def runTest(self):
        for port in PORTS[1]:
            for frame in (
                Hop(BROADCAST, ROUTER_MAC).bytes(HELLO) + b"hello",
                arp(Hop(host_mac(port), ROUTER_MAC), 2, ROUTER_MAC, ROUTER_IP, host_mac(port), host_ip(port)),
                Hop(BROADCAST, ROUTER_MAC).bytes(0x0800) + b"\x45 not IP",
                b"\xff" * 8000,
            ):
                self.sw.packet_out(port, frame)
                self.assertEqual(self.receive(port), frame)
        self.expect(self.drain(1), {})
        self.assertEqual(set(self.drops().values()), {0})
