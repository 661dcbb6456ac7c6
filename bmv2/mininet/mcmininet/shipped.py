"""The topologies that are here already."""

from __future__ import annotations

from collections.abc import Callable

from .fabric import Fabric, Host, Link, Switch


def _rack(f: Fabric, switch: str, *hosts: str) -> None:
    """Adds a switch with hosts, at its ports from 1 on."""
    f.switches.append(Switch(switch))
    for i, h in enumerate(hosts):
        f.hosts.append(Host(h))
        f.links.append(Link(h, 0, switch, 1 + i))


def rack() -> Fabric:
    """One switch, four hosts."""
    f = Fabric("rack")
    _rack(f, "tor", "h1", "h2", "h3", "h4")
    return f


def figure3(core: bool = False) -> Fabric:
    """The testbed of the MC-RDMA paper, its figure 3: four racks of two hosts, whose
    switches have four links each to the one between them, which is not programmable
    unless that is asked for.
    """
    f = Fabric("figure3-full" if core else "figure3")
    for r in "ABCD":
        _rack(f, f"tor{r}", f"{r}1", f"{r}2")
    f.switches.append(Switch("core", programmable=core))
    for i, r in enumerate("ABCD"):
        f.links += [Link(f"tor{r}", 9 + n, "core", 1 + 4 * i + n) for n in range(4)]
    return f


def fattree(k: int = 4) -> Fabric:
    """The fat tree: k pods of k/2 edge switches, each with k/2 hosts, and of k/2
    switches above them, which (k/2)² core switches join.
    """
    f, half = Fabric("fattree"), range(1, k // 2 + 1)
    for pod in range(1, k + 1):
        for e in half:
            _rack(f, f"edge{pod}-{e}", *(f"h{pod}-{e}-{h}" for h in half))
    for pod in range(1, k + 1):
        for a in half:
            agg = f"agg{pod}-{a}"
            f.switches.append(Switch(agg))
            f.links += [Link(f"edge{pod}-{e}", None, agg, None) for e in half]
            f.links += [Link(agg, None, f"core{(a - 1) * (k // 2) + c}", None) for c in half]
    f.switches += [Switch(f"core{c}") for c in range(1, (k // 2) ** 2 + 1)]
    return f


SHIPPED: dict[str, Callable[[], Fabric]] = {
    "rack": rack,
    "figure3": figure3,
    "figure3-full": lambda: figure3(core=True),
    "fattree": fattree,
}
