"""A small P4Runtime client for tests.

Names instead of numbers (from the P4Info), integers instead of byte strings, one
call for each deed. Nothing is tried twice. What the switch refuses raises
Refused, with the canonical code and the switch's own words.
"""

from __future__ import annotations

import difflib
import queue
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grpc
from google.protobuf import text_format
from google.rpc import code_pb2, status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4
from p4.v1 import p4runtime_pb2_grpc

DEADLINE = 10.0  # s, for every call

# A match by field name: a number for exact, (value, prefix length) for LPM,
# (value, mask) for ternary, (low, high) for range.
Match = Mapping[str, "int | tuple[int, int]"]

# What matches everything must be left out of an entry (P4Runtime 1.4, 9.1.1).
DONT_CARE = {
    p4info_pb2.MatchField.LPM: lambda bits: (0, 0),
    p4info_pb2.MatchField.TERNARY: lambda bits: (0, 0),
    p4info_pb2.MatchField.RANGE: lambda bits: (0, (1 << bits) - 1),
}


class Refused(Exception):
    """The switch refused a request. `code` is the canonical code's name."""

    def __init__(self, deed: str, code: str, words: str):
        super().__init__(f"{deed}: {code}: {words}")
        self.code = code


class Count(NamedTuple):
    packets: int
    bytes: int


class PacketIn(NamedTuple):
    port: int
    reason: int
    frame: bytes


class Replica(NamedTuple):
    port: int
    instance: int


