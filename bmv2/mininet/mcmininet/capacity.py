"""What a network takes of this machine, before it is started.

Measured on two processors, idle, with hellos each 50 ms: figure3-full, 32 ends of links
between switches, took 0.73 of a processor, which is 2.3 % for each end, half of it in the
agents. An embedded switch had 79, 96 and 183 MiB with 4, 6 and 16 ports, an agent 37, a
daemon 31, a node's shell 3 and Mininet 32. Of bmv2, a packet takes up to 0.5 ms
(docs/bmv2.md: 1.3 s for 2.2 MiB in a rack), which makes 3.1 % for each end; its memory is
taken to be that of the embedded switch.
"""

from __future__ import annotations

import math
import os

from .fabric import Fabric

HELLO = 50  # ms between two hellos, as agents have it by default
# Ends of links between switches that a processor can watch so often beside other work: a
# bit more than a third of it.
ENDS = {"softswitch": 16, "bmv2": 12}
SHARE = {"softswitch": 2.3, "bmv2": 3.1}  # of a processor for each end, percent


def ends(f: Fabric) -> int:
    """Ends of links between switches: each is watched by hellos."""
    switches = {s.name for s in f.switches}
    return sum(2 for x in f.links if {x.a, x.b} <= switches)


def processors(f: Fabric, kind: str) -> int:
    """How many are wanted, for hellos as often as by default."""
    return max(1, math.ceil(ends(f) / ENDS[kind]))


def hello(f: Fabric, kind: str, have: int) -> int:
    """Milliseconds between two hellos: more than by default where many switches share few
    processors, which would have no time for anything else.
    """
    return HELLO * max(1, math.ceil(ends(f) / (ENDS[kind] * have)))


def memory(f: Fabric) -> int:
    """MiB that the programs take."""
    ports = sum(len(f.ports(s.name)) for s in f.switches)
    return math.ceil(32 + len(f.switches) * (45 + 37 + 3) + 8.5 * ports + len(f.hosts) * (31 + 3))


def here() -> tuple[int, int]:
    """Processors of this machine, and MiB of memory that are free on it."""
    with open("/proc/meminfo", encoding="ascii") as f:
        fields = dict(line.split(":") for line in f)
    return len(os.sched_getaffinity(0)), int(fields["MemAvailable"].split()[0]) >> 10


def lacking(f: Fabric, kind: str, have: int, free: int) -> tuple[str, str]:
    """What a machine lacks for a network, and how that was estimated: of processors, with
    fewer of which it is slower, and of memory, without which it cannot run."""
    cpu, mem = "", ""
    if processors(f, kind) > have:
        cpu = (
            f"{f.name} on {kind} wants {processors(f, kind)} processors, and here are {have}: it starts slowly, hellos go "
            f"each {hello(f, kind, have)} ms in place of {HELLO}, and failures of links are noticed later. (Estimate: "
            f"{ends(f)} ends of links between switches, each {SHARE[kind]} % of a processor; {ENDS[kind]} ends on each leave "
            "time for data.)"
        )
    if memory(f) > free:
        mem = (
            f"{f.name} on {kind} takes {memory(f)} MiB of memory, and {free} are free: take a smaller topology, or end "
            f"other programs. (Estimate: {len(f.switches)} switches of 45 MiB and 8.5 for each port, with agents of 37; "
            f"{len(f.hosts)} daemons of 31.)"
        )
    return cpu, mem
