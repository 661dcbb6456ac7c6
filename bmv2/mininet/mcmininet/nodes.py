"""Mininet nodes: a switch with its agent, and a host with its daemon."""

from __future__ import annotations

import os
import shlex
import subprocess
import time

from mininet.node import Host, Node, Switch

from . import config

TOP = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../.."))
PROGRAMS = os.path.join(TOP, "out/mininet/bin")  # what "make mininet" builds
LAUNCHER = os.path.join(TOP, "bmv2/simple_switch_grpc")
CPU_PORT = 510
PATIENCE = float(os.environ.get("START_TIMEOUT", 60))  # seconds until a program has to be ready


class StartError(Exception):
    """A program did not become ready; the text ends with what it said itself."""


class Process:
    """A program in a node's namespaces. It ends with the program that started it,
    whichever way that goes, and what it says is in a file."""

    def __init__(self, node: Node, name: str, args: list[str], log: str):
        self.name, self.args, self.log = name, args, log
        with open(log, "wb") as out:
            self.popen = node.popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *args], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def said(self, lines: int = 30) -> str:
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return "\n".join(f.read().splitlines()[-lines:])

    def wait(self, ready, what: str) -> None:
        """Returns when ready() is true; raises a StartError if that takes too long, or it ends."""
        end = time.monotonic() + PATIENCE
        while not ready():
            status = self.popen.poll()
            if status is not None or time.monotonic() > end:
                how = f"ended with status {status}" if status is not None else f"has not {what} within {PATIENCE:g} s"
                self.stop()
                raise StartError(f"{self.name} {how}. It was: {shlex.join(self.args)}\nIt said:\n{self.said()}")
            time.sleep(0.02)

    def wait_ready(self) -> None:
        """Waits for a line that begins with the word."""
        self.wait(lambda: "\nready" in "\n" + self.said(1000), "become ready")

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(10)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        self.popen.wait()


def listens(pid: int, port: int) -> bool:
    """Whether any process listens at a TCP port in the network namespace of process pid."""
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as f:
                rows = [line.split() for line in f.readlines()[1:]]
        except FileNotFoundError:
            continue
        if any(r[3] == "0A" and int(r[1].rpartition(":")[2], 16) == port for r in rows):
            return True
    return False


def counters(node: Node) -> dict[str, tuple[int, int]]:
    """Bytes that came in and went out, by interface."""
    with open(f"/proc/{node.pid}/net/dev", encoding="ascii") as f:
        rows = [line.replace(":", " ").split() for line in f.readlines()[2:]]
    return {r[0]: (int(r[1]), int(r[9])) for r in rows}


def bare(node: Node, interface: str, mtu: int) -> None:
    """Has an interface carry frames as they are on a wire: what is left to hardware
    that does not exist, checksums and segmentation, would reach the other end undone.
    """
    out = node.cmd(
        f"ip link set dev {interface} mtu {mtu} && "
        f"ethtool -K {interface} tx off sg off tso off gso off gro off >/dev/null && echo 1"
    )
    if out.strip() != "1":
        raise StartError(f"{node.name}: {interface}: {out.strip()}")
    node.cmd(f"echo 1 >/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")  # fails without IPv6


class McSwitch(Switch):
    """A switch with an agent, in a network namespace of its own.

    kind: "softswitch", the embedded switch, or "bmv2", simple_switch_grpc
    device: P4Runtime's device id
    agent: the configuration file of the agent; None: there is none
    options: further options of the switch
    programs, logs: directories
    """

    def __init__(
        self, name, kind="softswitch", device=1, agent=None, options=(), programs=PROGRAMS, logs=".", **params
    ):
        if kind not in ("softswitch", "bmv2"):
            raise ValueError(f"{kind}: there are softswitch and bmv2")
        self.kind, self.device, self.agent_config = kind, device, agent
        self.options, self.programs, self.logs = list(options), programs, logs
        self.switch: Process | None = None
        self.agent: Process | None = None
        params["inNamespace"] = True
        params.setdefault("dpid", f"{device:x}")
        super().__init__(name, **params)

    def command(self) -> list[str]:
        """What runs the switch: both kinds take the same options."""
        if self.kind == "bmv2":
            args = [LAUNCHER, "--notifications-addr", f"ipc://{os.path.abspath(self.logs)}/{self.name}.ipc"]
        else:
            args = [os.path.join(self.programs, "switchctl"), "softswitch", "--no-p4"]
        for port, intf in sorted(self.intfs.items()):
            if port > 0:
                args += ["-i", f"{port}@{intf.name}"]
        args += ["--device-id", str(self.device), "--grpc-server-addr", f"127.0.0.1:{config.P4RUNTIME}"]
        return args + ["--cpu-port", str(CPU_PORT), *self.options]

    def start(self, controllers=()):
        """Starts the switch, waits until it serves P4Runtime, and starts the agent."""
        if listens(self.pid, config.P4RUNTIME):
            raise StartError(f"switch {self.name}: it runs already")
        self.cmd("ip link set lo up")
        self.switch = Process(self, f"switch {self.name}", self.command(), os.path.join(self.logs, f"{self.name}.log"))
        self.switch.wait(lambda: listens(self.pid, config.P4RUNTIME), f"listened at port {config.P4RUNTIME}")
        if self.agent_config:
            args = [os.path.join(self.programs, "switchctl"), "agent", "--config", self.agent_config]
            self.agent = Process(self, f"agent of {self.name}", args, os.path.join(self.logs, f"{self.name}-agent.log"))

    def stop(self, deleteIntfs=True):
        """Ends the agent and the switch."""
        for process in (self.agent, self.switch):
            if process:
                process.stop()
        self.switch = self.agent = None
        super().stop(deleteIntfs)


class McHost(Host):
    """A host whose one interface is eth0, with a daemon.

    daemon: the configuration file of the daemon; None: there is none
    programs, logs: directories
    """

    def __init__(self, name, daemon=None, programs=PROGRAMS, logs=".", **params):
        self.daemon_config, self.programs, self.logs = daemon, programs, logs
        self.daemon: Process | None = None
        super().__init__(name, **params)

    def config(self, **params):
        """Mininet calls this before the network starts."""
        if self.defaultIntf():
            self.defaultIntf().rename("eth0")
        return super().config(**params)

    def start(self) -> None:
        """Starts the daemon; Process.wait_ready tells when it is ready."""
        if self.daemon_config:
            args = [os.path.join(self.programs, "cmd-daemon"), "run", "--config", self.daemon_config]
            self.daemon = Process(
                self, f"daemon of {self.name}", args, os.path.join(self.logs, f"{self.name}-daemon.log")
            )

    def terminate(self):
        """Ends the daemon, and all else that the host is."""
        if self.daemon:
            self.daemon.stop()
        super().terminate()
