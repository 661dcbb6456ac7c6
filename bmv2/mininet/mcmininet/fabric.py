"""What a network is: switches, hosts and links; what is left out of it is filled in.

Addresses that the topology does not name: rack n, in the order of switches with
hosts, has 10.n.0.0/24, its hosts .11, .12 and so on; switch n has 198.19.n.1 as a
router. The gateway is the first address of a prefix.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_PORT = 509  # 510 is the CPU's, 511 drops
MANAGEMENT = ipaddress.ip_network("198.18.0.0/16")  # beside the fabric, for agents
ROUTERS = ipaddress.ip_network("198.19.0.0/16")
BROADCAST = ipaddress.IPv4Address("255.255.255.255")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}\Z")
INTERFACE = 15  # characters, at most
# of Mininet's prompt, where a node's name begins the commands that it runs
COMMANDS = frozenset(
    "EOF dpctl dump exit gterm help intfs iperf iperfudp link links net nodes noecho pingall pingallfull pingpair "
    "pingpairfull ports px py quit sh source switch time wait x xterm".split()
)


class TopologyError(Exception):
    """What is wrong with a topology: one line for each fault."""

    def __init__(self, name: str, faults: list[str]):
        super().__init__("\n".join(f"{name}: {f}" for f in faults))
        self.faults = faults


@dataclass
class Switch:
    name: str
    programmable: bool = True  # for groups; others forward only
    address: str = ""  # as a router
    mac: str = ""
    prefixes: list[str] = field(default_factory=list)  # of its hosts
    gateways: list[str] = field(default_factory=list)  # empty: the first address of each prefix


@dataclass
class Host:
    name: str
    address: str = ""
    mac: str = ""
    gateway: str = ""
    length: int = 0  # of the prefix; 0: as its switch has it
    commands: list[str] = field(default_factory=list)  # run there in the end


@dataclass
class Link:
    """A link; ports of hosts are 0, those of switches that are None get the next one."""

    a: str
    a_port: int | None
    b: str
    b_port: int | None
    shape: dict = field(default_factory=dict)  # bw (Mbit/s), delay ("5ms"), loss (%), for Mininet's TCLink


@dataclass
class Fabric:
    name: str
    switches: list[Switch] = field(default_factory=list)
    hosts: list[Host] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what of a file means nothing here
    mtu: int = 4200

    def switch(self, name: str) -> Switch:
        return next(s for s in self.switches if s.name == name)

    def host(self, name: str) -> Host:
        return next(h for h in self.hosts if h.name == name)

    def at(self, switch: str) -> list[Host]:
        """The hosts at a switch."""
        far = self._far()
        return [h for h in self.hosts if far.get(h.name) == switch]

    def tor(self, host: str) -> str:
        """The switch of a host; of one without a link, none."""
        return self._far().get(host, "")

    def _far(self) -> dict[str, str]:
        """What each node's first link leads to."""
        far: dict[str, str] = {}
        for link in self.links:
            far.setdefault(link.a, link.b)
            far.setdefault(link.b, link.a)
        return far

    def ports(self, switch: str) -> list[tuple[int, str]]:
        """A switch's ports, and who is there."""
        ends = [(x.a, x.a_port, x.b) for x in self.links] + [(x.b, x.b_port, x.a) for x in self.links]
        return sorted((port, far) for near, port, far in ends if near == switch)

    def complete(self) -> Fabric:
        """Fills in what is missing, and raises a TopologyError for all that is wrong."""
        links = _links(self)
        faults = _names(self) + links + _addresses(self)
        if not links and self.switches:
            faults += _connected(self)
        if faults:
            raise TopologyError(self.name, faults)
        return self


def _names(f: Fabric) -> list[str]:
    faults, seen = [], {"mgmt": "name that is taken"}
    if not f.switches:
        faults.append("no switches: at least one is needed")
    if len(f.hosts) < 2:
        faults.append(f"{len(f.hosts)} hosts: at least two are needed")
    for kind, nodes in (("switch", f.switches), ("host", f.hosts)):
        for n in nodes:
            if not NAME.match(n.name):
                faults.append(f"{kind} {n.name!r}: a name has letters, digits, dots, dashes and underscores")
            elif n.name in seen:
                faults.append(f"{kind} {n.name}: there is a {seen[n.name]} of that name")
            elif n.name in COMMANDS:
                faults.append(f"{kind} {n.name}: Mininet's prompt has a command of that name: give it another one")
            if n.mac and not MAC.match(n.mac):
                faults.append(f"{kind} {n.name}: {n.mac!r} is no MAC address, such as 02:00:00:00:01:0b")
            seen[n.name] = kind
    return faults


