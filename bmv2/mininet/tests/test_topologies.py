"""What topologies say, in which format whatever, and what is wrong with them."""

import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from mininet.cli import CLI

from mcmininet import capacity, config, formats
from mcmininet.fabric import COMMANDS, Fabric, Host, Link, Switch, TopologyError
from mcmininet.multicast import choose, expected, once
from mcmininet.shipped import SHIPPED

TOP = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../.."))

OWN = {
    "switches": [
        {"name": "s1", "prefixes": ["10.1.0.0/24"]},
        {"name": "s2", "address": "10.255.0.2", "programmable": False},
    ],
    "hosts": [{"name": "h1", "address": "10.1.0.7"}, {"name": "h2", "mac": "02:00:00:00:01:0b"}],
    "links": [
        {"a": {"node": "h1"}, "b": {"node": "s1", "port": 3}},
        {"a": {"node": "s2", "port": 1}, "b": {"node": "h2"}},
        {"a": {"node": "s1"}, "b": {"node": "s2"}},
    ],
}

TUTORIAL = {
    "hosts": {
        "h1": {
            "ip": "10.0.1.1/24",
            "mac": "08:00:00:00:01:11",
            "commands": [
                "route add default gw 10.0.1.10 dev eth0",
                "arp -i eth0 -s 10.0.1.10 08:00:00:00:01:00",
                "echo hello",
            ],
        },
        "h2": {"ip": "10.0.2.2/24", "commands": ["route add default gw 10.0.2.20 dev eth0"]},
    },
    "switches": {"s1": {"runtime_json": "s1-runtime.json"}, "s2": {}},
    "links": [["h1", "s1-p1"], ["h2", "s2-p1"], ["s1-p2", "s2-p4", "5", 10]],
}

P4APP = {
    "program": "main.p4",
    "switch": "simple_switch",
    "switch_node": {"object_name": "P4RuntimeSwitch"},
    "topology": {
        "assignment_strategy": "l3",
        "links": [["h1", "s1"], ["h2", "s2"], ["s1", "s2", {"port1": 5, "delay": 3, "weight": 2}]],
        "hosts": {"h1": {}, "h2": {"ip": "10.9.9.9/24", "gw": "10.9.9.1"}},
        "switches": {"s1": {"cli_input": "s1.txt"}, "s2": {}},
    },
}


def parse(data, name="f.json") -> Fabric:
    return formats.parse(name, data if isinstance(data, str) else json.dumps(data))


def edited(data, edit):
    data = copy.deepcopy(data)
    edit(data)
    return data


