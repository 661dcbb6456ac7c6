"""The multicast test, and what each link carries, by each way there is to replicate.

The applications are tests/e2e/member, told what to do as tests/e2e/orders says.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from dataclasses import dataclass

from mininet.log import info

from .fabric import Fabric
from .net import McNet
from .nodes import McHost, counters

KIB, MIB = 1 << 10, 1 << 20
PATIENCE = 180  # seconds for an order
# Bytes in front of and behind the payload of a RoCEv2 packet, Ethernet included.
HEADERS = 14 + 20 + 8 + 12 + 4
PATH_MTU = 4096  # of the links; a group that hosts relay for has none of its own
BESIDE = 0.03  # of what is measured: hellos, and what daemons say to each other


class Failed(Exception):
    """The test found a fault."""


class Application:
    """A test application at a host, with its device open and the daemon dialed."""

    def __init__(self, net: McNet, host: McHost):
        self.name, self.last, self.rest = host.name, 0, b""
        self.log = os.path.join(net.logs, f"{host.name}-application.log")
        with open(self.log, "wb") as log:
            self.popen = host.popen(
                ["setpriv", "--pdeathsig", "KILL", "--", os.path.join(net.programs, "member")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.address = net.fabric.host(host.name).address
        self("device", device=f"softroce:{self.address}")
        self("dial", socket=net.file(host.name, "daemon.sock"), program="member")

    def __call__(self, order: str, **args):
        """Gives an order and returns its result."""
        self.last += 1
        try:
            self.popen.stdin.write(json.dumps({"id": self.last, "do": order, "args": args}).encode() + b"\n")
            self.popen.stdin.flush()
        except BrokenPipeError:
            raise Failed(f"{self.name}: the application has ended; it said:\n{self.said()}") from None
        answer = json.loads(self.line(order))
        if answer.get("error"):
            raise Failed(f"{self.name}: {order}: {answer['error']}")
        return answer.get("result")

    def line(self, order: str) -> bytes:
        end = time.monotonic() + PATIENCE
        while b"\n" not in self.rest:
            if not select.select([self.popen.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise Failed(f"{self.name}: {order}: no answer within {PATIENCE} s; it said:\n{self.said()}")
            data = os.read(self.popen.stdout.fileno(), 1 << 16)
            if not data:
                raise Failed(f"{self.name}: {order}: the application has ended; it said:\n{self.said()}")
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    def said(self) -> str:
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return "\n".join(f.read().splitlines()[-20:])

    def close(self) -> None:
        self.popen.stdin.close()
        self.popen.wait()
        self.popen.stdout.close()


def choose(f: Fabric) -> tuple[str, list[str]]:
    """The sender and three receivers, in other racks than the sender's if there are."""
    sender = f.hosts[0].name
    own = f.tor(sender)
    others = sorted(f.hosts[1:], key=lambda h: f.tor(h.name) == own)
    return sender, [h.name for h in others[:3]]


