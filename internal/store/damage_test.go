package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// history is a file with small and large buckets, and all the values that its
// pairs ever had.
type history struct {
	path   string
	s      *Store
	values map[string]map[string]bool // bucket and key → values
}

func pair(bucket string, key []byte) string { return bucket + "/" + string(key) }

func (h *history) commit(t testing.TB, edits ...Edit) {
	t.Helper()
	mustCommit(t, h.s, edits...)
	for _, e := range edits {
		k := pair(e.Bucket, e.Key)
		if h.values[k] == nil {
			h.values[k] = map[string]bool{}
		}
		h.values[k][string(e.Value)] = true
	}
}

// step is one of the commits that make a varied file.
func (h *history) step(t testing.TB, r *rand.Rand) {
	t.Helper()
	var edits []Edit
	for range 1 + r.IntN(40) {
		e := set([]string{"groups", "branches", "hosts"}[r.IntN(3)], fmt.Sprintf("key %03d", r.IntN(300)), fmt.Sprint(r.Uint64()))
		switch r.IntN(8) {
		case 0:
			e.Value = nil
		case 1:
			e.Value = bytes.Repeat(e.Value, r.IntN(600)) // over several pages
		}
		edits = append(edits, e)
	}
	h.commit(t, append(edits, set("small", "last", fmt.Sprint(r.Uint64())))...)
}

func newHistory(t testing.TB, steps int) *history {
	t.Helper()
	h := &history{path: filepath.Join(t.TempDir(), "x.db"), values: map[string]map[string]bool{}}
	h.s = mustOpen(t, h.path, Options{NoSync: true})
	r := rand.New(rand.NewPCG(1, 2))
	for range steps {
		h.step(t, r)
	}
	return h
}

// content is the file, as far as it is in use.
func (h *history) content(t testing.TB) []byte {
	t.Helper()
	data, err := os.ReadFile(h.path)
	if err != nil {
		t.Fatal(err)
	}
	m := newest(data)
	return data[:m.high*pageSize]
}

func newest(data []byte) meta {
	v := &verifier{f: bytes.NewReader(data)}
	m, _ := v.meta(0)
	if n, err := v.meta(1); err == nil && n.tx > m.tx {
		return n
	}
	return m
}

// try opens data as a file. A file that opens holds only what once was there, and
// can be used.
func (h *history) try(t *testing.T, path string, data []byte) (*Store, error) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), path, Options{NoSync: true})
	if err != nil {
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), path) {
			t.Fatal(err)
		}
		return nil, err
	}
	for _, bucket := range []string{"groups", "branches", "hosts", "small"} {
		for k, v := range s.Load(bucket) {
			if !h.values[pair(bucket, k)][string(v)] {
				t.Fatalf("%s: %q holds %.40q, which was never committed", bucket, k, v)
			}
		}
	}
	for i := range 3 {
		mustCommit(t, s, set("groups", fmt.Sprintf("key %03d", 100*i), strings.Repeat("new", 2000)), set("hosts", fmt.Sprintf("key %03d", 90*i), "v"),
			Edit{Bucket: "branches", Key: fmt.Appendf(nil, "key %03d", 77*i)})
	}
	return s, nil
}

