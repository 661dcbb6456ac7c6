"""Frames, built and read byte by byte: Ethernet, ARP, IPv4, UDP and RoCEv2.

Nothing here knows the switch. The ICRC is computed with zlib from the bytes of
the frame, not from the fields that built it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path

ROCE_PORT = 4791
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_LAST_IMM, SEND_ONLY, SEND_ONLY_IMM = range(0x00, 0x06)
WRITE_FIRST, WRITE_MIDDLE, WRITE_LAST, WRITE_LAST_IMM, WRITE_ONLY, WRITE_ONLY_IMM = range(0x06, 0x0C)
READ_REQUEST, READ_FIRST, ACK, ATOMIC_ACK, CMP_SWAP, FETCH_ADD = 0x0C, 0x0D, 0x11, 0x12, 0x13, 0x14
CNP = 0x81

NO_CREDIT_LIMIT = 0x1F
RNR_NAK, NAK_SEQUENCE, NAK_INVALID, NAK_ACCESS, NAK_OPERATIONAL = 0x20, 0x60, 0x61, 0x62, 0x63

ETH, IP, UDP, BTH = 0, 14, 34, 42  # where the headers of a RoCE frame begin
AETH = RETH = 54


def ip(text: str) -> int:
    return int(IPv4Address(text))


def mac(text: str) -> int:
    return int(text.replace(":", ""), 16)


def ip_checksum(header: bytes) -> int:
    """The checksum of an IPv4 header whose checksum field is zero; 0 for one whose field is right."""
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def icrc(frame: bytes) -> bytes:
    """The invariant CRC that belongs at the end of a RoCEv2 frame (IBTA annex A17).

    The frame's last four bytes, where the ICRC stands, are not looked at, and
    there must be nothing behind them.
    """
    covered = bytearray(b"\xff" * 8 + frame[IP:-4])
    ihl = (frame[IP] & 0x0F) * 4
    ip_at, udp_at, bth_at = 8, 8 + ihl, 8 + ihl + 8
    for at in (ip_at + 1, ip_at + 8, ip_at + 10, ip_at + 11, udp_at + 6, udp_at + 7, bth_at + 4):
        covered[at] = 0xFF
    return struct.pack("<I", zlib.crc32(covered))


def _adds(change: bytes) -> int:
    """What a change of the first bytes of a packet, from IP on, adds to its CRC, behind these bytes."""
    return zlib.crc32(change) ^ zlib.crc32(bytes(len(change)))


def neutral(dst: int = 0, qpn: int = 0, rkey: int = 0) -> int:
    """The constant, identification ++ source port, under which a packet keeps its ICRC when these bits of its
    headers are turned round. Solved for by elimination, over packets with a RETH and without payload."""

    def packet(ident: int = 0, sport: int = 0, dst: int = 0, qpn: int = 0, rkey: int = 0) -> bytes:
        return struct.pack("!4xH10xIH6x5x3s4x8xI4x", ident, dst, sport, qpn.to_bytes(3, "big"), rkey)

    rows: list[tuple[int, int]] = []  # what a constant adds, reduced, and the constant
    for bit in range(32):
        adds, constant = _adds(packet(ident=1 << bit >> 16, sport=1 << bit & 0xFFFF)), 1 << bit
        for r, c in rows:
            if adds ^ r < adds:
                adds, constant = adds ^ r, constant ^ c
        rows.append((adds, constant))
        rows.sort(reverse=True)
    adds, constant = _adds(packet(dst=dst, qpn=qpn, rkey=rkey)), 0
    for r, c in rows:
        if adds ^ r < adds:
            adds, constant = adds ^ r, constant ^ c
    assert adds == 0, "identification and source port cannot cancel it"
    return constant


def patch(frame: bytes, at: int, value: bytes) -> bytes:
    """The frame with the bytes from `at` on replaced."""
    return frame[:at] + value + frame[at + len(value) :]


def sealed(frame: bytes) -> bytes:
    """The RoCE frame with the right IP checksum and ICRC."""
    frame = patch(frame, IP + 10, b"\0\0")
    frame = patch(frame, IP + 10, struct.pack("!H", ip_checksum(frame[IP : IP + 20])))
    return frame[:-4] + icrc(frame)


@dataclass(frozen=True)
class Hop:
    """The Ethernet header of a frame."""

    dst: int
    src: int

    def bytes(self, ethertype: int) -> bytes:
        return self.dst.to_bytes(6, "big") + self.src.to_bytes(6, "big") + struct.pack("!H", ethertype)


def ipv4(
    hop: Hop,
    src: int,
    dst: int,
    proto: int,
    payload: bytes,
    ttl: int = 64,
    tos: int = 0,
    ident: int = 0x1234,
    frag: int = 0x4000,
    options: bytes = b"",
) -> bytes:
    """An Ethernet frame with an IPv4 packet."""
    first, total = 0x45 + len(options) // 4, 20 + len(options) + len(payload)
    head = struct.pack("!BBHHHBBHII", first, tos, total, ident, frag, ttl, proto, 0, src, dst) + options
    return hop.bytes(0x0800) + patch(head, 10, struct.pack("!H", ip_checksum(head))) + payload


def udp(sport: int, dport: int, payload: bytes, checksum: int = 0) -> bytes:
    return struct.pack("!HHHH", sport, dport, 8 + len(payload), checksum) + payload


def arp(hop: Hop, oper: int, sha: int, spa: int, tha: int, tpa: int) -> bytes:
    packet = struct.pack("!HHBBH", 1, 0x0800, 6, 4, oper)
    packet += sha.to_bytes(6, "big") + struct.pack("!I", spa) + tha.to_bytes(6, "big") + struct.pack("!I", tpa)
    return hop.bytes(0x0806) + packet


@dataclass(frozen=True)
class Roce:
    """A RoCEv2 packet of reliable connections, with everything as it should be unless told otherwise."""

    hop: Hop
    src: int
    dst: int
    opcode: int
    qpn: int
    psn: int
    payload: bytes = b""
    ack_req: bool = False
    va: int | None = None  # with rkey and length: a RETH
    rkey: int = 0
    length: int = 0
    syndrome: int | None = None  # with msn: an AETH
    msn: int = 0
    ttl: int = 64
    tos: int = 2  # ECT(0)
    ident: int = 0x1234
    sport: int = 0xC000
    udp_checksum: int = 0
    becn: bool = False

    def to(self, **changes) -> Roce:
        return replace(self, **changes)

    def bytes(self) -> bytes:
        pad = -len(self.payload) % 4
        flags = 0x40 | pad << 4  # MigReq as the kernel sends it
        bth = struct.pack(
            "!BBHII", self.opcode, flags, 0xFFFF, self.becn << 30 | self.qpn, self.ack_req << 31 | self.psn
        )
        ext = b""
        if self.va is not None:
            ext = struct.pack("!QII", self.va, self.rkey, self.length)
        if self.syndrome is not None:
            ext += struct.pack("!I", self.syndrome << 24 | self.msn)
        body = udp(self.sport, ROCE_PORT, bth + ext + self.payload + bytes(pad) + bytes(4), self.udp_checksum)
        frame = ipv4(self.hop, self.src, self.dst, 17, body, self.ttl, self.tos, self.ident)
        return sealed(frame)


@dataclass(frozen=True)
class Fields:
    """What tests look at in a RoCE frame that came out."""

    dst_mac: int
    src_mac: int
    ecn: int
    ttl: int
    src: int
    dst: int
    sport: int
    udp_checksum: int
    opcode: int
    qpn: int
    psn: int
    va: int | None
    rkey: int | None
    length: int | None
    syndrome: int | None
    msn: int | None
    icrc_ok: bool
    ip_ok: bool


def fields(frame: bytes) -> Fields:
    """Takes a RoCE frame apart."""
    total, ttl, src, dst = struct.unpack_from("!2xH4xB3xII", frame, IP)
    frame = frame[: IP + total]  # without the padding of short frames
    opcode, qpn, psn = struct.unpack_from("!B3xII", frame, BTH)
    va = rkey = length = syndrome = msn = None
    if opcode in (WRITE_FIRST, WRITE_ONLY, WRITE_ONLY_IMM):
        va, rkey, length = struct.unpack_from("!QII", frame, RETH)
    elif opcode == ACK:
        (aeth,) = struct.unpack_from("!I", frame, AETH)
        syndrome, msn = aeth >> 24, aeth & 0xFFFFFF
    return Fields(
        dst_mac=int.from_bytes(frame[0:6], "big"),
        src_mac=int.from_bytes(frame[6:12], "big"),
        ecn=frame[IP + 1] & 3,
        ttl=ttl,
        src=src,
        dst=dst,
        sport=struct.unpack_from("!H", frame, UDP)[0],
        udp_checksum=struct.unpack_from("!H", frame, UDP + 6)[0],
        opcode=opcode,
        qpn=qpn & 0xFFFFFF,
        psn=psn & 0xFFFFFF,
        va=va,
        rkey=rkey,
        length=length,
        syndrome=syndrome,
        msn=msn,
        icrc_ok=frame[-4:] == icrc(frame),
        ip_ok=ip_checksum(frame[IP : IP + 20]) == 0,
    )


def pcap(path: Path) -> Iterator[bytes]:
    """The frames of a capture in the classic format."""
    data = path.read_bytes()
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    at = 24
    while at < len(data):
        (size,) = struct.unpack_from(order + "I", data, at + 8)
        yield data[at + 16 : at + 16 + size]
        at += 16 + size
