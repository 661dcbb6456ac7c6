"""The configurations of agents, and the topology that their routes are made of."""

from __future__ import annotations

from . import capacity
from .fabric import MANAGEMENT, Fabric

P4RUNTIME, AGENT, DAEMON, BGP = 9559, 9560, 9550, 1179


def management(f: Fabric, name: str) -> str:
    """A node's address in the management network, which is beside the fabric."""
    names = [s.name for s in f.switches] + [h.name for h in f.hosts]
    return str(MANAGEMENT[1 + names.index(name)])


def topology(f: Fabric) -> str:
    """The fabric as a file, for agents and for "switchctl plan"."""
    lines = ["switches:"]
    for s in f.switches:
        lines.append(
            f'  - {{name: "{s.name}", address: {s.address}, mac: "{s.mac}", prefixes: [{", ".join(s.prefixes)}], '
            f"programmable: {str(s.programmable).lower()}}}"
        )
    lines.append("hosts:")
    lines += [f'  - {{name: "{h.name}", address: {h.address}, mac: "{h.mac}"}}' for h in f.hosts]
    lines.append("links:")
    for x in f.links:
        a, b = ((f'node: "{n}"' + (f", port: {p}" if p else "")) for n, p in ((x.a, x.a_port), (x.b, x.b_port)))
        lines.append(f"  - {{a: {{{a}}}, b: {{{b}}}}}")
    return "\n".join(lines) + "\n"


def agent(f: Fabric, name: str, kind: str = "softswitch") -> str:
    """The configuration of a switch's agent, to lie beside its certificate."""
    s = f.switch(name)
    switches = {x.name for x in f.switches}
    lines = [
        f'name: "{name}"',
        f"address: {s.address}",
        f'mac: "{s.mac}"',
        f"prefixes: [{', '.join(s.prefixes)}]",
        f"gateways: [{', '.join(s.gateways)}]",
        f"programmable: {str(s.programmable).lower()}",
        f"p4runtime: {{target: 127.0.0.1:{P4RUNTIME}, device_id: {device(f, name)}}}",
        f"listen: {management(f, name)}:{AGENT}",
        "tls: {cert: switch.crt, key: switch.key, ca: ca.crt}",
        "state: agent.db",
        "routing: {source: static, topology: ../fabric.yaml}",
    ]
    if (hello := capacity.hello(f, kind, capacity.here()[0])) > capacity.HELLO:
        lines.append(f"hello: {{interval: {hello}ms}}")
    lines.append("ports:")
    for port, far in f.ports(name):
        lines.append(f'  - {{port: {port}, to: "{far}"}}' if far in switches else f"  - {{port: {port}}}")
    others = [x for x in f.switches if x.name != name]
    if others:
        lines.append("switches:")
    for x in others:
        lines.append(
            f'  - {{name: "{x.name}", agent: "{management(f, x.name)}:{AGENT}", addresses: [{x.address}], '
            f"prefixes: [{', '.join(x.prefixes)}], programmable: {str(x.programmable).lower()}}}"
        )
    return "\n".join(lines) + "\n"


def device(f: Fabric, name: str) -> int:
    """P4Runtime's device id: bmv2 has files that it names after it."""
    return 1 + [s.name for s in f.switches].index(name)


def lab(f: Fabric, directory: str) -> list[list[str]]:
    """The arguments with which cmd-daemon, called with one list after the other, makes
    certificates and the daemons' configurations. A switch without hosts gets a call of
    its own: as one of several it would be taken for that of all other hosts.
    """
    first, rest = ["init", directory, "--local", "--admin", "admin"], []
    for h in f.hosts:
        first += ["--host", f"{h.name}={h.address}"]
    for s in f.switches:
        at = f"{s.name}={management(f, s.name)}:{AGENT}"
        if hosts := "".join("," + h.name for h in f.at(s.name)):
            first += ["--switch", at + hosts]
        else:
            rest.append(["init", directory, "--local", "--add", "--switch", at])
    return [first, *rest]
