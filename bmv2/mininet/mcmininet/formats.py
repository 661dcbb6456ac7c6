"""Topologies from files: this project's own, the P4 tutorials', and p4-utils'.

All are read strictly: an unknown word is an error, since it is most often
misspelt. What is known and means nothing here goes to the fabric's notes.
"""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
from collections import Counter

from .fabric import Fabric, Host, Link, Switch, TopologyError

# What p4app.json may say besides its topology: how P4 programs are compiled, run and
# controlled there.
P4APP = """program p4_src switch switch_cli switch_node router_node host_node compiler compiler_module client_module
    options cli pcap_dump enable_log topo_module controller_module topodb_module mininet_module tasks_file exec_scripts
    sched_grace""".split()
P4APP_SWITCH = "cli_input program p4_src runtime_json thrift_port grpc_port device_id cpu_port sw_bin".split()
UNUSED_LINK = "weight queue_length max_queue_size intfName1 intfName2 params1 params2".split()

MAX_BW = 1000  # Mbit/s: Mininet leaves a link without a limit if it is higher
MAX_INT = 1 << 63

PART = re.compile(r"(switches|hosts|links)\[\d+\]|(switch|host) [^:]*")  # that the text of a fault begins with
ROUTE = re.compile(r"\s*(?:route add default gw|ip route add default via)\s+(\S+)")
ARP = re.compile(r"\s*arp\s.*-s\s+\S+\s+(\S+)")


class _Reader:
    """Collects what is wrong with a file."""

    def __init__(self, name: str, lines: dict[str, int] | None = None):
        self.name, self.faults, self.ignored, self.lines = name, [], set(), lines or {}

    def fail(self, fault: str) -> None:
        self.faults.append(fault)

    def done(self, fabric: Fabric) -> Fabric:
        if self.ignored:
            fabric.notes.append(f"{self.name}: of no use here, and ignored: {', '.join(sorted(self.ignored))}")
        if all(PART.match(f) for f in self.faults):  # else too much of it is unread
            told = {self.place(f) for f in self.faults}
            try:
                fabric.complete()
            except TopologyError as e:
                self.faults += [f for f in e.faults if self.place(f) not in told]
        if self.faults:
            raise TopologyError(self.name, [self.line(f) + f for f in self.faults])
        return fabric

    def place(self, fault: str) -> str:
        """What a fault is of: a link, or a switch or host by its line if that is known."""
        m = PART.match(fault)
        return str(self.lines.get(m.group(), m.group())) if m else ""

    def line(self, fault: str) -> str:
        """Where in the file a fault is: by the field that its text begins with, as "links[0].b: port: …"."""
        where, _, rest = fault.replace("'", "").partition(": ")
        line = self.lines.get(f"{where}.{rest.partition(':')[0]}") or self.lines.get(where)
        return f"line {line}: " if line else ""

    def fields(self, thing, where: str, required: str = "", optional: str = "", ignored=()) -> dict:
        """A mapping of which all keys are known, and the required ones are there."""
        if not isinstance(thing, dict):
            self.fail(f"{where}: {_short(thing)}, and not a mapping")
            return {}
        for key in thing:
            if key in ignored:
                self.ignored.add(key)
            elif key not in required.split() + optional.split():
                known = sorted(required.split() + optional.split() + list(ignored))
                self.fail(f"{where}: unknown key {key!r}; there are {', '.join(known) or 'none'}")
        for key in required.split():
            if key not in thing:
                self.fail(f"{where}: {key} is missing")
        return thing

    def value(self, thing: dict, key: str, where: str, kind: type, default=None):
        """A field's value, if it is of that type."""
        v = thing.get(key, default)
        if kind is int and isinstance(v, int) and abs(v) >= MAX_INT:
            self.fail(f"{where}: {key}: the number is too large")
            return default
        if v is default or (isinstance(v, kind) and not (kind is int and isinstance(v, bool))):
            return v
        self.fail(f"{where}: {key}: {_short(v)}, and not of type {kind.__name__}")
        return default

    def list(self, thing: dict, key: str, kind: type, where: str = "") -> list:
        """A field that is a list of things of that type."""
        v = thing.get(key) or []
        if not isinstance(v, list):
            self.fail(f"{where}{key}: {_short(v)}, and not a list")
            return []
        for i, x in enumerate(v):
            if not isinstance(x, kind):
                self.fail(f"{where}{key}[{i}]: {_short(x)}, and not of type {kind.__name__}")
        return [x for x in v if isinstance(x, kind)]


