"""The command from outside: what it says to bad input, and what it leaves."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
RUN = os.path.join(HERE, "../run")
MARK = "MCRDMA_MININET_TEST"
INNER = "SIGKILL within"  # the process that runs the network, and not the one that watches it
INTERFACES = ("tor", "mgmt", "h1", "m1")  # as those of topology rack begin


def run(*args, **env):
    return subprocess.run(
        [RUN, *args], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, env={**os.environ, **env}
    )


class BadInput(unittest.TestCase):
    def test_topologies(self):
        with tempfile.TemporaryDirectory() as d:
            name = os.path.join(d, "topology.json")
            with open(name, "w", encoding="utf-8") as f:
                f.write(
                    '{"hosts": {"h1": {}, "h2": {"color": 1}}, "switches": {"s1": {}},'
                    ' "links": [["h1", "s1-p1"], ["h2", "s1-p1"]]}'
                )
            done = run(name)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(done.stderr.count(name + ": "), 2)
            self.assertIn("unknown key 'color'", done.stderr)
            self.assertIn("port 1 of switch s1 is used twice", done.stderr)
            for ending, content, fault in (
                ("json", b"{", "no JSON"),
                ("json", b"\xff\xfe", "it cannot be read"),
                ("yaml", b"hosts: [", "no YAML"),
                ("yaml", b"hosts: []\nhosts: []\n", "line 2: key 'hosts' is there twice"),
            ):
                name = os.path.join(d, "broken." + ending)
                with open(name, "wb") as f:
                    f.write(content)
                for args in ((name,), ("--check", name), ("--test", name)):
                    done = run(*args)
                    self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                    self.assertEqual(done.stderr.count("\n"), done.stderr.count(f"{name}: "), done.stderr)
                    self.assertIn(f"{name}: {fault}", done.stderr)
        done = run("nosuch")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no such file, and none of rack, figure3", done.stderr)

    def test_too_large(self):
        """A network that this machine has no memory for is refused at once, and one that is slow here is told."""
        with tempfile.TemporaryDirectory() as d:
            name = os.path.join(d, "large.json")
            switches = [f"s{i}" for i in range(1000)]
            links = [["h1", "s0-p1"], ["h2", "s0-p2"], *([f"{a}-p8", f"{b}-p9"] for a, b in zip(switches, switches[1:]))]
            with open(name, "w", encoding="utf-8") as f:
                json.dump({"hosts": {"h1": {}, "h2": {}}, "switches": dict.fromkeys(switches, {}), "links": links}, f)
            for args, status in (((name,), 1), (("--check", name), 0)):
                done = run(*args)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn("mininet: large.json on softswitch takes ", done.stderr)
                self.assertIn("note: large.json on softswitch wants 125 processors", done.stderr)

    def test_no_bmv2(self):
        with tempfile.TemporaryDirectory() as d:
            os.symlink("/bin/true", os.path.join(d, "true"))
            done = run("-s", "bmv2", SIMPLE_SWITCH_GRPC=os.path.join(d, "simple_switch_grpc"))
            self.assertEqual(done.returncode, 1)
            self.assertIn("simple_switch_grpc is missing", done.stderr)
            self.assertIn("p4lang-bmv2", done.stderr)

    def test_not_root(self):
        if os.geteuid() != 0:
            user = {}
        else:
            user = {"user": 65534}
        with tempfile.TemporaryDirectory() as d:
            os.chmod(d, 0o755)
            subprocess.run(
                ["cp", "-r", os.path.join(HERE, ".."), os.path.join(d, "mininet")], check=True
            )  # where that user may read
            command = [os.path.join(d, "mininet/run")]
            done = subprocess.run([*command, "rack"], capture_output=True, text=True, **user)
            self.assertEqual(done.returncode, 1)
            self.assertIn("not root", done.stderr)
            for must, status in (("", 0), ("1", 1)):
                done = subprocess.run(
                    [*command, "--test"],
                    capture_output=True,
                    text=True,
                    env={**os.environ, "MCRDMA_MUST_RUN": must},
                    **user,
                )
                self.assertEqual(done.returncode, status)
                self.assertIn("skipped: not root", done.stdout)


def marked(mark: str) -> dict[int, set[str]]:
    """Processes with that in their environment, and the namespaces that they are in."""
    found = {}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if mark.encode() in f.read():
                    found[int(pid)] = {os.readlink(f"/proc/{pid}/ns/{n}") for n in ("net", "pid", "mnt")}
        except OSError:
            continue
    return found


def first(pid: int) -> int:
    """The child of a process that has namespaces of its own."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return next(
            int(c) for c in f.read().split() if os.readlink(f"/proc/{c}/ns/net") != os.readlink(f"/proc/{pid}/ns/net")
        )


