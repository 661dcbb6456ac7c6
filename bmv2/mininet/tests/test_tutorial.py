"""docs/tutorial.md: its commands are run, and say what is printed there."""

import contextlib
import os
import re
import select
import shlex
import signal
import subprocess
import tempfile
import time
import unittest
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

TOP = os.path.realpath(os.path.join(os.path.dirname(__file__), "../../.."))
TUTORIAL = os.path.join(TOP, "docs/tutorial.md")
PROMPT = "mininet> "
PATIENCE = 120  # seconds for an answer; that is long, as programs are built before the first
ELSEWHERE = ("apt-get", "git", "cd", "chown", "wireshark", "rm")  # are not run here


@dataclass
class Command:
    line: int  # of the file
    text: str
    says: list[str] = field(default_factory=list)  # "…" stands for lines, or for a part of one


@dataclass
class Session:
    line: int
    make: list[str]
    commands: list[Command] = field(default_factory=list)


def read(name: str) -> list[Session]:
    """The sessions of a tutorial. Every command is in one of its fenced blocks."""
    sessions, command, fenced = [], None, False
    with open(name, encoding="utf-8") as f:
        for number, text in enumerate(f.read().splitlines(), 1):
            if text.startswith("```"):
                fenced, command = not fenced, None
            elif fenced and text.startswith("$ "):
                words = [w for w in shlex.split(text[2:]) if w not in ("sudo", "env", "PATH=$PATH")]
                if words[0] == "make":
                    sessions.append(Session(number, words))
                elif words[0] not in ELSEWHERE:
                    raise ValueError(f"{name}:{number}: what is {text}?")
                command = None
            elif fenced and text.startswith(PROMPT):
                command = Command(number, text.removeprefix(PROMPT))
                sessions[-1].commands.append(command)
            elif fenced and command:
                command.says.append(text)
    return sessions


def same(text: str) -> str:
    """A line, or a part of one, without what is another in each run."""
    text = re.sub(r"\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b", "M", text)
    text = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "N", text)
    return " ".join(text.split())


def fits(says: list[str], said: str) -> bool:
    """Whether something was said as it is printed. What is between two lines that are but "…" may be
    anywhere: what happens at the same time is in another order each time."""
    lines = [x for x in map(same, said.splitlines()) if x and not re.fullmatch(r"\[N\] N", x)]  # jobs' numbers
    text = "".join(x + "\n" for x in lines)
    chunks = [""]  # of lines one behind the other
    for line in filter(None, says):
        if line == "…":
            chunks.append("")
        else:
            chunks[-1] += ".*".join(re.escape(same(part)) for part in line.split("…")) + r"\n"
    chunks[0] = r"\A" + chunks[0]
    chunks[-1] += r"\Z"
    return all(re.search("^" + c, text, re.MULTILINE) for c in chunks)


def waiting(command: str) -> str:
    """What is true when a command in the background is ready, as a command, or nothing."""
    words = command.split()
    if words[-1] != "&":
        return ""
    if "tshark" in words:
        return f"[ -s {words[words.index('-w') + 1]} ]"
    if words[1] == "hello":
        return "cmd-daemon status | grep -qw hello"
    if "serve" in words or "--serve" in words:
        return "cmd-daemon status | grep -qw " + ("bench" if "cmtime" in words else "mcbench")
    if "mcbench" in words:
        return "cmd-daemon groups | grep -q 'mcbench *switch'"
    return ""


