package p4rtserver

import (
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

// multicastGroup applies an update to a multicast group.
func (x *txn) multicastGroup(kind p4.Update_Type, g *p4.MulticastGroupEntry) error {
	id, known := g.GetMulticastGroupId(), x.c.multicast
	old := known[id]
	if kind == p4.Update_DELETE {
		if err := x.c.pre.DeleteGroup(id); err != nil {
			return err
		}
		delete(known, id)
		x.done(func() error {
			known[id] = old
			replicas, err := readReplicas(old.GetReplicas())
			if err != nil {
				return err
			}
			return x.c.pre.InsertGroup(id, replicas)
		})
		return nil
	}
	replicas, err := readReplicas(g.GetReplicas())
	if err != nil {
		return invalidIn("multicast group", id, err)
	}
	if kind == p4.Update_INSERT {
		if err := x.c.pre.InsertGroup(id, replicas); err != nil {
			return err
		}
		x.done(func() error {
			delete(known, id)
			return x.c.pre.DeleteGroup(id)
		})
	} else {
		if err := x.c.pre.ModifyGroup(id, replicas); err != nil {
			return err
		}
		x.done(func() error {
			known[id] = old
			replicas, err := readReplicas(old.GetReplicas())
			if err != nil {
				return err
			}
			return x.c.pre.ModifyGroup(id, replicas)
		})
	}
	known[id] = canonicalGroup(g)
	return nil
}

func invalidIn(what string, id uint32, err error) error {
	return fail(codeOf(err), "%s %d: %v", what, id, err)
}

// readReplicas reads the copies that a group or session makes.
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

// canonicalReplicas brings ports into the form in which they are read back.
func canonicalReplicas(list []*p4.Replica) {
	for _, r := range list {
		if k, ok := r.GetPortKind().(*p4.Replica_Port); ok {
			k.Port = canonical(k.Port)
		}
	}
}

// canonical cuts leading zero bytes.
func canonical(b []byte) []byte {
	for len(b) > 1 && b[0] == 0 {
		b = b[1:]
	}
	return b
}

func canonicalGroup(g *p4.MulticastGroupEntry) *p4.MulticastGroupEntry {
	g = proto.CloneOf(g)
	canonicalReplicas(g.GetReplicas())
	return g
}

// cloneSession applies an update to a clone session.
func (x *txn) cloneSession(kind p4.Update_Type, c *p4.CloneSessionEntry) error {
	id, known := c.GetSessionId(), x.c.clones
	old := known[id]
	if kind == p4.Update_DELETE {
		if err := x.c.pre.DeleteSession(id); err != nil {
			return err
		}
		delete(known, id)
		x.done(func() error {
			known[id] = old
			s, err := readSession(old)
			if err != nil {
				return err
			}
			return x.c.pre.InsertSession(id, s)
		})
		return nil
	}
	s, err := readSession(c)
	if err != nil {
		return invalidIn("clone session", id, err)
	}
	if kind == p4.Update_INSERT {
		if err := x.c.pre.InsertSession(id, s); err != nil {
			return err
		}
		x.done(func() error {
			delete(known, id)
			return x.c.pre.DeleteSession(id)
		})
	} else {
		if err := x.c.pre.ModifySession(id, s); err != nil {
			return err
		}
		x.done(func() error {
			known[id] = old
			s, err := readSession(old)
			if err != nil {
				return err
			}
			return x.c.pre.ModifySession(id, s)
		})
	}
	c = proto.CloneOf(c)
	canonicalReplicas(c.GetReplicas())
	known[id] = c
	return nil
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

// maxClass is the largest class of service that the replication engine keeps.
const maxClass = 1<<31 - 1
