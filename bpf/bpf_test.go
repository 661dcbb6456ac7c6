package bpf_test

import (
	"bytes"
	"hash/crc32"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"

	"github.com/mcrdma/mcrdma/bmv2"
	"github.com/mcrdma/mcrdma/bpf"
	"github.com/mcrdma/mcrdma/internal/testenv"
)

// TestObjectIsCurrent fails when the source has changed and was not compiled, and when the object was edited.
func TestObjectIsCurrent(t *testing.T) {
	now, err := bpf.Made(os.DirFS("src"), bpf.Object, bpf.Clang())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(bpf.Origin(), now); d != "" {
		t.Errorf("bpf/mcrdma.o is not what was compiled of bpf/src; run: make bpf\nas compiled (-), now (+):\n%s", d)
	}
}

// TestDropReasons: the source has the numbers of p4src, and behind them one of its own.
func TestDropReasons(t *testing.T) {
	text, err := os.ReadFile("src/drops.h")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^#define DROP_(\w+) (\d+)`).FindAllStringSubmatch(string(text), -1)
	for _, m := range found {
		i, _ := strconv.Atoi(m[2])
		switch name := strings.ToLower(m[1]); {
		case name == "reasons" && i == bpf.DropUpdate+1, name == "update" && i == bpf.DropUpdate:
		case i >= len(bmv2.DropReasons) || bmv2.DropReasons[i] != name:
			t.Errorf("%s is not number %d in p4src/drops.p4", m[1], i)
		}
	}
	if len(found) < 5 {
		t.Errorf("found %d reasons", len(found))
	}
}

func spec(t testing.TB) *ebpf.CollectionSpec {
	t.Helper()
	s, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(bpf.Object))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTable: the object has the table of CRC-32.
func TestTable(t *testing.T) {
	var b []byte
	for _, v := range crc32.IEEETable {
		b = append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
	}
	data, ok := spec(t).Maps[".rodata"].Contents[0].Value.([]byte)
	if !ok || !bytes.Contains(data, b) {
		t.Error("the table of CRC-32 is not in the object")
	}
}

// TestVerified: the kernel's verifier takes at most half of the steps that it gives a program; that of Linux 6.1 takes more than later ones.
func TestVerified(t *testing.T) {
	c, err := ebpf.NewCollectionWithOptions(spec(t), ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
	if err != nil {
		testenv.Skip(t, "%v", err)
	}
	defer c.Close()
	for name, p := range c.Programs {
		found := regexp.MustCompile(`processed (\d+) insns \(limit (\d+)\)`).FindStringSubmatch(p.VerifierLog)
		if found == nil {
			t.Fatalf("%s: %q", name, p.VerifierLog)
		}
		steps, _ := strconv.Atoi(found[1])
		limit, _ := strconv.Atoi(found[2])
		if t.Logf("%s: %d steps", name, steps); steps > limit/2 {
			t.Errorf("%s takes %d steps of %d", name, steps, limit)
		}
	}
}

// TestTypes: the structures of the source have the fields of the types of this package at the same places.
func TestTypes(t *testing.T) {
	s := spec(t)
	for name, types := range map[string][2]any{
		"merge_members": {bpf.MemberKey{}, bpf.Member{}}, "merge_groups": {nil, bpf.Group{}}, "merge_slots": {nil, bpf.Slot{}},
		"settings": {nil, bpf.Settings{}}, "drops": {nil, bpf.Count{}}, "counters": {nil, bpf.Count{}}, "ecn_seen": {nil, bpf.Count{}},
		"ports_in": {nil, bpf.Port{}}, "port_hosts": {bpf.PortHost{}, bpf.MAC{}}, "router_macs": {bpf.MAC{}, nil}, "bridge": {bpf.MAC{}, nil},
		"routes": {bpf.Prefix{}, bpf.Route{}}, "ecmp_groups": {nil, bpf.Paths{}}, "next_hops": {nil, bpf.NextHop{}},
		"groups": {bpf.GroupKey{}, bpf.Multicast{}}, "group_regions": {bpf.GroupRegion{}, bpf.Span{}},
		"copies": {nil, bpf.Copy{}}, "pre_groups": {nil, bpf.PREGroup{}}, "places": {bpf.PlaceKey{}, nil}, "regions": {bpf.RegionKey{}, bpf.Region{}},
	} {
		m := s.Maps[name]
		if m == nil {
			t.Errorf("no map %s", name)
			continue
		}
		for i, in := range []btf.Type{m.Key, m.Value} {
			if types[i] == nil {
				continue
			}
			st, ok := btf.UnderlyingType(in).(*btf.Struct)
			if !ok {
				t.Errorf("%s has a %v", name, in)
				continue
			}
			g := reflect.TypeOf(types[i])
			if d := cmp.Diff(inSource(st, 0), inGo(g, 0), cmp.AllowUnexported(place{})); d != "" || uintptr(st.Size) != g.Size() {
				t.Errorf("%s: of %d and %d bytes; source (-), Go (+):\n%s", name, st.Size, g.Size(), d)
			}
		}
	}
}

// A place is where a number is in a structure, or an array.
type place struct{ at, size int }

func inSource(s *btf.Struct, at int) (all []place) {
	for _, m := range s.Members {
		here := at + int(m.Offset.Bytes())
		inner, ok := btf.UnderlyingType(m.Type).(*btf.Struct)
		switch {
		case m.Name == "lock" || m.Name == "pad":
		case ok:
			all = append(all, inSource(inner, here)...)
		default:
			n, err := btf.Sizeof(m.Type)
			if err != nil {
				panic(err)
			}
			all = append(all, place{here, n})
		}
	}
	return all
}

func inGo(s reflect.Type, at int) (all []place) {
	for i := range s.NumField() {
		f := s.Field(i)
		switch here := at + int(f.Offset); {
		case f.Name == "_":
		case f.Type.Kind() == reflect.Struct:
			all = append(all, inGo(f.Type, here)...)
		default:
			all = append(all, place{here, int(f.Type.Size())})
		}
	}
	return all
}