SHORT = reprlib.Repr()  # a file of a few lines of YAML may mean terabytes
SHORT.maxlevel, SHORT.maxlist, SHORT.maxdict, SHORT.maxstring, SHORT.maxother = 2, 9, 9, 60, 60


def _short(v) -> str:
    try:
        text = SHORT.repr(v)
    except ValueError:  # Python writes no number of thousands of digits
        text = "a number that is too large"
    return text if len(text) < 60 else text[:57] + "..."


def load(path: str) -> Fabric:
    """Reads a topology file, whichever of the three formats it is in."""
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except (OSError, UnicodeDecodeError) as e:
        raise TopologyError(path, [f"it cannot be read: {e}"]) from e
    return parse(path, text)


def parse(path: str, text: str) -> Fabric:
    """Reads a topology. The name says whether it is YAML (.yaml, .yml) or JSON."""
    data, twice = _yaml(path, text) if path.endswith((".yaml", ".yml")) else _json(path, text)
    if not isinstance(data, dict):
        raise TopologyError(path, [f"{_short(data)}, and not a mapping with switches, hosts and links"])
    try:
        if "topology" in data:
            f = _p4app(path, data)
        elif isinstance(data.get("hosts"), dict) or isinstance(data.get("switches"), dict):
            f = _tutorials(path, data)
        else:
            f = _own(path, data, _lines(text) if path.endswith((".yaml", ".yml")) else {})
    except TopologyError as e:
        raise TopologyError(path, twice + e.faults) from e
    if twice:
        raise TopologyError(path, twice)
    return f


def _lines(text: str) -> dict[str, int]:
    """The lines of a YAML file's fields, by their paths; of switches and hosts by their names, too."""
    import yaml

    lines: dict[str, int] = {}

    def walk(node, path: str) -> None:
        if path:
            lines[path] = node.start_mark.line + 1
        if isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                walk(item, f"{path}[{i}]")
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                walk(value, f"{path}.{key.value}".lstrip("."))
                if m := re.fullmatch(r"(switch|host)(es|s)\[\d+\]", path):
                    if key.value == "name":
                        lines[f"{m.group(1)} {value.value}"] = lines[path]

    walk(yaml.compose(text, yaml.SafeLoader), "")
    return lines


def _json(path: str, text: str) -> tuple:
    """What it says, and the faults of keys that are there twice."""
    twice: list[str] = []

    def once(pairs):
        keys = Counter(k for k, _ in pairs)
        twice.extend(f"key {k!r} is there twice" for k, n in keys.items() if n > 1)
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once), twice
    except ValueError as e:
        raise TopologyError(path, [f"no JSON: {e}"]) from e
    except RecursionError as e:
        raise TopologyError(path, ["no JSON of a topology: too many brackets"]) from e


def _yaml(path: str, text: str) -> tuple:
    """What it says, and the faults of keys that are there twice."""
    twice: list[str] = []
    try:
        import yaml
    except ImportError as e:
        raise TopologyError(
            path, ["reading YAML takes PyYAML: apt-get install python3-yaml; or write it as JSON"]
        ) from e

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            seen = set()
            for key, _ in node.value:
                if key.value in seen:
                    twice.append(f"line {key.start_mark.line + 1}: key {key.value!r} is there twice")
                if isinstance(key.value, str):
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        aliases = [e for e in yaml.parse(text, yaml.SafeLoader) if isinstance(e, yaml.AliasEvent)]
        if aliases:  # the other programs take none
            lines = [(e.start_mark.line + 1, e.anchor) for e in aliases[:20]]
            raise TopologyError(path, [f"line {n}: aliases are not supported: write *{a} out" for n, a in lines])
        return yaml.load(text, Loader), twice
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as e:
        raise TopologyError(path, [f"no YAML: {' '.join(str(e).split())}"]) from e