def once(sizes: list[int], mtu: int, reth: int) -> int:
    """Bytes that one copy of operations takes on a wire, reth of them in each first packet."""
    return sum(n + -n % 4 + -(-max(n, 1) // mtu) * HEADERS + reth for n in sizes)


@dataclass
class Work:
    """What is sent: for each size a WRITE, a SEND, or both."""

    sizes: list[int]
    kinds: tuple[str, ...] = ("write", "send")
    depth: int = 4

    def bytes(self, mtu: int) -> int:
        return sum(once(self.sizes, mtu or PATH_MTU, {"write": 16, "send": 0}[k]) for k in self.kinds)


class Traffic:
    """What passes each link from its making on, by the interfaces' counters."""

    def __init__(self, net: McNet):
        self.net = net
        self.before = self.read()

    def read(self) -> dict[tuple[str, str, int], int]:
        """Bytes by sending end, receiving end, and which of several links between them."""
        seen: dict[tuple[str, str], int] = {}
        sent = {}
        count = {n.name: counters(n) for n in [*self.net.switches, *self.net.hosts]}
        for link in self.net.links:
            a, b = link.intf1, link.intf2
            i = seen[a.node.name, b.node.name] = seen.get((a.node.name, b.node.name), 0) + 1
            sent[a.node.name, b.node.name, i] = count[a.node.name][a.name][1]
            sent[b.node.name, a.node.name, i] = count[b.node.name][b.name][1]
        return sent

    def since(self) -> dict[tuple[str, str, int], int]:
        return {k: v - self.before[k] for k, v in self.read().items()}


@dataclass
class Result:
    group: dict  # what the library says of it
    copies: dict[tuple[str, str], float]  # that links carried: of several between two nodes, together
    seconds: float
    again: int  # packets that were sent again: a machine that is busy loses some
    more: float  # copies, at most, that these are


def replicate(net: McNet, work: Work, **group) -> Result:
    """Has a group made, does the work, and compares what all have then."""
    sender, receivers = choose(net.fabric)
    apps = {name: Application(net, net[name]) for name in [sender, *receivers]}
    try:
        size = max(work.sizes)
        for name in receivers:
            apps[name]("listen", service="test", receives=8, receive_size=size)
        made = apps[sender](
            "create",
            name="g",
            service="test",
            receivers=[apps[r].address for r in receivers],
            regions=[2 * size],
            **group,
        )
        traffic = Traffic(net)
        done = apps[sender](
            "work",
            name="g",
            kinds=list(work.kinds),
            sizes=work.sizes,
            count=len(work.sizes) * len(work.kinds),
            depth=work.depth,
            seed=1,
            patience=PATIENCE * 1000,
        )
        for name in receivers:
            got = apps[name]("replica", group=made["id"], count=done["count"], millis=30_000)
            if (got["regions"], got["messages"]) != (done["regions"], done["messages"]):
                raise Failed(f"{name} has not what {sender} sent: {got}, and not {done}")
        size, copies = work.bytes(made["mtu"]), {}
        for (a, b, _), n in traffic.since().items():
            copies[a, b] = copies.get((a, b), 0) + n / size
        again = sum(app("counters")["tx_retransmits"] for app in apps.values())
        apps[sender]("close", name="g")
        return Result(made, copies, done["took"] / 1e9, again, again * (PATH_MTU + HEADERS) / size)
    finally:
        for app in apps.values():
            app.close()


def expected(f: Fabric) -> dict[tuple[str, str], int]:
    """Copies on links that have to be whatever way packets take: the sender's, those of
    receivers, and from the sender's switch on, if there is one way only."""
    sender, receivers = choose(f)
    want = {(sender, f.tor(sender)): 1} | {(f.tor(r), r): 1 for r in receivers}
    racks = {f.tor(r) for r in receivers} - {f.tor(sender)}
    switches = {s.name for s in f.switches}
    cores = {far for s in racks | {f.tor(sender)} for _, far in f.ports(s) if far in switches}
    if racks and len(cores) == 1:
        core = cores.pop()
        # A switch that is not programmable copies nothing: each rack gets its own.
        want[f.tor(sender), core] = 1 if f.switch(core).programmable else len(racks)
        want |= {(core, r): 1 for r in racks}
    return want


def check(net: McNet, work: Work) -> None:
    """The multicast test: mode require, content compared, and bytes on links."""
    sender, receivers = choose(net.fabric)
    r = replicate(net, work, mode="require")
    if r.group["path"] != "switch":
        raise Failed(f"the group goes by {r.group['path']}: {r.group['why']}")
    uplink = r.copies[sender, net.fabric.tor(sender)]
    payload = sum(work.sizes) * len(work.kinds)
    info(
        f"{sender} → {', '.join(receivers)}: {payload / MIB:.1f} MiB by WRITE and SEND in {r.seconds:.2f} s, "
        f"all equal; uplink {uplink:.2f}x, {r.again} packets sent again\n"
    )
    for (a, b), want in expected(net.fabric).items():
        n = r.copies[a, b]
        info(f"    {a} → {b}: {n:.3f} copies\n")
        if not want * 0.999 <= n <= want * (1 + BESIDE + r.more):
            raise Failed(f"{a} → {b} carried {n:.3f} copies, and not {want}; {r.again} packets were sent again")


WAYS = {
    "fan-out": {"mode": "off", "algorithm": "sequential", "transport": "rdma"},
    "chain": {"mode": "off", "algorithm": "chain", "transport": "rdma"},
    "RDMC": {"mode": "off", "algorithm": "binomial-pipeline", "transport": "rdma"},
    "multicast": {"mode": "require"},
}


def measure(net: McNet, ways: list[str]) -> dict[str, dict[tuple[str, str], float]]:
    """Copies on each link, by way: of several runs, one in which little was sent again."""
    result = {}
    for way in ways:
        runs: list[Result] = []
        while not runs or (runs[-1].again and len(runs) < RUNS):
            runs.append(replicate(net, BULK if way == "multicast" else RELAYED, **WAYS[way]))
        best = min(runs, key=lambda r: r.again)
        info(f"{way}: {best.seconds:.2f} s, {best.again} packets sent again; {'; '.join(best.group['why'])}\n")
        result[way] = best.copies
    return result


def table(columns: dict[str, dict[tuple[str, str], float]], size: int) -> str:
    """The links, and how many times each carried the data. Those that carried none are left out."""
    rows = [["LINK", *columns]]
    links = list(dict.fromkeys(k for c in columns.values() for k in c))
    for a, b in links:
        values = [c.get((a, b), 0) for c in columns.values()]
        if max(values) >= 0.1:
            rows.append([f"{a} → {b}", *(f"{v:.2f}" for v in values)])
    sums = [sum(c.values()) for c in columns.values()]
    rows.append(["all links", *(f"{v:.2f}" for v in sums)])
    rows.append([f"bytes, of {size / MIB:g} MiB", *(f"{v * size / MIB:.1f} MiB" for v in sums)])
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True)))
        for r in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


SMALL = Work([64, 1000, 4 * KIB, 64 * KIB] * 16, depth=1)
"""For bmv2, which is slower by far, and whose queues hold 64 packets."""
LARGE = Work([64, 1000, 4 * KIB, 64 * KIB, MIB] * 8)
BULK, RELAYED = Work([MIB] * 16, ("write",), depth=1), Work([16 * MIB], ("write",), depth=1)
"""For the table. Hosts relay what is large: they cut it into blocks."""
RUNS = 6
