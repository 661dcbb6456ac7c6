"""A whole network: switches with agents, hosts with daemons, certificates for all."""

from __future__ import annotations

import os
import shlex
import subprocess

from mininet.link import Link, TCLink
from mininet.log import info
from mininet.net import Mininet
from mininet.node import Node

from . import config
from .fabric import Fabric
from .nodes import PATIENCE, PROGRAMS, McHost, McSwitch, StartError, bare


class McNet(Mininet):
    """Mininet with a fabric as its topology.

    fabric: a Fabric that is complete
    directory: for certificates, configurations and sockets, which it makes
    kind: of switches, "softswitch" or "bmv2"; options: further ones of theirs
    programs, logs: directories
    daemon: lines of YAML for the configurations of daemons

    Daemons and agents talk to the agents by a management network, mgmt in every node.
    """

    def __init__(
        self, fabric: Fabric, directory: str, kind="softswitch", options=(), programs=PROGRAMS, logs=".", daemon=""
    ):
        super().__init__(controller=None, switch=McSwitch, host=McHost)
        self.fabric, self.directory, self.programs, self.logs = fabric, os.path.abspath(directory), programs, logs
        self.daemon, self.kind = daemon, kind
        self.mgmt: Node | None = None
        for s in fabric.switches:
            self.addSwitch(
                s.name,
                kind=kind,
                device=config.device(fabric, s.name),
                agent=self.file(s.name, "agent.yaml"),
                options=options,
                programs=programs,
                logs=logs,
            )
        for h in fabric.hosts:
            self.addHost(
                h.name,
                ip=f"{h.address}/{h.length}",
                mac=h.mac,
                defaultRoute=f"via {h.gateway}",
                daemon=self.file(h.name, "daemon.yaml"),
                programs=programs,
                logs=logs,
            )
        for x in fabric.links:
            self.addLink(x.a, x.b, x.a_port, x.b_port, cls=TCLink if x.shape else Link, **x.shape)

    def file(self, *names: str) -> str:
        return os.path.join(self.directory, *names)

    def build(self):
        """Makes certificates and configurations, and gives the nodes what they need."""
        super().build()
        for args in config.lab(self.fabric, self.directory):
            made = subprocess.run([os.path.join(self.programs, "cmd-daemon"), *args], capture_output=True, text=True)
            if made.returncode:
                raise StartError(f"cmd-daemon {shlex.join(args)}: {made.stderr}")
        self.write("fabric.yaml", config.topology(self.fabric))
        for s in self.fabric.switches:
            self.write(f"{s.name}/agent.yaml", config.agent(self.fabric, s.name, self.kind))
        for h in self.fabric.hosts:
            with open(self.file(h.name, "daemon.yaml"), "a", encoding="utf-8") as f:
                f.write(self.daemon)
        self.mgmt = Node("mgmt")
        self.mgmt.cmd("ip link add bridge type bridge; ip link set bridge up")
        for node in [*self.switches, *self.hosts]:
            for intf in node.intfList():
                if intf.name != "lo":
                    bare(node, intf.name, self.fabric.mtu)
            self.manage(node)
            self.tell(node)
        for node in self.hosts:
            # Mininet set it while the link's other end was down.
            node.cmd(f"ip route replace default via {self.fabric.host(node.name).gateway} dev eth0")

    def manage(self, node: Node) -> None:
        """Joins a node to the management network."""
        address, port = config.management(self.fabric, node.name), f"m{len(self.mgmt.cmd('ls /sys/class/net').split())}"
        out = node.cmd(f"ip link add mgmt type veth peer name {port} netns {self.mgmt.pid}")
        out += node.cmd(f"ip addr add {address}/16 dev mgmt; ip link set mgmt up")
        out += self.mgmt.cmd(f"ip link set {port} master bridge up")
        if out.strip():
            raise StartError(f"{node.name}: the management network: {out.strip()}")

    def tell(self, node: Node) -> None:
        """What the programs have to know that people run at a node's prompt."""
        admin = self.file("admin")
        tor = node.name if isinstance(node, McSwitch) else self.fabric.tor(node.name)
        lines = [
            f"export PATH={self.programs}:$PATH SWITCHCTL_AGENT={config.management(self.fabric, tor)}:{config.AGENT}",
            f"export MCRDMA_SOCKET={self.file(node.name, 'daemon.sock')}",
            f"export SWITCHCTL_TLS_CERT={admin}/admin.crt SWITCHCTL_TLS_KEY={admin}/admin.key SWITCHCTL_TLS_CA={admin}/ca.crt",
        ]
        for line in lines:
            node.cmd(line)

    def write(self, name: str, text: str) -> None:
        with open(self.file(name), "w", encoding="utf-8") as f:
            f.write(text)

    def start(self):
        """Returns when every host reaches every other one and daemons are ready."""
        super().start()
        for s in self.switches:
            if s.agent:
                s.agent.wait_ready()
        info("*** Starting daemons\n")
        for h in self.hosts:
            h.start()
        for h in self.hosts:
            h.daemon.wait_ready()
        self.reachable()
        for h in self.fabric.hosts:
            for c in h.commands:
                self[h.name].cmd(c)

    def reachable(self) -> None:
        """Waits until every host reaches the daemons of all others."""
        waits = []
        for h in self.fabric.hosts:
            others = " ".join(o.address for o in self.fabric.hosts if o is not h)
            script = (
                f'for a in {others}; do until timeout 1 bash -c "exec 3<>/dev/tcp/$a/{config.DAEMON}" 2>/dev/null; do '
                f'[ $SECONDS -lt {PATIENCE:g} ] || {{ echo "$a"; exit 1; }}; sleep 0.05; done; done'
            )
            waits.append((h, self[h.name].popen(["bash", "-c", script], text=True)))
        faults = []
        for h, p in waits:
            out, _ = p.communicate()
            if p.returncode:
                faults.append(f"{h.name} does not reach {out.strip()}")
        if faults:
            raise StartError("\n".join(faults))

    def stop(self):
        """Ends everything: daemons first, so that they take their leave."""
        for h in self.hosts:
            if h.daemon:
                h.daemon.popen.terminate()
        for s in self.switches:
            if s.agent:
                s.agent.popen.terminate()
        super().stop()
        if self.mgmt:
            self.mgmt.terminate()
