"""Translation of virtual addresses and rkeys, at the edges of the regions."""

from bed import host_ip
from groups import GroupBed, Member, Region, copy_for, multicast
from wire import WRITE_FIRST, WRITE_ONLY, WRITE_ONLY_IMM, fields

TOP = (1 << 64) - 1


class RegionBed(GroupBed):
    """Members 2 and 3; the tests give member 2 regions, member 3 has none."""

    def with_regions(self, *regions: Region) -> Member:
        m = Member(2, 0x202, regions)
        self.other = Member(3, 0x303)
        self.install([m, self.other])
        return m

    def check(self, m: Member, rkey: int, va: int, want_rkey: int, want_va: int, opcode: int = WRITE_ONLY) -> None:
        packet = multicast(opcode, 1, payload=b"some data", va=va, rkey=rkey, length=9)
        out = self.exchange(1, packet.bytes())
        self.expect(out, {2: [copy_for(packet, m)], 3: [copy_for(packet, self.other)]})
        got = fields(out.ports[2][0])
        self.assertEqual((got.rkey, got.va), (want_rkey, want_va))
        self.assertTrue(got.icrc_ok and got.ip_ok)
        self.assertEqual(fields(out.ports[3][0]).rkey, 0, "the member without regions")


class Edges(RegionBed):
    """First and last byte are in, the bytes before and after are not: rkey 0, address as it was."""

    def runTest(self):
        m = self.with_regions(Region(0x11, 0x1000, 0x1FFF, 0x500000, 0xAAAA))
        for opcode in (WRITE_FIRST, WRITE_ONLY, WRITE_ONLY_IMM):
            self.check(m, 0x11, 0x1000, 0xAAAA, 0x501000, opcode)
            self.check(m, 0x11, 0x1FFF, 0xAAAA, 0x501FFF, opcode)
            self.check(m, 0x11, 0x0FFF, 0, 0x0FFF, opcode)
            self.check(m, 0x11, 0x2000, 0, 0x2000, opcode)


class WrongKey(RegionBed):
    """Another rkey opens nothing, whatever the address."""

    def runTest(self):
        m = self.with_regions(Region(0x11, 0x1000, 0x1FFF, 0x500000, 0xAAAA))
        for rkey in (0x10, 0x12, 0, 0xFFFFFFFF, 0x11000000):
            self.check(m, rkey, 0x1800, 0, 0x1800)


class Wrap(RegionBed):
    """Offsets are modulo 2^64: down as well as up, across both ends."""

    def runTest(self):
        m = self.with_regions(
            Region(1, 0x7F0000001000, 0x7F0000001FFF, (0x1000 - 0x7F0000001000) % (TOP + 1), 0xB1),
            Region(2, TOP - 0xFFF, TOP, 0x2000, 0xB2),
            Region(3, 0, 0xFFF, TOP, 0xB3),
        )
        self.check(m, 1, 0x7F0000001000, 0xB1, 0x1000)
        self.check(m, 1, 0x7F0000001FFF, 0xB1, 0x1FFF)
        self.check(m, 2, TOP - 0xFFF, 0xB2, 0x1000)
        self.check(m, 2, TOP, 0xB2, 0x1FFF)
        self.check(m, 3, 0, 0xB3, TOP)
        self.check(m, 3, 1, 0xB3, 0)
        self.check(m, 3, 0xFFF, 0xB3, 0xFFE)
        self.check(m, 3, 0x1000, 0, 0x1000)


class SeveralRegions(RegionBed):
    """Two regions that touch, under one rkey, and one at the same addresses under another."""

    def runTest(self):
        m = self.with_regions(
            Region(0x11, 0x1000, 0x1FFF, 0x10000, 0xA1),
            Region(0x11, 0x2000, 0x2FFF, 0x20000, 0xA2),
            Region(0x12, 0x1000, 0x2FFF, 0x30000, 0xA3),
        )
        self.check(m, 0x11, 0x1FFF, 0xA1, 0x11FFF)
        self.check(m, 0x11, 0x2000, 0xA2, 0x22000)
        self.check(m, 0x12, 0x1FFF, 0xA3, 0x31FFF)
        self.check(m, 0x12, 0x2000, 0xA3, 0x32000)
        self.check(m, 0x11, 0x3000, 0, 0x3000)


class OneByte(RegionBed):
    """A region of one byte, and the whole address space as a region."""

    def runTest(self):
        m = self.with_regions(Region(5, 0x4242, 0x4242, 1, 0xC1), Region(6, 0, TOP, 0, 0xC2))
        self.check(m, 5, 0x4242, 0xC1, 0x4243)
        self.check(m, 5, 0x4241, 0, 0x4241)
        self.check(m, 5, 0x4243, 0, 0x4243)
        for va in (0, 1 << 63, TOP):
            self.check(m, 6, va, 0xC2, va)


class OtherGroup(RegionBed):
    """Regions belong to a group: another group's do not count."""

    def runTest(self):
        m = self.with_regions(Region(0x11, 0x1000, 0x1FFF, 0x500000, 0xAAAA))
        other = Member(2, 0x999)
        self.install([other], group=2, mc_id=0x800009)
        packet = multicast(WRITE_ONLY, 1, payload=b"x", va=0x1000, rkey=0x11, length=1).to(qpn=0x800009)
        self.passes(1, packet.bytes(), {2: [copy_for(packet, other)]})
        self.check(m, 0x11, 0x1000, 0xAAAA, 0x501000)
        self.assertEqual(host_ip(2), fields(self.exchange(1, packet.bytes()).ports[2][0]).dst)