class Formats(unittest.TestCase):
    def faults(self, data, *words, name="f.json"):
        with self.assertRaises(TopologyError) as e:
            parse(data, name)
        for w in words:
            self.assertIn(w, str(e.exception))
        self.assertTrue(all(line.startswith(name + ": ") for line in str(e.exception).splitlines()))

    def test_own(self):
        f = parse(OWN)
        self.assertEqual(
            [(s.name, s.programmable, s.address, s.prefixes) for s in f.switches],
            [("s1", True, "198.19.0.1", ["10.1.0.0/24"]), ("s2", False, "10.255.0.2", ["10.2.0.0/24"])],
        )
        self.assertEqual(
            [(h.address, h.length, h.gateway) for h in f.hosts],
            [("10.1.0.7", 24, "10.1.0.1"), ("10.2.0.11", 24, "10.2.0.1")],
        )
        self.assertEqual([(x.a_port, x.b_port) for x in f.links], [(0, 3), (1, 0), (4, 2)])
        text = "switches: [{name: s1}]\nhosts: [{name: a}, {name: b}]\nlinks:\n"
        text += "- {a: {node: a}, b: {node: s1}}\n- {a: {node: b}, b: {node: s1}}\n"
        self.assertEqual([p for p, _ in parse(text, "f.yaml").ports("s1")], [1, 2])
        text = text.replace("node: s1}", "node: s1, port: 509}", 1)
        self.assertEqual([p for p, _ in parse(text, "f.yaml").ports("s1")], [1, 509])

        f = parse(edited(OWN, lambda d: d["switches"][0].update(prefixes=["10.1.0.0/255.255.255.0"])))
        self.assertEqual(f.switch("s1").prefixes, ["10.1.0.0/24"])

    def test_large(self):
        """The work does not grow with the cube of a fabric's size. There are no more racks than prefixes."""

        def ring(racks: int) -> dict:
            return {
                "switches": [{"name": f"s{i}"} for i in range(racks)],
                "hosts": [{"name": f"h{i}"} for i in range(racks)],
                "links": [{"a": {"node": f"s{i}"}, "b": {"node": f"h{i}"}} for i in range(racks)]
                + [{"a": {"node": f"s{i}"}, "b": {"node": f"s{(i + 1) % racks}"}} for i in range(racks)],
            }

        def steps(racks: int) -> int:
            """How many lines reading a ring takes."""
            n = 0

            def count(_frame, event, _arg):
                nonlocal n
                n += event == "line"
                return count

            sys.settrace(count)
            try:
                parse(ring(racks))
            finally:
                sys.settrace(None)
            return n

        self.assertLess(steps(80), 6 * steps(40))
        self.faults(ring(256), "switch s255: rack 256, and prefixes are chosen for 255")

    def test_tutorials(self):
        f = parse(TUTORIAL)
        self.assertEqual(
            [(h.address, h.gateway, h.commands) for h in f.hosts],
            [("10.0.1.1", "10.0.1.10", ["echo hello"]), ("10.0.2.2", "10.0.2.20", [])],
        )
        self.assertEqual(f.switch("s1").mac, "08:00:00:00:01:00")
        self.assertEqual(f.switch("s1").gateways, ["10.0.1.10"])
        self.assertEqual(f.links[2], Link("s1", 2, "s2", 4, {"bw": 10, "delay": "5ms"}))
        self.assertIn("runtime_json", f.notes[0])

    def test_p4app(self):
        f = parse(P4APP)
        self.assertEqual(
            [(h.address, h.length, h.gateway) for h in f.hosts],
            [("10.1.1.2", 24, "10.1.1.1"), ("10.9.9.9", 24, "10.9.9.1")],
        )
        self.assertEqual(f.links[2], Link("s1", 5, "s2", 2, {"delay": "3ms"}))
        self.assertIn("program", f.notes[0])
        mixed = edited(P4APP, lambda d: d["topology"].update(assignment_strategy="mixed"))
        self.assertEqual(
            [(h.address, h.gateway) for h in parse(mixed).hosts], [("10.0.1.1", "10.0.1.254"), ("10.9.9.9", "10.9.9.1")]
        )
        one = {
            "topology": {"links": [["h1", "s1"], ["h2", "s1"]], "hosts": {"h1": {}, "h2": {}}, "switches": {"s1": {}}}
        }
        self.assertEqual([(h.address, h.length) for h in parse(one).hosts], [("10.0.0.1", 16), ("10.0.0.2", 16)])

    def test_faults(self):
        for base, edit, *words in (
            (
                OWN,
                lambda d: d["switches"][0].update(color="red"),
                "switches[0]",
                "unknown key 'color'",
                "programmable",
            ),
            (OWN, lambda d: d.update(nodes=[]), "unknown key 'nodes'"),
            (
                OWN,
                lambda d: d["links"][2].update(a={"node": "s1", "port": 3}),
                "port 3 of switch s1 is used twice",
                "links[0]",
            ),
            (OWN, lambda d: d["links"][0]["b"].update(port=510), "ports are 1 to 509"),
            (OWN, lambda d: d["links"][0]["b"].update(port="3"), "links[0].b: port: '3', and not of type int"),
            (OWN, lambda d: d["links"][0]["b"].update(port=True), "not of type int"),
            (OWN, lambda d: d["links"][0]["b"].update(node="s9"), "no switch or host 's9'"),
            (
                OWN,
                lambda d: d["links"][2].update(b={"node": "h2"}),
                "host h2 has a link already",
            ),
            (OWN, lambda d: d["links"].pop(2), "no links lead from s1 to s2"),
            (OWN, lambda d: d["links"].pop(0), "host h1: no link leads to it"),
            (OWN, lambda d: d["links"][0]["a"].update(port=2), "hosts have one interface"),
            (OWN, lambda d: d["hosts"].append({"name": "s1"}), "there is a switch of that name"),
            (OWN, lambda d: d["hosts"][0].update(address="10.3.0.1"), "none of the prefixes of s1"),
            (OWN, lambda d: d["hosts"][0].update(address="10.1.0.300"), "not an IPv4 address"),
            (OWN, lambda d: d["hosts"][0].update(mac="02"), "no MAC address"),
            # What switchctl plan refuses.
            (OWN, lambda d: d["hosts"][0].update(mac="03:00:00:00:00:01"), "host h1: 03:00:00:00:00:01 is not the MAC"),
            (OWN, lambda d: d["switches"][1].update(mac="00:00:00:00:00:00"), "not the MAC address of one station"),
            (OWN, lambda d: d["hosts"][0].update(mac="02:00:00:00:01:0B"), "is the MAC address of h1"),
            (OWN, lambda d: d["hosts"].append({"name": "sh"}), "host sh: Mininet's prompt has a command of that name"),
            (OWN, lambda d: d["switches"][0].update(prefixes=["198.18.4.0/22"]), "198.18.4.0/22: 198.18.0.0/16 is Mininet"),
            (OWN, lambda d: d["switches"][1].update(address="198.18.0.2"), "s2: 198.18.0.2: 198.18.0.0/16 is Mininet"),
            (OWN, lambda d: d["switches"][1].update(address="169.254.0.2"), "169.254.0.2 cannot be routed to"),
            (OWN, lambda d: d["hosts"][1].update(address="127.0.0.9"), "host h2: 127.0.0.9 cannot be routed to"),
            (OWN, lambda d: d["hosts"][0].update(address="10.1.0.255"), "h1: 10.1.0.255 is the network or broadcast"),
            (OWN, lambda d: d["hosts"][0].update(address="10.1.0.0"), "h1: 10.1.0.0 is the network or broadcast"),
            (
                OWN,
                lambda d: d["switches"][0].update(prefixes=["10.2.0.0/16", "10.1.0.0/24"]),
                "10.2.0.0/24",
                "subnets are of one each",
            ),
            (OWN, lambda d: d["switches"][0].update(prefixes=["10.1.0.1/24"]), "host bits"),
            (OWN, lambda d: d["switches"][0].update(name="a b"), "letters, digits"),
            (
                OWN,
                lambda d: (d["switches"][0].update(prefixes=["10.1.0.0/29"]), d["hosts"][0].pop("address")),
                "host h1: 10.1.0.0/29 of s1 has no address left for it",
            ),
            (OWN, lambda d: d["switches"][0].update(prefixes=["10.1.0.7/32"]), "host h1: hosts have all addresses"),
            (
                TUTORIAL,
                lambda d: (d["switches"].update(muchtoolong={}), d["links"].append(["s1-p9", "muchtoolong-p1"])),
                "more than 15 characters",
            ),
            (
                OWN,
                lambda d: (d["hosts"][0].update(name="muchtoolong"), d["links"][0]["a"].update(node="muchtoolong")),
                "host muchtoolong",
                "more than 15 characters",
            ),
            (OWN, lambda d: d.update(switches=[], links=[]), "no switches"),
            (OWN, lambda d: d.update(hosts=7), "hosts: 7, and not a list"),
            (TUTORIAL, lambda d: d["hosts"]["h1"].update(ipv4="1"), "host h1: unknown key 'ipv4'"),
            (TUTORIAL, lambda d: d["links"].append(["h1"]), "links[3]"),
            (TUTORIAL, lambda d: d["links"].append(["s1-p1", "s2-p2"]), "port 1 of switch s1 is used twice"),
            (TUTORIAL, lambda d: d["links"][2].__setitem__(2, "soon"), "no time such as 5ms"),
            (TUTORIAL, lambda d: d["links"][2].__setitem__(3, "fast"), "no number of Mbit/s"),
            (TUTORIAL, lambda d: d["links"][2].__setitem__(3, 1001), "bw: 1001", "1000 Mbit/s at most"),
            (TUTORIAL, lambda d: d["links"][2].__setitem__(3, float("nan")), "no number of Mbit/s"),
            (TUTORIAL, lambda d: d["links"].append(["s1-p" + "1" * 5000, "s2-p9"]), "no switch or host"),
            (TUTORIAL, lambda d: d["hosts"]["h1"].update(ip="10.0.1.1/x"), "10.0.1.1/24"),
            (TUTORIAL, lambda d: d["hosts"]["h1"].update(ip="10.0.1.1/" + "1" * 5000), "10.0.1.1/24"),
            (P4APP, lambda d: d.update(programm="x"), "unknown key 'programm'"),
            (P4APP, lambda d: d["topology"].update(routers={}), "unknown key 'routers'"),
            (P4APP, lambda d: d["topology"].update(assignment_strategy="l4"), "there are l2, l3, mixed and manual"),
            (P4APP, lambda d: d["topology"].update(assignment_strategy="l2"), "switches route here"),
            (P4APP, lambda d: d["topology"].update(assignment_strategy="manual"), "host h1: no ip"),
            (P4APP, lambda d: d["topology"]["links"][2][2].update(speed=1), "unknown key 'speed'"),
            (P4APP, lambda d: d["topology"]["links"][2][2].update(loss=101), "loss: 101", "100 percent at most"),
        ):
            with self.subTest(words=words):
                self.faults(edited(base, edit), *words)

    def test_commands(self):
        """All commands of the prompt are names that no node may have."""
        self.assertEqual({c[3:] for c in dir(CLI) if c.startswith("do_")} - COMMANDS, set())

    def test_lines(self):
        """Faults of the project's own format are told with their lines."""
        text = "switches:\n- {name: s1, color: red}\n- {name: s2}\nhosts:\n- {name: a}\n- {name: b}\nlinks:\n"
        text += "- {a: {node: a}, b: {node: s1, port: x}}\n"
        self.faults(text, "f.yaml: line 2: switches[0]: unknown key 'color'", "line 8: links[0].b: port: 'x'", name="f.yaml")
        text = text.replace(", color: red", "").replace("x}", "510}")
        self.faults(text, "f.yaml: line 8: links[0]: port 510", "line 6: host b: no link", name="f.yaml")

    def test_all_kinds(self):
        """Faults of all kinds are told at once, and none that only follows from another."""
        text = (
            "switches:\n- {name: s1, color: red, prefixes: [10.1.0.0/24]}\n- {name: s2, prefixes: [10.1.0.0/16]}\n"
            "- {name: s 3}\nhosts:\n- {name: a, address: 10.1.0.300}\n- {name: b, mac: '02'}\n- {name: b, mac: '02'}\n"
            "links:\n- {a: {node: a}, b: {node: s1, port: x}}\n- {a: {node: b}, b: {node: s1, port: 510}}\nlinks:\n"
            "- {a: {node: a}, b: {node: s1, port: x}}\n- {a: {node: b}, b: {node: s1, port: 510}}\n- {a: {node: s9}, b: {node: s1}}\n"
        )
        with self.assertRaises(TopologyError) as e:
            parse(text, "f.yaml")
        said = str(e.exception).splitlines()
        for words in (
            "line 12: key 'links' is there twice",
            "line 2: switches[0]: unknown key 'color'; ",
            "line 4: switch 's 3': a name has",
            "line 8: host b: there is a host of that name",
            "line 8: host b: '02' is no MAC address",
            "line 13: links[0].b: port: 'x', and not of type int",
            "line 14: links[1]: port 510",
            "line 15: links[2]: there is no switch or host 's9'",
            "line 3: switch s2: prefix 10.1.0.0/16: s1 has 10.1.0.0/24",
            "line 6: host a: '10.1.0.300' is not an IPv4 address",
        ):
            self.assertTrue(any(words in line for line in said), f"{words!r} is not in {said}")
        self.assertNotIn("no links lead", str(e.exception))

    def test_not_even_that(self):
        self.faults("{", "no JSON")
        self.faults("[" * 100_000, "no JSON")
        self.faults("[1]", "not a mapping")
        self.faults('{"hosts": {}, "hosts": {}}', "'hosts' is there twice")
        self.faults("a: [", "no YAML", name="f.yaml")
        self.faults("hosts: []\nhosts: []\n", "line 2", "twice", name="f.yaml")
        self.faults("? [a]\n: 1\n", "YAML", name="f.yaml")
        # What other programs do not take, also as few lines that mean very much, and numbers that Python does not write.
        self.faults("a: &a [1]\nb: *a\n", "line 2: aliases are not supported: write *a out", name="f.yaml")
        laughs = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40))
        self.faults(laughs + "switches: *a39\nhosts: []\nlinks: *a39\n", "line 2: aliases", name="f.yaml")
        port = "switches: [{name: s}]\nhosts: []\nlinks: [{a: {node: s, port: 0x" + "f" * 5000 + "}}]\n"
        self.faults(port, "links[0].a: port: the number is too large", name="f.yaml")
        self.faults("switches: 0x" + "f" * 5000 + "\nhosts: []\nlinks: []\n", "switches: a number", name="f.yaml")
        with self.assertRaises(TopologyError):
            formats.load("/nonexistent")

    def test_whatever(self):
        """Whatever a file says, it is a topology or its faults are told."""
        rng, good = random.Random(1), 0
        for _ in range(3000):
            data = copy.deepcopy(rng.choice([OWN, TUTORIAL, P4APP]))
            for _ in range(rng.randint(0, 3)):
                mutate(rng, data)
            try:
                parse(data)
                good += 1
            except TopologyError as e:
                self.assertTrue(e.faults)
        self.assertGreater(good, 100)


