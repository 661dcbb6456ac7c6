package p4rtserver

import (
	"fmt"

	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
)

// portBits is the width of v1model's ports.
const portBits = 9

// readPort reads a port number.
func readPort(b []byte) (int, error) {
	var v [1]uint64
	if err := parseBits(v[:], b, portBits, "port"); err != nil {
		return 0, invalid("%v", err)
	}
	return int(v[0]), nil
}

func checkPort(n int64) error {
	if n < 0 || n > pre.MaxPort {
		return invalid("port %d: ports are from 0 to %d", n, pre.MaxPort)
	}
	return nil
}

// multicastGroups returns the multicast groups of a replication engine, for updates.
func multicastGroups(e *pre.Engine) kept[*p4.MulticastGroupEntry, []pre.Replica] {
	return kept[*p4.MulticastGroupEntry, []pre.Replica]{
		kind:    "multicast group",
		entries: map[uint32]*p4.MulticastGroupEntry{},
		read: func(g *p4.MulticastGroupEntry) ([]pre.Replica, error) {
			replicas, err := readReplicas(g.GetReplicas())
			return replicas, in(fmt.Sprintf("multicast group %d", g.GetMulticastGroupId()), err)
		},
		keep:   keepReplicas[*p4.MulticastGroupEntry],
		insert: e.InsertGroup, modify: e.ModifyGroup, remove: e.DeleteGroup,
		entity: func(g *p4.MulticastGroupEntry) *p4.Entity {
			return replication(&p4.PacketReplicationEngineEntry{Type: &p4.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: g}})
		},
	}
}

// cloneSessions returns the clone sessions of a replication engine, for updates.
func cloneSessions(e *pre.Engine) kept[*p4.CloneSessionEntry, pre.Session] {
	return kept[*p4.CloneSessionEntry, pre.Session]{
		kind:    "clone session",
		entries: map[uint32]*p4.CloneSessionEntry{},
		read: func(c *p4.CloneSessionEntry) (pre.Session, error) {
			s, err := readSession(c)
			return s, in(fmt.Sprintf("clone session %d", c.GetSessionId()), err)
		},
		keep:   keepReplicas[*p4.CloneSessionEntry],
		insert: e.InsertSession, modify: e.ModifySession, remove: e.DeleteSession,
		entity: func(c *p4.CloneSessionEntry) *p4.Entity {
			return replication(&p4.PacketReplicationEngineEntry{Type: &p4.PacketReplicationEngineEntry_CloneSessionEntry{CloneSessionEntry: c}})
		},
	}
}

func replication(e *p4.PacketReplicationEngineEntry) *p4.Entity {
	return &p4.Entity{Entity: &p4.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: e}}
}

// readReplicas reads the replicas of a group or session.
func readReplicas(list []*p4.Replica) ([]pre.Replica, error) {
	out := make([]pre.Replica, len(list))
	for i, r := range list {
		if len(r.GetBackupReplicas()) > 0 {
			return nil, fail(codes.Unimplemented, "backup replicas are not supported")
		}
		var port int
		var err error
		switch k := r.GetPortKind().(type) {
		case *p4.Replica_Port:
			port, err = readPort(k.Port)
		case *p4.Replica_EgressPort:
			n := k.EgressPort //nolint:staticcheck // deprecated, yet in use
			port, err = int(n), checkPort(int64(n))
		}
		if err != nil {
			return nil, invalid("replica %d: %v", i, err)
		}
		if r.GetInstance() > 0xffff {
			return nil, invalid("replica %d: instance %d: the largest is %d", i, r.GetInstance(), 0xffff)
		}
		out[i] = pre.Replica{Port: uint16(port), Instance: uint16(r.GetInstance())}
	}
	return out, nil
}

// keepReplicas converts ports to the form in which they are read back.
func keepReplicas[E interface {
	proto.Message
	GetReplicas() []*p4.Replica
}](e E) E {
	e = proto.CloneOf(e)
	for _, r := range e.GetReplicas() {
		if k, ok := r.GetPortKind().(*p4.Replica_Port); ok {
			k.Port = canonical(k.Port)
		}
	}
	return e
}

func readSession(c *p4.CloneSessionEntry) (pre.Session, error) {
	replicas, err := readReplicas(c.GetReplicas())
	if err == nil && c.GetClassOfService() > maxClass {
		err = invalid("class_of_service %d: the largest is %d", c.GetClassOfService(), maxClass)
	}
	return pre.Session{
		Replicas:       replicas,
		ClassOfService: int32(c.GetClassOfService()),
		PacketLength:   int(c.GetPacketLengthBytes()),
	}, err
}

// maxClass is the largest class of service that the replication engine stores.
const maxClass = 1<<31 - 1