def _own(path: str, data: dict, lines: dict[str, int]) -> Fabric:
    """As docs/topology.md describes it."""
    r, f = _Reader(path, lines), Fabric(os.path.basename(path))
    r.fields(data, "the file", "switches hosts links")
    for i, s in enumerate(r.list(data, "switches", dict)):
        where = f"switches[{i}]"
        r.fields(s, where, "name", "programmable address mac prefixes")
        f.switches.append(
            Switch(
                r.value(s, "name", where, str, ""),
                r.value(s, "programmable", where, bool, True),
                r.value(s, "address", where, str, ""),
                r.value(s, "mac", where, str, ""),
                r.list(s, "prefixes", str, where + "."),
            )
        )
    for i, h in enumerate(r.list(data, "hosts", dict)):
        where = f"hosts[{i}]"
        r.fields(h, where, "name", "address mac")
        f.hosts.append(Host(*(r.value(h, k, where, str, "") for k in ("name", "address", "mac"))))
    for i, x in enumerate(r.list(data, "links", dict)):
        r.fields(x, f"links[{i}]", "a b")
        ends = []
        for end in ("a", "b"):
            where = f"links[{i}].{end}"
            e = r.fields(x.get(end, {}), where, "node", "port address mac", ())
            r.ignored |= {k for k in ("address", "mac") if k in e}
            ends += [r.value(e, "node", where, str, ""), r.value(e, "port", where, int)]
        f.links.append(Link(*ends))
    return r.done(f)


def _shape(r: _Reader, where: str, bw, delay, loss) -> dict:
    """What Mininet's TCLink takes: nothing for links without limits."""
    shape = {}
    if isinstance(delay, int | float) and not isinstance(delay, bool):
        delay = f"{delay}ms"
    for key, v in (("bw", bw), ("loss", loss)):
        if isinstance(v, str) and re.fullmatch(r"\d+(\.\d+)?", v):
            v = float(v)
        most, unit = (MAX_BW, "Mbit/s") if key == "bw" else (100, "percent")
        if v is not None and (isinstance(v, bool) or not isinstance(v, int | float) or math.isnan(v) or v < 0):
            r.fail(f"{where}: {key}: {_short(v)} is no number of {unit}")
        elif v and v > most:
            r.fail(f"{where}: {key}: {_short(v)}: Mininet limits links to {most} {unit} at most")
        elif v:
            shape[key] = v
    if delay is not None and not re.fullmatch(r"\d+(\.\d+)?(us|ms|s)?", str(delay)):
        r.fail(f"{where}: delay: {_short(delay)} is no time such as 5ms")
    elif delay is not None and float(re.match(r"[\d.]+", str(delay)).group()):
        shape["delay"] = str(delay) if str(delay)[-1] == "s" else f"{delay}ms"
    return shape


def _hosts(r: _Reader, f: Fabric, hosts: dict, optional: str, ignored=()) -> dict[str, str]:
    """Hosts by name, with "ip" as an address with the length of its prefix. Returns the
    gateways' MAC addresses that commands set, by host: their switch gets them."""
    macs = {}
    for name, h in hosts.items():
        where = f"host {name}"
        r.fields(h, where, "", optional, ignored)
        if not isinstance(h, dict):
            continue
        ip, _, length = r.value(h, "ip", where, str, "").partition("/")
        if length and not re.fullmatch("[0-9]{1,2}", length):
            r.fail(f"{where}: ip: {_short(h['ip'])} is not of the form 10.0.1.1/24")
            length = ""
        host = Host(str(name), ip, r.value(h, "mac", where, str, ""), length=int(length or 0))
        for key in ("gw", "defaultRoute"):
            host.gateway = r.value(h, key, where, str, "").removeprefix("via ").strip() or host.gateway
        for c in r.list(h, "commands", str, where + ": "):
            if m := ROUTE.match(c):
                host.gateway = m.group(1)
            elif m := ARP.match(c):
                macs[host.name] = m.group(1)
            else:
                host.commands.append(c)
        f.hosts.append(host)
    return macs


def _switches(r: _Reader, f: Fabric, switches: dict, ignored) -> None:
    for name, s in switches.items():
        r.fields(s, f"switch {name}", "", "", ignored)
        f.switches.append(Switch(str(name)))


def _end(text: str) -> tuple[str, int | None]:
    """ "s1-p3" is port 3 of s1, "h1" a host."""
    m = re.fullmatch(r"(.+)-p([0-9]{1,9})", text)
    return (m.group(1), int(m.group(2))) if m else (text, None)