def namespaces() -> set[str]:
    """Those that any process is in."""
    found = set()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        for n in ("net", "pid", "mnt"):
            try:
                found.add(os.readlink(f"/proc/{pid}/ns/{n}"))
            except OSError:
                continue
    return found


class Complete(unittest.TestCase):
    def test_names_and_links(self):
        """A file of names and links only becomes one that has everything, which stays as it is."""
        with tempfile.TemporaryDirectory() as d:
            said, name = [], os.path.join(d, "mine.json")
            with open(name, "w", encoding="utf-8") as f:
                links = [{"a": {"node": h}, "b": {"node": "s"}} for h in ("h", "i")]
                json.dump({"switches": [{"name": "s"}], "hosts": [{"name": "h"}, {"name": "i"}], "links": links}, f)
            for name in (name, os.path.join(d, "full.yaml")):
                done = subprocess.run([RUN, "--complete", name], capture_output=True, text=True, timeout=300)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                said.append(done.stdout)
                with open(os.path.join(d, "full.yaml"), "w", encoding="utf-8") as f:
                    f.write(done.stdout)
        self.assertIn('{name: "h", address: 10.1.0.11,', said[0])
        self.assertIn('b: {node: "s", port: 1}', said[0])
        self.assertEqual(said[0], said[1])


@unittest.skipUnless(os.geteuid() == 0, "it takes root")
class Script(unittest.TestCase):
    def test_file(self):
        """Each line of a file is a command, also behind one that takes its time."""
        with tempfile.TemporaryFile() as script:
            script.write(
                b"h1 sleep 1; echo one-$((1+1))\nh2 echo two-$((2+2))\nh1 ping -c 1 h2\n"
                b"tor sh -c 'switchctl status && switchctl bgp && switchctl top --json >/dev/null && echo asked-$((3+3))'\n"
            )
            script.seek(0)
            done = subprocess.run(
                [RUN, "rack"], stdin=script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
            )
        self.assertEqual(done.returncode, 0, done.stdout)
        for said in (
            "mininet> h1 sleep 1; echo one-$((1+1))\none-2\n",
            "mininet> h2 echo two-$((2+2))\ntwo-4\n",
            "mininet> h1 ping -c 1 h2\n",
            "1 packets transmitted, 1 received",
            "asked-6\n",  # agents know programs that other programs start
        ):
            self.assertIn(said, done.stdout)


