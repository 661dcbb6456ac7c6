"""What is done with networks: a prompt, the test, the table. All of it runs within
namespaces that isolate has made."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager

from mininet.cli import CLI
from mininet.log import info, output, setLogLevel

from . import multicast
from .fabric import Fabric
from .net import McNet
from .nodes import StartError
from .shipped import figure3

HELP = """
Hosts run cmd-daemon, and switches an agent; their logs are in {logs}. For example:
    {switch} switchctl status --peers
    {receivers}
    {sender} cmd-daemon cmtime --service bench --receivers {names} --mode require -n 20 --write 10000
"exit" ends everything.
"""

# For daemons in tests: all hosts and switches share this machine's processors, and may
# be kept waiting without being dead.
PATIENT = "beat: {interval: 500ms, dead_after: 24s, grace: 12s}\n"


class Prompt(CLI):
    """Mininet's prompt. Without a terminal, standard input is a script: each of its lines is a
    command, shown behind the prompt as if it were typed, and none is input of the one before, to
    which Mininet would hand it."""

    def precmd(self, line):
        if not self.isatty() and line != "EOF":
            output(line + "\n")
        return super().precmd(line)

    def waitForNode(self, node):
        if self.isatty():
            super().waitForNode(node)
            return
        while node.waiting:
            output(node.monitor())


class Shapeless(Exception):
    """The kernel cannot limit links."""


def _shaping(f: Fabric) -> None:
    """Mininet goes on if tc fails; a link would then be another one than was asked for."""
    if any(x.shape for x in f.links):
        shapes = {key for x in f.links for key in x.shape}
        for kind in ["htb"] * ("bw" in shapes) + ["netem delay 1ms"] * bool(shapes - {"bw"}):
            made = subprocess.run(f"tc qdisc add dev lo root {kind}".split(), capture_output=True, text=True)
            if made.returncode:
                name = kind.split()[0]
                raise Shapeless(
                    f"{f.name}: links with {', '.join(sorted(shapes))} need the kernel's {name} (modprobe sch_{name}): "
                    + made.stderr.strip()
                )
            subprocess.run("tc qdisc del dev lo root".split(), capture_output=True)


def _logs(name: str) -> tuple[str, int]:
    """An empty directory that is no other network's, and the descriptor by which it is held."""
    for n in itertools.count(1):
        path = f"{name}-{n}" if n > 1 else name
        os.makedirs(path, exist_ok=True)
        held = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            continue
        for old in os.scandir(path):
            shutil.rmtree(old) if old.is_dir(follow_symlinks=False) else os.remove(old)
        return path, held
    raise AssertionError("unreachable")


@contextmanager
def network(f: Fabric, kind: str, lab: str, out: str, options: list[str], daemon: str = ""):
    """A network that runs; at the end nothing of it is left."""
    _shaping(f)
    logs, held = _logs(os.path.join(out, "logs", f"{os.path.splitext(f.name)[0]}-{kind}"))
    directory = os.path.join(lab, "net")
    net = None
    try:
        net = McNet(f, directory, kind, options, os.path.join(out, "bin"), logs, daemon)
        net.build()
        net.start()
        yield net
    finally:
        if net:
            net.stop()
        shutil.rmtree(directory, ignore_errors=True)
        os.close(held)


def left() -> list[str]:
    """What is there besides this process: other processes, and interfaces."""
    found = [f"interface {i}" for i in os.listdir("/sys/class/net") if i not in ("lo", "bonding_masters")]
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/status", encoding="ascii") as f:
                status = f.read()
        except OSError:
            continue
        if int(pid) != os.getpid() and "State:\tZ" not in status:
            found.append(f"process {pid}: {status.split()[1]}")
    return found


def _errors(f) -> int:
    """Calls f, and says what its errors say."""
    setLogLevel("info")
    try:
        return f() or 0
    except (StartError, Shapeless, multicast.Failed) as e:
        print(f"mininet: {e}{_busy()}", file=sys.stderr)
        return 1


def _busy() -> str:
    """That the processors may be the cause, if they have more to do than they can."""
    load, processors = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= 2 * processors:
        return ""
    return (
        f"\nPerhaps because this machine is busy: {load:.0f} processes want to run on {processors} processors. "
        "End others, or take a topology with fewer switches."
    )


def prompt(f: Fabric, kind: str, lab: str, out: str, options: list[str]) -> int:
    def work():
        with network(f, kind, lab, out, options) as net:
            sender, receivers = multicast.choose(f)
            serve = "\n    ".join(f"{r} cmd-daemon cmtime --serve --service bench >/dev/null &" for r in receivers)
            print(
                HELP.format(
                    logs=net.logs, switch=f.switches[0].name, receivers=serve, sender=sender, names=",".join(receivers)
                )
            )
            Prompt(net)

    return _errors(work)


def test(fabrics: list[Fabric], kinds: list[str], lab: str, out: str, options: list[str]) -> int:
    def work():
        for kind in kinds:
            for f in fabrics:
                start = time.monotonic()
                with network(f, kind, lab, out, options, PATIENT) as net:
                    up = time.monotonic() - start
                    multicast.check(net, multicast.LARGE if kind == "softswitch" else multicast.SMALL)
                took, remains = time.monotonic() - start, left()
                if remains:
                    raise multicast.Failed(f"{f.name} on {kind} has left: {', '.join(remains)}")
                print(
                    f"ok  {f.name} on {kind}: up after {up:.1f} s, {took:.1f} s in all, nothing left",
                    flush=True,
                )

    return _errors(work)


def table(lab: str, out: str, kind: str, options: list[str]) -> int:
    def work():
        columns = {}
        size = sum(multicast.BULK.sizes)
        for f, name in ((figure3(), "ToR-only"), (figure3(core=True), "full")):
            ways = [*multicast.WAYS] if name == "ToR-only" else ["multicast"]
            with network(f.complete(), kind, lab, out, options, PATIENT) as net:
                for way, links in multicast.measure(net, ways).items():
                    columns[name if way == "multicast" else way] = links
        sender, receivers = multicast.choose(f)
        info(f"\n{size / multicast.MIB:g} MiB from {sender} to {', '.join(receivers)}:\n")
        print(multicast.table(columns, size))

    return _errors(work)