def mutate(rng, data):
    """Alters something somewhere in it."""
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(data[key], dict | list) and data[key] and rng.random() < 0.8:
            data = data[key]
            continue
        if rng.random() < 0.3:
            del data[key]
        else:
            data[key] = rng.choice(
                [None, True, -1, 0, 1, 1 << 70, 0.5, "", "h1", "s1-p1", "10.0.0.0/8", "x/y", [], {}, [1], {"a": 1}]
            )
        return


class Shipped(unittest.TestCase):
    def test_sizes(self):
        for name, switches, hosts, links in (
            ("rack", 1, 4, 4),
            ("figure3", 5, 8, 24),
            ("figure3-full", 5, 8, 24),
            ("fattree", 20, 16, 48),
        ):
            f = SHIPPED[name]().complete()
            self.assertEqual((len(f.switches), len(f.hosts), len(f.links)), (switches, hosts, links), name)
        self.assertEqual([s.name for s in SHIPPED["figure3"]().switches if not s.programmable], ["core"])

    def test_copies(self):
        want = {
            ("A1", "torA"): 1,
            ("torB", "B1"): 1,
            ("torB", "B2"): 1,
            ("torC", "C1"): 1,
            ("core", "torB"): 1,
            ("core", "torC"): 1,
        }
        for name, uplink in (("figure3", 2), ("figure3-full", 1)):
            f = SHIPPED[name]().complete()
            self.assertEqual(choose(f), ("A1", ["B1", "B2", "C1"]))
            self.assertEqual(expected(f), want | {("torA", "core"): uplink})

    def test_bytes(self):
        # One packet: Ethernet 14, IP 20, UDP 8, BTH 12, RETH 16, a byte and 3 of padding, ICRC 4.
        self.assertEqual(once([1], 1024, 16), 78)
        self.assertEqual(once([1024, 1025], 1024, 0), 3 * 58 + 1024 + 1028)

    def test_hellos(self):
        """Many switches on few processors send fewer hellos."""
        for name, processors, want in (("rack", 1, 50), ("figure3", 1, 100), ("fattree", 2, 100), ("fattree", 6, 50)):
            f = SHIPPED[name]().complete()
            with self.subTest(name=name, processors=processors):
                with unittest.mock.patch("os.sched_getaffinity", return_value=set(range(processors))):
                    self.assertEqual(capacity.hello(f, "softswitch", processors), want)
                    self.assertEqual("hello: " in config.agent(f, f.switches[0].name), want != capacity.HELLO)

    def test_lacking(self):
        """What a machine lacks for a network is known before it is started, and how that was estimated."""
        rack, tree = SHIPPED["rack"]().complete(), SHIPPED["fattree"]().complete()
        self.assertEqual(capacity.lacking(rack, "bmv2", 1, 400), ("", ""))
        self.assertEqual(capacity.lacking(tree, "bmv2", 6, 8000), ("", ""))
        slow, impossible = capacity.lacking(tree, "bmv2", 2, 1000)
        self.assertIn("wants 6 processors, and here are 2", slow)
        self.assertIn("each 150 ms in place of 50", slow)
        self.assertIn("64 ends of links", slow)
        self.assertIn(f"takes {capacity.memory(tree)} MiB of memory, and 1000 are free", impossible)
        self.assertIn("20 switches", impossible)
        processors, free = capacity.here()
        self.assertEqual(processors, len(os.sched_getaffinity(0)))
        self.assertGreater(free, 0)

    def test_configurations(self):
        """The agents, cmd-daemon and switchctl read what is written for them."""
        go = os.environ.get("GO", "go")
        try:
            subprocess.run([go, "version"], check=True, capture_output=True)
        except OSError:
            self.skipTest("there is no Go")
        with tempfile.TemporaryDirectory() as d:
            subprocess.run([go, "build", "-o", d + "/", "./cmd/switchctl", "./cmd/cmd-daemon"], cwd=TOP, check=True)
            for name, make in SHIPPED.items():
                f = make().complete()
                lab = os.path.join(d, name)
                for args in config.lab(f, lab):
                    subprocess.run([f"{d}/cmd-daemon", *args], check=True, capture_output=True)
                with open(f"{lab}/fabric.yaml", "w", encoding="utf-8") as out:
                    out.write(config.topology(f))
                for s in (f.switches[0], f.switches[-1]):
                    with open(f"{lab}/{s.name}/agent.yaml", "w", encoding="utf-8") as out:
                        out.write(config.agent(f, s.name))
                    done = subprocess.run(
                        [f"{d}/switchctl", "agent", "--check", "--config", out.name], capture_output=True, text=True
                    )
                    self.assertEqual(done.returncode, 0, done.stderr)
                sender, receivers = choose(f)
                addresses = [f.host(r).address for r in receivers]
                plan = [
                    f"{d}/switchctl",
                    "plan",
                    "--topology",
                    f"{lab}/fabric.yaml",
                    "--source",
                    f.host(sender).address,
                ]
                done = subprocess.run([*plan, "--receivers", ",".join(addresses)], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                again = formats.load(f"{lab}/fabric.yaml")
                self.assertEqual([h.address for h in again.hosts], [h.address for h in f.hosts])

    def test_by_hand(self):
        f = Fabric(
            "mine", [Switch("s")], [Host("a"), Host("b")], [Link("a", 0, "s", None), Link("s", None, "b", 0)]
        ).complete()
        self.assertEqual(f.ports("s"), [(1, "a"), (2, "b")])
        self.assertEqual(config.management(f, "b"), "198.18.0.3")


if __name__ == "__main__":
    unittest.main()