@unittest.skipUnless(os.geteuid() == 0, "it takes root")
class NothingLeft(unittest.TestCase):
    def start(self, *args, **env):
        """Starts it at a terminal of its own; returns its process, the terminal and a mark."""
        mark = f"{MARK}={os.getpid()}-{time.monotonic_ns()}"
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(RUN, [RUN, *args], {**os.environ, **env, MARK: mark.partition("=")[2]})
        self.addCleanup(os.close, terminal)
        self.rest = ""
        return pid, terminal, mark

    def read_until(self, terminal, words, seconds=300):  # programs may have to be built first
        said, end = self.rest, time.monotonic() + seconds
        while words not in said:
            if not select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
                self.fail(f"{words!r} is not in {said}")
            try:
                data = os.read(terminal, 4096).decode(errors="replace")
            except OSError:
                data = ""
            if not data:  # it has ended
                self.fail(f"{words!r} is not in {said}")
            said += data
        said, words, self.rest = said.partition(words)
        return said + words

    def gone(self, pid, terminal, mark, there, seconds=20):
        """Waits for the process, and for all that was there to be gone. Returns its status."""
        end, status = time.monotonic() + seconds, None
        while time.monotonic() < end:
            if select.select([terminal], [], [], 0.05)[0]:
                try:
                    os.read(terminal, 4096)
                except OSError:
                    pass
            if status is None:
                done, code = os.waitpid(pid, os.WNOHANG)
                status = os.waitstatus_to_exitcode(code) if done else None
            left = marked(mark)
            if status is not None and not left and not there & namespaces():
                self.assertEqual([i for i in os.listdir("/sys/class/net") if i.startswith(INTERFACES)], [])
                return status
        self.fail(f"after {seconds} s: status {status}, processes {left}, namespaces {there & namespaces()}")

    def belongings(self, mark):
        has = marked(mark)
        own = set().union(*has.values()) - {os.readlink(f"/proc/self/ns/{n}") for n in ("net", "pid", "mnt")}
        return has, own

    def test_signals(self):
        """At the prompt, and while it starts."""
        for words, signo, group, want in (
            ("mininet>", signal.SIGKILL, False, -9),
            ("mininet>", signal.SIGTERM, False, 143),
            ("mininet>", signal.SIGHUP, False, 129),
            ("mininet>", signal.SIGINT, False, 143),
            ("mininet>", INNER, False, 137),
            ("Starting daemons", signal.SIGINT, True, 130),
            ("Starting daemons", signal.SIGKILL, False, -9),
        ):
            with self.subTest(words=words, signal=signo):
                pid, terminal, mark = self.start("rack")
                self.read_until(terminal, words)
                has, own = self.belongings(mark)
                self.assertGreater(len(has), 5)  # five nodes at least
                self.assertGreater(len(own), 6)
                if group:
                    os.write(terminal, b"\x03")
                elif signo == INNER:
                    os.kill(first(pid), signal.SIGKILL)
                else:
                    os.kill(pid, signo)
                self.assertEqual(self.gone(pid, terminal, mark, own), want)

    def test_killed_without_terminal(self):
        """No terminal hangs up then: it is the death of its parent that ends the rest."""
        mark = f"{MARK}={time.monotonic_ns()}"
        env = {**os.environ, MARK: mark.partition("=")[2]}
        p = subprocess.Popen(
            [RUN, "rack"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env
        )
        self.addCleanup(p.stdin.close)
        self.addCleanup(p.stderr.close)
        self.rest = ""
        self.read_until(p.stderr.fileno(), "Starting CLI")
        _, own = self.belongings(mark)
        os.kill(p.pid, signal.SIGKILL)
        self.assertEqual(self.gone(p.pid, p.stderr.fileno(), mark, own), -9)
        p.returncode = -9  # it has been waited for

    def test_exit(self):
        pid, terminal, mark = self.start("rack")
        self.read_until(terminal, "mininet>")
        _, own = self.belongings(mark)
        # A Ctrl-C at the prompt ends nothing. Python's readline does not see one that comes just before it waits
        # for the terminal: then a person presses it again.
        for last in (False, False, True):
            os.write(terminal, b"\x03")
            try:
                self.read_until(terminal, "mininet>", 5)
                break
            except self.failureException:
                if last:
                    raise
        os.write(terminal, b"h1 ping -c1 h4\n")
        self.read_until(terminal, "1 received")
        self.read_until(terminal, "mininet>")  # until then, it is ping that reads
        os.write(terminal, b"exit\n")
        self.assertEqual(self.gone(pid, terminal, mark, own), 0)

    def test_two(self):
        """A second network of the same name has logs of its own, and leaves the first's alone."""
        first, terminal, mark = self.start("rack")
        said = self.read_until(terminal, "mininet>")
        logs = re.search(r"logs are in (\S+/logs/rack-softswitch)\.", said)
        self.assertTrue(logs, said)
        second, other, _ = self.start("rack")
        said = self.read_until(other, "mininet>")
        self.assertIn("/logs/rack-softswitch-2.", said)
        os.write(terminal, f"sh echo ended >>{logs[1]}/tor-agent.log; cat {logs[1]}/tor-agent.log\n".encode())
        self.assertIn("msg=", self.read_until(terminal, "\nended", 20))
        for pid, at in ((first, terminal), (second, other)):
            os.write(at, b"exit\n")
        self.gone(first, terminal, mark, set())
        self.gone(second, other, mark, set())

    def test_failed_start(self):
        """The switch's own words, and nothing left."""
        pid, terminal, mark = self.start("--option=--priority-queues=0", "rack")
        said = self.read_until(terminal, "a port has 1 to 8")
        self.assertIn("switch tor ended with status 2", said)
        self.assertEqual(self.gone(pid, terminal, mark, set()), 1)

    def test_failed_bmv2(self):
        """The same of bmv2, or of what is taken for it."""
        with tempfile.TemporaryDirectory() as d:
            os.chmod(d, 0o755)
            name = os.path.join(d, "simple_switch_grpc")
            with open(name, "w", encoding="utf-8") as f:
                f.write("#!/bin/sh\necho >&2 'bmv2 does not run'\nexit 3\n")
            os.chmod(name, 0o755)
            pid, terminal, mark = self.start("-s", "bmv2", "rack", SIMPLE_SWITCH_GRPC=name)
            said = self.read_until(terminal, "bmv2 does not run")
            self.assertIn("switch tor ended with status ", said)
            self.assertEqual(self.gone(pid, terminal, mark, set()), 1)


if __name__ == "__main__":
    unittest.main()
