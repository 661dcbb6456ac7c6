package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdmatest"
	"github.com/mcrdma/mcrdma/pkg/replica"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// progress is what scrub says while it takes more than a second.
var progress = regexp.MustCompile(`(?m)^\d+ of \d+ MiB, \d+ places differ\n`)

// TestOperate: the primary is changed, a host is replaced, copies are compared, and differences are
// found.
func TestOperate(t *testing.T) {
	m, config, _ := records(t, 1, 0)
	t.Setenv(configEnv, config)
	rack := mcrdmatest.Start(t, 4)
	dirs, hosts := map[string]string{}, map[string]*replica.Host{}
	for i := 1; i <= 4; i++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("h", i)
		dirs[name] = filepath.Join(t.TempDir(), name)
		hosts[name], err = replica.Open(replica.Config{Self: osdmap.Host{ID: core.ID(i), Name: name, Peer: l.Addr().String(), NBD: "127.0.0.1:1", Device: fmt.Sprint("10.1.0.", 10+i)},
			Client: rack.Dial(name), Manager: m, Dir: dirs[name], Listener: l, Options: replica.Options{Lease: 4 * time.Second, Beat: 100 * time.Millisecond}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = hosts[name].Close() })
	}
	until := func(what string, f func(v *osdmap.VolumeState) bool) *osdmap.VolumeState {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			s, err := m.Read(t.Context())
			if err == nil && len(s.Volumes) == 1 && f(&s.Volumes[0]) {
				return &s.Volumes[0]
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %+v, %v", what, s.Volumes, err)
			}
		}
	}
	acting := func(n int, host core.ID) func(v *osdmap.VolumeState) bool {
		return func(v *osdmap.VolumeState) bool {
			return len(v.Map.Acting) == n && v.Map.Holds(host) && v.Map.Since > 0
		}
	}
	expect := func(line string, code int, want ...string) (stdout string) {
		t.Helper()
		got, stdout, stderr := call(t, strings.Fields(line)...)
		stderr = progress.ReplaceAllString(stderr, "")
		for _, w := range want {
			if got != code || !strings.Contains(stdout+stderr, w) || (code == 0) != (stderr == "") {
				t.Errorf("%s: %d, %s, %s; want %d, %q", line, got, stdout, stderr, code, w)
			}
		}
		return stdout
	}
	for s := (osdmap.State{}); len(s.Hosts) < 4; time.Sleep(10 * time.Millisecond) {
		var err error
		if s, err = m.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	expect("volume create vol --size 8M --hosts h1,h2,h3", 0, "min_size 2")
	until("all act", acting(3, 3))
	expect("volume promote vol h4", 1, "h4: not in the acting set: volume vol has no copy there: its hosts are h1, h2, h3")
	expect("volume promote vol h9", 1, "there is no host \"h9\"; there are h1, h2, h3 and h4: a host is known when")
	expect("volume promote vol h2", 0, "h2 is the primary", "h2    primary")
	expect("volume promote vol h2", 0, "h2 is the primary")
	expect("volume min-size vol 4", 1, "min_size 4: so many hosts are not in the acting set, which has 3: want 1 to 3")
	expect("volume min-size vol 1", 0, "min_size 1")
	expect("volume scrub vol", 0, "8388608 of 8388608 bytes compared, on h1, h2, h3")
	expect("volume replace vol h3 h1", 1, "h1 has a copy of volume vol already: name another host than h1, h2, h3")
	expect("volume replace vol h4 h1", 1, "volume vol has no copy on h4: its hosts are h1, h2, h3")
	expect("volume replace vol h3 h4", 0, "h4 has the place of h3", "h4    not acting")
	until("h4 acts", acting(3, 4))
	expect("volume replace vol h3 h4", 0, "h4 has the place of h3") // the same call again
	expect("volume replace vol h3 h1", 1, "volume vol has no copy on h3: its hosts are h1, h2, h4")

	v, err := hosts["h1"].Volume("vol")
	if err == nil {
		err = v.WriteAt(t.Context(), make([]byte, 8192), 4<<20, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	until("h1 has it in the store", func(*osdmap.VolumeState) bool {
		s := v.Status()
		return s.Applied == s.Head.Index
	})
	at := filepath.Join(dirs["h1"], fmt.Sprintf("%016x", v.Info().ID), "store", "data")
	f, err := os.OpenFile(at, os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt([]byte("rot"), 4<<20+77)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	expect("volume scrub vol", 1, "4194304  4194304  h1", "suspect", "h1 is suspect", "mcblock volume lost vol h1", "differ in 1 places")
	var got scrubView
	if err := json.Unmarshal([]byte(expect("volume scrub vol -o json", 1, `"suspect"`)), &got); err != nil || len(got.Bad) != 1 || got.Bad[0].Offset != 4<<20 ||
		!slices.Equal(got.Bad[0].Suspect, []string{"h1"}) || len(got.Bad[0].CRC32C) != 3 || got.Compared != 8<<20 {
		t.Errorf("%+v, %v", got, err)
	}
	_ = hosts["h1"].Close()
	until("h1 is taken out", func(v *osdmap.VolumeState) bool { return !v.Map.Holds(1) })
	expect("volume scrub vol", 1, "not compared, since their copies were not up to date: h1\n", "h1 of volume vol was not compared, as not up to date: what was compared is the same")
	expect("volume lost vol h1", 0, "does not wait for what h1 had")
	_ = hosts["h4"].Close()
	until("h4 is taken out", acting(1, 2))
	expect("volume lost vol h2", 1, "h2 answers, and no other host has everything")
	expect("volume scrub vol", 1, "only one copy is up to date")
}