def _links(f: Fabric) -> list[str]:
    faults: list[str] = []
    switches, hosts = {s.name for s in f.switches}, {h.name for h in f.hosts}
    used: dict[tuple[str, int], int] = {}
    attached: dict[str, int] = {}
    for i, x in enumerate(f.links):
        if {x.a, x.b} <= hosts or x.a == x.b:
            faults.append(f"links[{i}]: it joins {x.a} and {x.b}: one end at least is a switch, and both differ")
        for name, port in ((x.a, x.a_port), (x.b, x.b_port)):
            if name in hosts:
                if name in attached:
                    faults.append(f"links[{i}]: host {name} has a link already, links[{attached[name]}]")
                attached[name] = i
                if port:
                    faults.append(f"links[{i}]: host {name} has no port {port}: hosts have one interface")
            elif name not in switches:
                faults.append(f"links[{i}]: there is no switch or host {name!r}")
            elif port is not None:
                if not 1 <= port <= MAX_PORT:
                    faults.append(f"links[{i}]: port {port} of switch {name}: ports are 1 to {MAX_PORT}")
                elif (name, port) in used:
                    faults.append(
                        f"links[{i}]: port {port} of switch {name} is used twice: links[{used[name, port]}] has it"
                    )
                used.setdefault((name, port), i)
    faults += [f"host {h.name}: no link leads to it" for h in f.hosts if h.name not in attached]
    for x in f.links:  # ports that the topology does not name: the next ones
        for end, port in (("a", x.a_port), ("b", x.b_port)):
            name = getattr(x, end)
            if name in hosts:
                port = 0
            elif port is None and name in switches:
                taken = {p for n, p in used if n == name}
                port = 1 + max(taken, default=0)
                if port > MAX_PORT:
                    port = next((p for p in range(1, port) if p not in taken), port)
                if port > MAX_PORT:
                    faults.append(f"switch {name}: more than {MAX_PORT} links: it has no port left for one")
                used[name, port] = 0
            setattr(x, f"{end}_port", port)
    for name, port in [*used, *((h, 0) for h in attached)]:  # Mininet calls a host's so until it has moved there
        if len(f"{name}-eth{port}") > INTERFACE:
            faults.append(
                f"{'host' if name in hosts else 'switch'} {name}: its interface {name}-eth{port} has a name of more "
                f"than {INTERFACE} characters"
            )
    return faults