def encode(value: int, bits: int, what: str) -> bytes:
    """A number in P4Runtime's canonical form: the shortest byte string."""
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{what}: {value:#x} does not fit into {bits} bits")
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


class Info:
    """A P4Info, by name. An object may be called by its full name or its alias."""

    def __init__(self, path: Path):
        self.message = text_format.Parse(path.read_text(), p4info_pb2.P4Info())
        self.actions_by_id = {a.preamble.id: a for a in self.message.actions}

    def find(self, kind: str, name: str):
        objects = getattr(self.message, kind)
        for o in objects:
            if name in (o.preamble.name, o.preamble.alias):
                return o
        similar = _similar(name, (o.preamble.name for o in objects))
        raise KeyError(f"the P4Info has no {name!r} among its {kind}{similar}")

    @staticmethod
    def member(owner, members, name: str):
        for m in members:
            if m.name == name:
                return m
        raise KeyError(f"{owner.preamble.name} has no {name!r}{_similar(name, (m.name for m in members))}")

    def action(self, name: str, args: Mapping[str, int]) -> p4.Action:
        action = self.find("actions", name)
        missing = {p.name for p in action.params} - set(args)
        if missing:
            raise KeyError(f"{action.preamble.name} also needs {', '.join(sorted(missing))}")
        message = p4.Action(action_id=action.preamble.id)
        for key, value in args.items():
            p = self.member(action, action.params, key)
            message.params.add(param_id=p.id, value=encode(value, p.bitwidth, f"{action.preamble.name}.{key}"))
        return message

    def entry(self, table: str, match: Match, priority: int = 0) -> p4.TableEntry:
        t = self.find("tables", table)
        entry = p4.TableEntry(table_id=t.preamble.id, priority=priority)
        for key, value in match.items():
            f = self.member(t, t.match_fields, key)
            first, second = value if isinstance(value, tuple) else (value, 0)
            if value == DONT_CARE.get(f.match_type, lambda _: None)(f.bitwidth):
                continue
            what = f"{t.preamble.name}.{key}"
            m = entry.match.add(field_id=f.id)
            code = encode(first, f.bitwidth, what)
            if f.match_type == f.EXACT:
                m.exact.value = code
            elif f.match_type == f.LPM:
                m.lpm.value, m.lpm.prefix_len = code, second
            elif f.match_type == f.TERNARY:
                m.ternary.value, m.ternary.mask = code, encode(second, f.bitwidth, what)
            elif f.match_type == f.RANGE:
                m.range.low, m.range.high = code, encode(second, f.bitwidth, what)
            else:
                raise ValueError(f"{what}: a kind of match that this client does not know")
        return entry


def _similar(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.4)
    return f"; there is {close[0]!r}" if close else ""


@dataclass(frozen=True)
class Group:
    """A group of an action profile: member ids with weights."""

    id: int
    members: Mapping[int, int]


class Switch:
    """A connection to a switch, as its primary."""

    def __init__(self, address: str, device_id: int, info: Info, election_id: int = 1):
        self.info = info
        self.device_id = device_id
        self.election = p4.Uint128(low=election_id)
        self.packet_ins: queue.Queue[PacketIn] = queue.Queue()
        self.digests: queue.Queue[p4.DigestList] = queue.Queue()
        self._arbitration: queue.Queue[p4.MasterArbitrationUpdate | grpc.RpcError] = queue.Queue()
        self._outgoing: queue.Queue[p4.StreamMessageRequest | None] = queue.Queue()
        ids = {m.name: m.id for m in info.find("controller_packet_metadata", "packet_in").metadata}
        self._port_id, self._reason_id = ids["ingress_port"], ids["reason"]
        self._channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._stream = self._stub.StreamChannel(iter(self._outgoing.get, None))
        threading.Thread(target=self._listen, daemon=True).start()
        self._outgoing.put(
            p4.StreamMessageRequest(
                arbitration=p4.MasterArbitrationUpdate(device_id=device_id, election_id=self.election)
            )
        )
        try:
            answer = self._arbitration.get(timeout=DEADLINE)
        except queue.Empty:
            raise TimeoutError(f"{address}: no answer to the arbitration within {DEADLINE} s") from None
        if isinstance(answer, grpc.RpcError):
            raise Refused(f"{address}: arbitration", answer.code().name, answer.details())
        if answer.status.code != code_pb2.OK:
            name = code_pb2.Code.Name(answer.status.code)
            raise Refused(f"{address}: arbitration", name, answer.status.message or "not primary")

    def close(self) -> None:
        self._outgoing.put(None)
        self._channel.close()

    def _listen(self) -> None:
        try:
            for message in self._stream:
                kind = message.WhichOneof("update")
                if kind == "arbitration":
                    self._arbitration.put(message.arbitration)
                elif kind == "packet":
                    by_id = {m.metadata_id: int.from_bytes(m.value, "big") for m in message.packet.metadata}
                    port, reason = by_id[self._port_id], by_id[self._reason_id]
                    self.packet_ins.put(PacketIn(port, reason, message.packet.payload))
                elif kind == "digest":
                    self.digests.put(message.digest)
        except grpc.RpcError as e:
            self._arbitration.put(e)

    # The pipeline.

    def set_pipeline(self, device_config: bytes) -> None:
        request = p4.SetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            election_id=self.election,
            action=p4.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        )
        request.config.p4info.CopyFrom(self.info.message)
        request.config.p4_device_config = device_config
        self._call(self._stub.SetForwardingPipelineConfig, request, "set pipeline")

    # Tables.

    def insert(self, table: str, match: Match, action: str, priority: int = 0, **args: int) -> None:
        self._write_entry(p4.Update.INSERT, table, match, action, priority, args)

    def modify(self, table: str, match: Match, action: str, priority: int = 0, **args: int) -> None:
        self._write_entry(p4.Update.MODIFY, table, match, action, priority, args)

    def delete(self, table: str, match: Match, priority: int = 0) -> None:
        entry = self.info.entry(table, match, priority)
        self._write(p4.Update.DELETE, p4.Entity(table_entry=entry), f"{table} {match}")

    def set_default(self, table: str, action: str, **args: int) -> None:
        entry = self.info.entry(table, {})
        entry.is_default_action = True
        entry.action.action.CopyFrom(self.info.action(action, args))
        self._write(p4.Update.MODIFY, p4.Entity(table_entry=entry), f"default of {table}")

    def insert_group(self, table: str, match: Match, group: int) -> None:
        """An entry whose action comes from a group of the table's action profile."""
        entry = self.info.entry(table, match)
        entry.action.action_profile_group_id = group
        self._write(p4.Update.INSERT, p4.Entity(table_entry=entry), f"{table} {match} to group {group}")

    def _write_entry(self, kind, table: str, match: Match, action: str, priority: int, args: Mapping[str, int]) -> None:
        entry = self.info.entry(table, match, priority)
        entry.action.action.CopyFrom(self.info.action(action, args))
        self._write(kind, p4.Entity(table_entry=entry), f"{table} {match} {action} {args}")

    # Action profiles.

    def member(self, profile: str, id: int, action: str, **args: int) -> None:
        m = p4.ActionProfileMember(
            action_profile_id=self.info.find("action_profiles", profile).preamble.id,
            member_id=id,
            action=self.info.action(action, args),
        )
        self._write(p4.Update.INSERT, p4.Entity(action_profile_member=m), f"{profile} member {id}")

    def group(self, profile: str, group: Group, modify: bool = False) -> None:
        g = p4.ActionProfileGroup(
            action_profile_id=self.info.find("action_profiles", profile).preamble.id, group_id=group.id, max_size=16
        )
        for member, weight in group.members.items():
            g.members.add(member_id=member, weight=weight)
        kind = p4.Update.MODIFY if modify else p4.Update.INSERT
        self._write(kind, p4.Entity(action_profile_group=g), f"{profile} group {group.id}")

    # The packet replication engine.

    def multicast(self, group: int, replicas: Iterable[Replica], kind=p4.Update.INSERT) -> None:
        entry = p4.MulticastGroupEntry(multicast_group_id=group)
        for r in replicas:
            entry.replicas.add(egress_port=r.port, instance=r.instance)
        entity = p4.Entity(packet_replication_engine_entry=p4.PacketReplicationEngineEntry(multicast_group_entry=entry))
        self._write(kind, entity, f"multicast group {group}")

    def delete_multicast(self, group: int) -> None:
        self.multicast(group, [], p4.Update.DELETE)

    # Counters.

    def counter(self, name: str, index: int) -> Count:
        id = self.info.find("counters", name).preamble.id
        entry = p4.CounterEntry(counter_id=id, index=p4.Index(index=index))
        (entity,) = self._read(p4.Entity(counter_entry=entry), f"counter {name}[{index}]")
        return _count(entity.counter_entry.data)

    def counters(self, name: str) -> dict[int, Count]:
        """All cells of a counter."""
        entry = p4.CounterEntry(counter_id=self.info.find("counters", name).preamble.id)
        cells = self._read(p4.Entity(counter_entry=entry), f"counter {name}")
        return {e.counter_entry.index.index: _count(e.counter_entry.data) for e in cells}

    def direct_counter(self, table: str, match: Match, priority: int = 0) -> Count:
        entry = p4.DirectCounterEntry(table_entry=self.info.entry(table, match, priority))
        (entity,) = self._read(p4.Entity(direct_counter_entry=entry), f"direct counter of {table} {match}")
        return _count(entity.direct_counter_entry.data)

    # The agent's packets, and digests.

    def packet_out(self, port: int, frame: bytes) -> None:
        header = self.info.find("controller_packet_metadata", "packet_out")
        packet = p4.PacketOut(payload=frame)
        for m in header.metadata:
            value = port if m.name == "egress_port" else 0
            packet.metadata.add(metadata_id=m.id, value=encode(value, m.bitwidth, m.name))
        self._outgoing.put(p4.StreamMessageRequest(packet=packet))

    def enable_digest(self, name: str) -> None:
        digest = p4.DigestEntry(digest_id=self.info.find("digests", name).preamble.id)
        digest.config.max_list_size = 1
        digest.config.ack_timeout_ns = 10**9
        self._write(p4.Update.INSERT, p4.Entity(digest_entry=digest), f"digest {name}")

    def acknowledge(self, digests: p4.DigestList) -> None:
        ack = p4.DigestListAck(digest_id=digests.digest_id, list_id=digests.list_id)
        self._outgoing.put(p4.StreamMessageRequest(digest_ack=ack))

    # Calls.

    def _write(self, kind, entity: p4.Entity, deed: str) -> None:
        request = p4.WriteRequest(device_id=self.device_id, election_id=self.election)
        request.updates.add(type=kind, entity=entity)
        self._call(self._stub.Write, request, f"{p4.Update.Type.Name(kind).lower()} {deed}")

    def _read(self, entity: p4.Entity, deed: str) -> list[p4.Entity]:
        request = p4.ReadRequest(device_id=self.device_id)
        request.entities.append(entity)

        def read(r: p4.ReadRequest, timeout: float) -> list[p4.Entity]:
            return [e for response in self._stub.Read(r, timeout=timeout) for e in response.entities]

        return self._call(read, request, f"read {deed}")

    @staticmethod
    def _call(method, request, deed: str):
        try:
            return method(request, timeout=DEADLINE)
        except grpc.RpcError as e:
            code, words = _explain(e)
            raise Refused(deed, code, words) from None


def _count(data: p4.CounterData) -> Count:
    return Count(data.packet_count, data.byte_count)


def _explain(e: grpc.RpcError) -> tuple[str, str]:
    """The code and words of the first update that failed, or of the call as a whole."""
    for key, value in e.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                error = p4.Error()
                if detail.Unpack(error) and error.canonical_code != code_pb2.OK:
                    return code_pb2.Code.Name(error.canonical_code), error.message
    return e.code().name, e.details()