func closeStore(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Of a commit that power loss cut short, any sectors may have reached the disk
// before the first barrier, and any part of the entry point after it. What is
// there then is the state before, or in the end the one after.
func TestTornCommit(t *testing.T) {
	const sector = 512
	h := newHistory(t, 30)
	r := rand.New(rand.NewPCG(3, 4))
	path := filepath.Join(t.TempDir(), "torn.db")
	last := func(s *Store) string { return all(s, "small")[0] }
	for range 25 {
		before, was := h.content(t), last(h.s)
		h.step(t, r)
		after, is := h.content(t), last(h.s)
		entry := newest(after).tx % 2
		mixed := append(bytes.Clone(before), make([]byte, max(0, len(after)-len(before)))...)
		expect := func(want string) {
			t.Helper()
			s, err := h.try(t, path, mixed)
			if err != nil {
				t.Fatal(err)
			}
			if got := last(s); got != want {
				t.Fatalf("last is %s, want %s", got, want)
			}
			closeStore(t, s)
		}
		for at := 0; at < len(after); at += sector {
			if uint64(at/pageSize) != entry && r.IntN(2) == 0 {
				copy(mixed[at:at+sector], after[at:at+sector])
			}
		}
		expect(was)
		for at := 0; at < len(after); at += sector {
			if uint64(at/pageSize) != entry {
				copy(mixed[at:at+sector], after[at:at+sector])
			}
		}
		expect(was)
		at := int(entry) * pageSize
		torn := pageHeader + 8 + r.IntN(40)
		copy(mixed[at:at+torn], after[at:at+torn])
		if !bytes.Equal(mixed[at:at+pageSize], after[at:at+pageSize]) {
			expect(was)
		}
		copy(mixed[at:], after[at:at+pageSize])
		expect(is)
	}
}

func TestTruncated(t *testing.T) {
	h := newHistory(t, 20)
	data := h.content(t)
	path := filepath.Join(t.TempDir(), "cut.db")
	for n := 0; n < len(data); n += 1 + len(data)/97 {
		if s, err := h.try(t, path, data[:n]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d of %d bytes: %v", n, len(data), err)
			closeStore(t, s)
		}
	}
	s, err := h.try(t, path, data)
	if err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
}

// Each byte that is in use is guarded: by a checksum or by the order of things.
func TestFlippedBits(t *testing.T) {
	h := newHistory(t, 20)
	data := h.content(t)
	path := filepath.Join(t.TempDir(), "bad.db")
	r := rand.New(rand.NewPCG(5, 6))
	refused := 0
	n := 600
	if testing.Short() {
		n = 200
	}
	for range n {
		bad := bytes.Clone(data)
		bad[r.IntN(len(bad))] ^= 1 << r.IntN(8)
		s, err := h.try(t, path, bad)
		if err != nil {
			refused++
			continue
		}
		closeStore(t, s)
	}
	t.Logf("%d of %d refused; the others hit what is free", refused, n)
	if refused < n/4 {
		t.Errorf("only %d of %d files with a flipped bit were refused", refused, n)
	}
}

// An entry is one of a page: where it is in the file, and its key and value.
type entry struct{ at, key, value int }

// entries lists those of a page.
func entries(data []byte, page uint64) (list []entry) {
	for i := range int(native.Uint16(data[page*pageSize+10:])) {
		e := entry{at: int(page)*pageSize + pageHeader + i*elementSize} //nolint:gosec // small
		e.key = e.at + int(native.Uint32(data[e.at:]))
		if native.Uint16(data[page*pageSize+8:]) == leafPage {
			e.key = e.at + int(native.Uint32(data[e.at+4:]))
			e.value = e.key + int(native.Uint32(data[e.at+8:]))
		}
		list = append(list, e)
	}
	return list
}

// Each rule that a file must keep, broken by itself.
func TestVerify(t *testing.T) {
	h := newHistory(t, 20)
	good := h.content(t)
	m := newest(good)
	root := entries(good, m.root) // branches, groups, hosts, mcrdma.store, small
	if len(root) != 5 {
		t.Fatalf("%d buckets", len(root))
	}
	groups, small := native.Uint64(good[root[1].value:]), root[4]
	tree := entries(good, groups)
	if native.Uint16(good[groups*pageSize+8:]) != branchPage || len(tree) < 3 || native.Uint64(good[small.value:]) != 0 {
		t.Fatal("a file without a tree, or without a page within a page")
	}
	child := native.Uint64(good[tree[1].at+8:])
	leaf := entries(good, child)
	metas := func(b []byte, f func(meta []byte)) {
		f(b[pageHeader:])
		f(b[pageSize+pageHeader:])
		resum(b)
	}
	page := func(b []byte, id uint64) []byte { return b[id*pageSize:] }
	for _, c := range []struct {
		want  string
		spoil func(b []byte) []byte
	}{
		{"it is no state file", func(b []byte) []byte { metas(b, func(m []byte) { m[0]++ }); return b }},
		{"wrong checksum of page 0", func(b []byte) []byte {
			metas(b, func([]byte) {})
			b[pageHeader+20]++
			b[pageSize+pageHeader+20]++
			return b
		}},
		{ErrVersion.Error(), func(b []byte) []byte { metas(b, func(m []byte) { m[4]++ }); return b }},
		{"pages of 4097 bytes", func(b []byte) []byte { metas(b, func(m []byte) { m[8]++ }); return b }},
		{"a reference to page 1 of", func(b []byte) []byte { metas(b, func(m []byte) { native.PutUint64(m[16:], 1) }); return b }},
		{fmt.Sprintf("a reference to page %d of %[1]d", m.high), func(b []byte) []byte {
			metas(b, func(meta []byte) { native.PutUint64(meta[16:], m.high) })
			return b
		}},
		{"is not the empty list of free pages", func(b []byte) []byte {
			metas(b, func(m []byte) { native.PutUint64(m[32:], child) })
			return b
		}},
		{"says that it is", func(b []byte) []byte { page(b, child)[0]++; return b }},
		{"goes on beyond the end", func(b []byte) []byte { native.PutUint32(page(b, child)[12:], uint32(m.high)); return b }}, //nolint:gosec // small
		{"is in two places", func(b []byte) []byte { native.PutUint64(b[tree[1].at+8:], groups); return b }},
		{"is in two places", func(b []byte) []byte {
			native.PutUint32(page(b, min(child, groups))[12:], uint32(m.high-min(child, groups)-1))
			return b
		}}, //nolint:gosec // small
		{"has no branches", func(b []byte) []byte { native.PutUint16(page(b, groups)[10:], 0); return b }},
		{"is of an unexpected kind, 0x4", func(b []byte) []byte { b[child*pageSize+8] = 4; return b }},
		{"goes beyond the end", func(b []byte) []byte { native.PutUint16(page(b, child)[10:], 0xffff); return b }},
		{"goes beyond the end", func(b []byte) []byte { native.PutUint32(b[leaf[0].at+12:], 1<<31); return b }},
		{"key 1 is out of order", func(b []byte) []byte { copy(b[leaf[1].key:], b[leaf[0].key:leaf[0].value]); return b }},
		{"key 0 is out of order", func(b []byte) []byte { native.PutUint32(b[tree[0].at+4:], 0); return b }},
		{fmt.Sprintf("page %d: key 0 is out of order", child), func(b []byte) []byte { // below its branch
			copy(b[tree[1].key:], "key 9")
			native.PutUint16(page(b, groups)[10:], 2)
			return b
		}},
		{"is out of order", func(b []byte) []byte { // beyond the next branch
			copy(b[tree[1].key:tree[1].key+7], b[tree[0].key:])
			b[tree[1].key+6]++
			native.PutUint64(b[tree[1].at+8:], 0)
			return b
		}},
		{"entry 1 is of an unexpected kind", func(b []byte) []byte { b[root[1].at] = 0; return b }},
		{"entry 1 is of an unexpected kind", func(b []byte) []byte { b[leaf[1].at] = bucketFlag; return b }},
		{"bucket \"small\" is cut short", func(b []byte) []byte { native.PutUint32(b[small.at+12:], bucketHeader-1); return b }},
		{"bucket \"small\" is cut short", func(b []byte) []byte { native.PutUint32(b[small.at+12:], bucketHeader+pageHeader-1); return b }},
		{"wrong checksum of \"last\" in \"small\"", func(b []byte) []byte { b[small.value+bucketHeader+pageHeader+elementSize+4]++; return b }},
		{"is too deep", func(b []byte) []byte {
			for i := range uint64(maxDepth + 2) { // pages of one branch each
				p := make([]byte, pageSize)
				native.PutUint64(p, m.high+i)
				native.PutUint16(p[8:], branchPage)
				native.PutUint16(p[10:], 1)
				native.PutUint32(p[pageHeader:], elementSize)
				native.PutUint32(p[pageHeader+4:], 1)
				native.PutUint64(p[pageHeader+8:], m.high+i+1)
				p[pageHeader+elementSize] = 'k'
				b = append(b, p...)
			}
			metas(b, func(meta []byte) {
				native.PutUint64(meta[16:], m.high)
				native.PutUint64(meta[40:], m.high+maxDepth+2)
			})
			return b
		}},
	} {
		_, err := h.try(t, filepath.Join(t.TempDir(), "bad.db"), c.spoil(bytes.Clone(good)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q, got %v", c.want, err)
		}
	}
	s, err := h.try(t, filepath.Join(t.TempDir(), "good.db"), good)
	if err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
}

// resum makes the checksums of the entry points right again, to get further.
func resum(data []byte) {
	for page := range 2 {
		at := page*pageSize + pageHeader
		if at+metaSum+8 > len(data) {
			return
		}
		sum := fnv.New64a()
		_, _ = sum.Write(data[at : at+metaSum])
		native.PutUint64(data[at+metaSum:], sum.Sum64())
	}
}

// FuzzOpen overwrites parts of a good file, or all of it. Each patch is a page, an
// offset in it and a byte of length, then the new bytes.
func FuzzOpen(f *testing.F) {
	h := newHistory(f, 20)
	data := h.content(f)
	m := newest(data)
	f.Add([]byte{}, true, uint32(0))
	f.Add([]byte("garbage"), false, uint32(3))
	at := func(page, offset int, b ...byte) []byte {
		out := binary.BigEndian.AppendUint16(nil, uint16(page)) //nolint:gosec // small
		out = binary.BigEndian.AppendUint16(out, uint16(offset))
		return append(append(out, byte(len(b))), b...)
	}
	root := int(m.root) //nolint:gosec // small
	for _, patch := range [][]byte{
		at(0, pageHeader+16, byte(m.root)), at(1, pageHeader+16, byte(m.root)), // roots
		at(1, pageHeader+32, 2, 0, 0, 0, 0, 0, 0, 0), at(1, pageHeader+40, 3),
		at(root, 8, branchPage), at(root, 10, 0xff, 0xff), at(root, 12, 0xff, 0xff, 0xff, 0xff),
		at(root, pageHeader, 0), at(root, pageHeader+4, 0xff), at(root, pageHeader+8, 0xff, 0xff),
	} {
		f.Add(patch, true, uint32(0))
		f.Add(patch, false, uint32(0))
	}
	f.Fuzz(func(t *testing.T, patches []byte, sums bool, cut uint32) {
		bad := bytes.Clone(data)
		for p := patches; len(p) >= 5; {
			page, offset, n := int(binary.BigEndian.Uint16(p)), int(binary.BigEndian.Uint16(p[2:]))%pageSize, int(p[4])
			p = p[5:]
			n = min(n, len(p))
			copy(bad[min(page*pageSize+offset, len(bad)):], p[:n])
			p = p[n:]
		}
		if cut > 0 {
			bad = bad[:min(int(cut), len(bad))]
		}
		if sums {
			resum(bad)
		}
		s, err := h.try(t, filepath.Join(t.TempDir(), "x.db"), bad)
		if err == nil {
			closeStore(t, s)
		}
		if _, err := h.try(t, filepath.Join(t.TempDir(), "y.db"), patches); err == nil {
			t.Error("opened by chance")
		}
	})
}