def _addresses(f: Fabric) -> list[str]:
    faults: list[str] = []
    owner: dict[ipaddress.IPv4Network, str] = {}
    rack = 0
    for i, s in enumerate(f.switches):
        s.address = s.address or str(ROUTERS[256 * (i % 256) + 1 + i // 256])
        s.mac = s.mac or f"02:00:00:{i >> 8:02x}:{i & 255:02x}:00"
        hosts = f.at(s.name)
        rack += 1 if hosts else 0
        if rack > 255 and any(not h.address for h in hosts) and not s.prefixes:
            faults.append(f"switch {s.name}: rack {rack}, and prefixes are chosen for 255: give it its own")
        elif hosts and not s.prefixes:
            s.prefixes = _prefixes(hosts, rack, faults)
        for k, text in enumerate(s.prefixes):
            try:
                p = ipaddress.IPv4Network(text)
            except ValueError as e:
                faults.append(f"switch {s.name}: prefix {text!r}: {e}")
                continue
            s.prefixes[k] = str(p)  # the other programs read no netmasks
            if p.overlaps(MANAGEMENT):
                faults.append(f"switch {s.name}: prefix {p}: {MANAGEMENT} is Mininet's management network")
            for other, name in owner.items():
                if p.overlaps(other):
                    faults.append(
                        f"switch {s.name}: prefix {p}: {name} has {other}; as switches route, subnets are of one each"
                    )
            owner[p] = s.name
    if not faults:
        faults += _hosts(f)
    switches = {s.name for s in f.switches}
    seen: dict[str, str] = {}
    for kind, n in [*(("switch", s) for s in f.switches), *(("host", h) for h in f.hosts)]:
        if MAC.match(n.mac):
            n.mac = n.mac.lower()
            if int(n.mac[:2], 16) & 1 or n.mac == "00:00:00:00:00:00":
                faults.append(f"{kind} {n.name}: {n.mac} is not the MAC address of one station")
            elif n.mac in seen:
                faults.append(f"{kind} {n.name}: {n.mac} is the MAC address of {seen[n.mac]}")
            seen[n.mac] = n.name
        if not n.address and (faults or f.tor(n.name) not in switches):
            continue  # nothing was chosen for it, for a reason that is told
        try:
            a = ipaddress.IPv4Address(n.address)
        except ValueError:
            faults.append(f"{kind} {n.name}: {n.address!r} is not an IPv4 address, such as 10.1.0.11")
            continue
        n.address = str(a)
        if a.is_unspecified or a.is_loopback or a.is_multicast or a.is_link_local or a == BROADCAST:
            faults.append(f"{kind} {n.name}: {a} cannot be routed to")
        if kind == "switch" and a in MANAGEMENT:  # a host's is in a prefix
            faults.append(f"{kind} {n.name}: {a}: {MANAGEMENT} is Mininet's management network")
        if n.address in seen:
            faults.append(f"{kind} {n.name}: {n.address} is the address of {seen[n.address]}")
        seen[n.address] = n.name
    return faults


def _prefixes(hosts: list[Host], rack: int, faults: list[str]) -> list[str]:
    """The subnets of hosts whose switch names none."""
    nets: list[ipaddress.IPv4Network] = []
    for h in hosts:
        try:
            p = ipaddress.IPv4Network(f"{h.address or f'10.{rack}.0.0'}/{h.length or 24}", strict=False)
        except ValueError as e:
            faults.append(f"host {h.name}: {e}")
            continue
        if p not in nets:
            nets.append(p)
    return [str(p) for p in nets]


def _from(net: ipaddress.IPv4Network, first: int) -> Iterator[str]:
    """The addresses that a station may have in a network, from one on."""
    return (str(net[i]) for i in range(first, net.num_addresses - 1))


def _hosts(f: Fabric) -> list[str]:
    """Hosts' addresses, those of their gateways, and MAC addresses."""
    faults: list[str] = []
    taken = {h.address for h in f.hosts}
    for s in f.switches:
        nets = [ipaddress.IPv4Network(p) for p in s.prefixes]
        gateways: dict[ipaddress.IPv4Network, str] = {}
        for h in f.at(s.name):
            if not h.address:
                h.address = next((a for a in _from(nets[0], 11) if a not in taken), "")
                if not h.address:
                    faults.append(f"host {h.name}: {nets[0]} of {s.name} has no address left for it: from .11 on they are for hosts")
                    continue
                taken.add(h.address)
            try:
                net = next((n for n in nets if ipaddress.IPv4Address(h.address) in n), None)
            except ValueError:
                continue  # said elsewhere
            if net is None:
                faults.append(
                    f"host {h.name}: {h.address} is in none of the prefixes of {s.name}: {', '.join(s.prefixes)}"
                )
                continue
            if net.prefixlen < 31 and h.address in (str(net[0]), str(net[-1])):
                faults.append(f"host {h.name}: {h.address} is the network or broadcast address of {net}")
            h.length = net.prefixlen
            h.gateway = h.gateway or gateways.get(net) or next((a for a in _from(net, 1) if a not in taken), "")
            if not h.gateway:
                faults.append(f"host {h.name}: hosts have all addresses of {net}: one is needed for the switch {s.name}")
                continue
            if gateways.setdefault(net, h.gateway) != h.gateway:
                faults.append(f"host {h.name}: gateway {h.gateway}: another host in {net} has {gateways[net]}")
            h.mac = h.mac or "02:01:" + ":".join(f"{b:02x}" for b in ipaddress.IPv4Address(h.address).packed)
        s.gateways = s.gateways or list(gateways.values())
    return faults


def _connected(f: Fabric) -> list[str]:
    switches = {s.name for s in f.switches}
    reached, todo = set(), [f.switches[0].name]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += [far for _, far in f.ports(name) if far in switches]
    lost = sorted(switches - reached)
    return [f"no links lead from {f.switches[0].name} to {', '.join(lost)}"] if lost else []