class Prompt:
    """A session at Mininet's prompt, with a directory of its own as /tmp."""

    def __init__(self, make: list[str]):
        self.tmp = tempfile.TemporaryDirectory()
        self.popen = subprocess.Popen(
            make,
            cwd=TOP,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.until_prompt()

    def until_prompt(self) -> str:
        said, end = b"", time.monotonic() + PATIENCE
        while not said.endswith(PROMPT.encode()):
            if not select.select([self.popen.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError(f"no prompt after {PATIENCE} s, only: {said.decode()}")
            data = os.read(self.popen.stdout.fileno(), 1 << 16)
            if not data:
                raise AssertionError(f"it has ended, and said: {said.decode()}")
            said += data
        return said.decode().removesuffix(PROMPT)

    def __call__(self, command: str) -> str:
        command = command.replace("/tmp/", self.tmp.name + "/") + "\n"
        self.popen.stdin.write(command.encode())
        self.popen.stdin.flush()
        return self.until_prompt().removeprefix(command).replace(self.tmp.name + "/", "/tmp/")

    def wait_for(self, node: str, condition: str) -> None:
        """Waits until a command succeeds at a node."""
        loop = f"for i in $(seq 150); do {condition} && break; sleep 0.1; done; {condition} || echo never"
        if "never" in self(f"{node} {loop}"):
            raise AssertionError(f"at {node} this never becomes true: {condition}")

    def exit(self) -> int:
        self.popen.stdin.write(b"exit\n")
        self.popen.stdin.close()
        self.popen.stdout.read()
        return self.popen.wait(PATIENCE)

    def close(self) -> None:
        """Ends it, wherever it is."""
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)  # and the kernel ends what it has started
            self.popen.wait()
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.close()
        self.popen.stdout.close()
        self.tmp.cleanup()


def missing() -> str:
    """Why it cannot run here, or nothing."""
    if os.geteuid() != 0:
        return "it takes root"
    done = subprocess.run([os.path.join(TOP, "scripts/need"), "make", "tshark"], capture_output=True, text=True)
    return "tshark is missing: " + done.stderr.strip().splitlines()[-1] if done.returncode else ""


def has_bmv2() -> bool:
    """As the command finds it."""
    loader = SourceFileLoader("run", os.path.join(TOP, "bmv2/mininet/run"))
    run = module_from_spec(spec_from_loader("run", loader))
    loader.exec_module(run)
    return run.find_bmv2() is not None


class Tutorial(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        why = missing()
        if why and os.environ.get("MCRDMA_MUST_RUN") == "1":
            raise AssertionError(why)
        if why:
            raise unittest.SkipTest(why)

    def run_session(self, session: Session) -> dict[str, str]:
        """Runs all of it; returns what commands have said."""
        prompt, said = Prompt(session.make), {}
        self.addCleanup(prompt.close)
        for c in session.commands:
            where = f"{TUTORIAL}:{c.line}: {PROMPT}{c.text}\n"
            if c.text == "exit":
                self.assertEqual(prompt.exit(), 0, where)
                break
            answer = prompt(c.text)
            for _ in range(5):
                if "is not known" in answer or "not seen to leave" in answer:  # as the tutorial says
                    answer = prompt(c.text)
            said[c.text] = said.get(c.text, "") + answer
            if not fits(c.says, answer):
                self.fail(f"{where}It says:\n{answer}Printed is:\n" + "\n".join(c.says))
            if condition := waiting(c.text):
                prompt.wait_for(c.text.split()[0], condition)
        return said

    def test_rack(self):
        rack = read(TUTORIAL)[0]
        self.assertEqual(rack.make, ["make", "mininet"])
        self.assertGreater(len(rack.commands), 40)
        try:
            self.check_rack(self.run_session(rack))
        except AssertionError:  # on a busy machine packets are sent again, and are more than are printed
            self.check_rack(self.run_session(rack))

    def check_rack(self, said: dict[str, str]) -> None:
        """The facts that the page points out."""

        def of(*words: str) -> str:
            """What the one command with these words has said."""
            (answer,) = [a for c, a in said.items() if all(w in c for w in words)]
            return answer

        # The WRITE as h1 sent it, and its copies.
        requests, acks = self.table(of("ip.ttl")), self.table(of("tor fields", "infiniband.aeth"))
        transport = [*zip(*self.table(of("reth.va")))]
        self.assertEqual([r[0] for r in requests], ["tor-eth1", "tor-eth2", "tor-eth3", "tor-eth4"])
        self.assertEqual([r[4] for r in requests], ["10.1.0.12", "10.1.0.12", "10.1.0.13", "10.1.0.14"])
        self.assertEqual([r[5] for r in requests], ["64", "63", "63", "63"])
        self.assertEqual({r[6] for r in requests}, {r[5] for r in acks})  # PSN
        self.assertEqual(len({r[6] for r in requests}), 1)
        self.assertEqual(len(set(transport[1])), 4, transport)  # destination QPN
        self.assertEqual(len(set(zip(transport[5], transport[6], strict=True))), 4, transport)  # identification, source port
        for values in (transport[2], transport[4]):  # VA, ICRC
            self.assertEqual(len(set(values)), 1, transport)
        self.assertNotIn(transport[3][0], transport[3][1:])  # rkeys of two hosts may be the same
        # Three ACKs came to the switch, one left it.
        self.assertEqual([r[0] for r in acks], ["tor-eth1", "tor-eth2", "tor-eth3", "tor-eth4"])
        self.assertEqual({r[4] for r in acks[1:]}, {transport[1][0]})  # the MC_ID
        self.assertNotEqual(acks[0][4], transport[1][0])

        capture = of("switchctl capture")
        for receiver in ("10.1.0.12", "10.1.0.13", "10.1.0.14"):
            self.assertIn(f"rewritten for receiver {receiver}: ", capture)
        self.assertIn("the sender takes it for the answer of all 3", capture)

        multicast, fan_out = map(float, re.findall(r"(\S+) times", of("awk")))
        self.assertLess(multicast, 1.5)
        self.assertGreater(fan_out, 2.5)
        self.assertIn("host=h4", of("taken out"))

    def table(self, said: str) -> list[list[str]]:
        """The fields of four packets, as tshark has shown them."""
        rows = [x.split("\t") for x in said.splitlines() if x]
        self.assertEqual(len(rows), 4, said)
        return rows

    def test_others(self):
        """On bmv2, if it is there, and with more switches."""
        sessions = read(TUTORIAL)[1:]
        self.assertEqual([s.make[2] for s in sessions], ["SWITCH=bmv2", "TOPO=figure3"])
        for session in sessions:
            if "SWITCH=bmv2" in session.make and not has_bmv2():
                continue
            with self.subTest(" ".join(session.make)):
                self.assertGreater(len(session.commands), 3)
                self.run_session(session)

    def test_fits(self):
        """What is not the same is found."""
        for says, said, want in (
            (["a 1 0x1f", "b"], "a  2   0x3\r\n[1] 77\nb\n", True),
            (["a", "…", "c"], "a\nb\nb\nc\n", True),
            (["a … c"], "a b c\n", True),
            (["a", "…", "b", "c", "…", "d", "…"], "a\nd\nx\nb\nc\nx\n", True),
            (["a", "…", "b", "c", "…"], "a\nb\nx\nc\n", False),
            ([], "\n", True),
            ([], "bash: a: command not found\n", False),
            (["a"], "a\nb\n", False),
            (["a", "b"], "b\na\n", False),
            (["02:00:00:00:00:01 x"], "02:00:00:00:00:0f x\n", True),
        ):
            self.assertEqual(fits(says, said), want, (says, said))


if __name__ == "__main__":
    unittest.main()