def _tutorials(path: str, data: dict) -> Fabric:
    """topology.json of the P4 tutorials."""
    r, f = _Reader(path), Fabric(os.path.basename(path))
    r.fields(data, "the file", "hosts switches links")
    macs = _hosts(r, f, r.value(data, "hosts", "the file", dict, {}), "ip mac commands")
    _switches(r, f, r.value(data, "switches", "the file", dict, {}), P4APP_SWITCH)
    for i, x in enumerate(r.list(data, "links", list)):
        where = f"links[{i}]"
        if not 2 <= len(x) <= 4 or not all(isinstance(e, str) for e in x[:2]):
            r.fail(
                f"{where}: {_short(x)} is not of the form [NODE, NODE, latency, bandwidth], with nodes as h1 or s1-p1"
            )
            continue
        delay, bw = (x + [None, None])[2:4]
        f.links.append(Link(*_end(x[0]), *_end(x[1]), _shape(r, where, bw, delay, None)))
    _gateway_macs(f, macs)
    return r.done(f)


def _gateway_macs(f: Fabric, macs: dict[str, str]) -> None:
    for host, mac in macs.items():
        for s in f.switches:
            if s.name == f.tor(host):
                s.mac = s.mac or mac


def _p4app(path: str, data: dict) -> Fabric:
    """p4app.json of p4-utils. Ports count from 1 in the order of links."""
    r, f = _Reader(path), Fabric(os.path.basename(path))
    r.fields(data, "the file", "topology", "", P4APP)
    t = r.fields(
        r.value(data, "topology", "the file", dict, {}),
        "topology",
        "links hosts switches",
        "assignment_strategy default",
        ("auto_arp_tables", "auto_gw_arp"),
    )
    macs = _hosts(r, f, r.value(t, "hosts", "topology", dict, {}), "ip mac gw defaultRoute commands", ("scheduler",))
    _switches(r, f, r.value(t, "switches", "topology", dict, {}), P4APP_SWITCH)
    shaping = "bw delay loss"
    default = r.fields(
        t.get("default", {}), "topology.default", "", shaping, [*UNUSED_LINK, "auto_arp_tables", "auto_gw_arp"]
    )
    for i, x in enumerate(r.list(t, "links", list)):
        where = f"links[{i}]"
        if not 2 <= len(x) <= 3 or not all(isinstance(e, str) for e in x[:2]):
            r.fail(f"{where}: {_short(x)} is not of the form [NODE, NODE, {{options}}]")
            continue
        o = r.fields(x[2] if len(x) > 2 else {}, where, "", f"port1 port2 addr1 addr2 {shaping}", UNUSED_LINK)
        r.ignored |= {k for k in ("addr1", "addr2") if k in o}
        shape = _shape(r, where, *(o.get(k, default.get(k)) for k in shaping.split()))
        ports = [r.value(o, k, where, int) for k in ("port1", "port2")]
        f.links.append(Link(x[0], ports[0], x[1], ports[1], shape))
    _gateway_macs(f, macs)
    _assign(r, f, t.get("assignment_strategy", "l2"))
    return r.done(f)


def _assign(r: _Reader, f: Fabric, strategy: str) -> None:
    """Addresses as p4-utils gives them: switches route, so l2 is for one switch only."""
    racks = [s.name for s in f.switches if f.at(s.name)]
    if strategy not in ("l2", "l3", "mixed", "manual"):
        r.fail(f"topology: assignment_strategy {_short(strategy)}: there are l2, l3, mixed and manual")
    elif strategy == "l2" and len(racks) > 1 and not all(h.address for h in f.hosts):
        r.fail(
            f"topology: assignment_strategy l2 puts the hosts at {', '.join(racks)} into one subnet, "
            "and switches route here: use mixed, l3 or manual"
        )
    elif strategy == "manual":
        r.faults += [f"host {h.name}: no ip, and assignment_strategy is manual" for h in f.hosts if not h.address]
    else:
        for s, name in enumerate((s.name for s in f.switches), 1):
            for i, h in enumerate(f.at(name), 1):
                if not h.address and strategy == "l3":
                    h.address, h.length, h.gateway = f"10.{s}.{i}.2", 24, h.gateway or f"10.{s}.{i}.1"
                elif not h.address and strategy == "mixed":
                    h.address, h.length, h.gateway = f"10.0.{s}.{i}", 24, h.gateway or f"10.0.{s}.254"
                elif not h.address:
                    h.address, h.length, h.gateway = f"10.0.0.{i}", 16, h.gateway or "10.0.255.254"
