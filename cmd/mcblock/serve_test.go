package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/mcrdma/mcrdma/internal/cmdline"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/internal/nbd"
	"github.com/mcrdma/mcrdma/internal/testenv"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
)

// open opens a volume at a host as a client with a certificate, or without TLS.
func (r *rig) open(h *served, name string, f identity.Files) (*nbd.Device, error) {
	r.t.Helper()
	var t *tls.Config
	if !f.Plain() {
		info := etcd.Info(f)
		var err error
		if t, err = info.ClientConfig(); err != nil {
			r.t.Fatal(err)
		}
		t.ServerName = h.cfg.Address.String()
	}
	d, err := nbd.Dial(r.t.Context(), h.cfg.NBD, name, t)
	if err == nil {
		r.t.Cleanup(func() { _ = d.Close() })
	}
	return d, err
}

// TestAccess: only the clients on a volume's list can open or list it; a client that is removed
// from the list loses its connection; loopback without TLS is one name on the list.
func TestAccess(t *testing.T) {
	r := newRig(t, 1)
	h, vm1, vm2, plain := r.hosts[0], r.client("vm1"), r.client("vm2"), identity.Files{}
	r.must("volume create open --size 16M")
	if code, _, said := call(t, "volume", "create", "huge", "--size", "512P"); code != 2 || !strings.Contains(said, "choose a smaller size") {
		t.Errorf("no host can hold it: %d, %s", code, said)
	}
	if a := ask(t.Context(), h.cfg, []osdmap.Host{{ID: 1, Name: "h1", Peer: h.cfg.Listen}}, time.Minute)[1]; a.GetLargestBytes() == 0 || a.GetDataBytes() == 0 {
		t.Errorf("the host does not say what it can hold: %+v", a)
	}
	if out := r.must("volume create vol --size 16M --allow vm1"); !strings.Contains(out, "clients: host:vm1\n") {
		t.Error(out)
	}
	r.until("the host has both", func() error {
		_, first := r.open(h, "open", plain)
		_, second := r.open(h, "vol", vm1)
		return errors.Join(first, second)
	})
	may := func(step string, want map[string]bool) {
		t.Helper()
		for name, f := range map[string]identity.Files{"plain": plain, "vm1": vm1, "vm2": vm2} {
			_, err := r.open(h, "vol", f)
			if denied := errors.Is(err, nbd.EPERM); denied == want[name] || err != nil && !denied {
				t.Errorf("%s: %s: %v", step, name, err)
			}
			if _, err := r.open(h, "open", f); err != nil {
				t.Errorf("%s: %s: the volume without a list: %v", step, name, err)
			}
		}
	}
	may("vm1 only", map[string]bool{"vm1": true})
	list := func() string {
		out, err := exec.CommandContext(t.Context(), "nbdinfo", "--list", "--json", "nbd://"+h.cfg.NBD).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if _, err := exec.LookPath("nbdinfo"); err != nil {
		t.Log("optional: no nbdinfo (Debian: libnbd-bin)")
	} else if out := list(); !strings.Contains(out, `"open"`) || strings.Contains(out, `"vol"`) {
		t.Errorf("in plain text a client is shown %s", out)
	}
	if d, err := r.open(h, "", plain); err != nil || d.Info().Size != 16<<20 { // "open": the only volume that it may open
		t.Error(err)
	}

	d, err := r.open(h, "vol", vm1)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.WriteAt(t.Context(), make([]byte, 4096), 0, true); err != nil {
		t.Fatal(err)
	}
	if out := r.must("volume allow vol vm2 loopback"); out != "volume vol: clients host:vm2, loopback\n" {
		t.Error(out)
	}
	r.until("the connection of vm1 has ended", func() error {
		if d.ReadAt(t.Context(), make([]byte, 4096), 0) == nil {
			return errors.New("it reads still")
		}
		return nil
	})
	may("vm2 and loopback", map[string]bool{"vm2": true, "plain": true})
	r.must("volume allow vol --everyone")
	r.until("the host knows", func() error {
		_, err := r.open(h, "vol", vm1)
		return err
	})
	may("all", map[string]bool{"vm1": true, "vm2": true, "plain": true})
	for args, want := range map[string]string{"vol": "name one volume", "vol x --everyone": "name one volume", "vol a:b": "client \"a:b\"", "vol vm1 vm1": "twice"} {
		if code, _, errs := call(t, append([]string{"volume", "allow"}, strings.Fields(args)...)...); code != 2 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %s", args, code, errs)
		}
	}
}

// get returns a host's answer by HTTP.
func (h *served) get(ctx context.Context, path string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.cfg.Metrics+path, nil)
	if err != nil {
		return 0, "", err
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// TestMetrics: a client's requests are counted, and the volume's state is reported; a deleted
// volume is in no metric.
func TestMetrics(t *testing.T) {
	r := newRig(t, 1)
	h := r.hosts[0]
	r.must("volume create vol --size 16M")
	var d *nbd.Device
	r.until("it is served", func() (err error) {
		d, err = r.open(h, "vol", identity.Files{})
		return err
	})
	p := make([]byte, 8192)
	if err := errors.Join(d.WriteAt(t.Context(), p, 0, false), d.Flush(t.Context()), d.ReadAt(t.Context(), p[:4096], 0)); err != nil {
		t.Fatal(err)
	}
	code, text, err := h.get(t.Context(), "/metrics")
	if err != nil || code != 200 {
		t.Fatal(code, err)
	}
	for _, line := range []string{`volume_state{state="active",volume="vol"} 1`, `volume_primary{volume="vol"} 1`, `volume_served{volume="vol"} 1`, `volume_acting{volume="vol"} 1`,
		`volume_copies{volume="vol"} 1`, `volume_min_size{volume="vol"} 1`, `volume_entries{volume="vol",which="durable"} 1`, `volume_backfilling{volume="vol"} 0`,
		`volume_size_bytes{volume="vol"} 1.6777216e+07`, `volume_bytes_total{operation="write",volume="vol"} 8192`, `volume_bytes_total{operation="read",volume="vol"} 4096`,
		`volume_request_seconds_count{operation="flush",volume="vol"} 1`, `volume_request_seconds_count{operation="write",volume="vol"} 1`, `nbd_connections 1`, `etcd_away 0`,
		`volumes_broken 0`, `records_refused 0`, `nbd_connections_ended_total{why="protocol"} 0`} {
		if !strings.Contains(text, "\n"+metricsPrefix+line+"\n") {
			t.Errorf("there is no %s", line)
		}
	}
	for _, name := range []string{"data_bytes", "data_free_bytes", "certificate_expiry_timestamp_seconds"} {
		if strings.Contains(text, "\n"+metricsPrefix+name+" 0\n") || !strings.Contains(text, "\n"+metricsPrefix+name+" ") {
			t.Errorf("%s is 0, or is not there", name)
		}
	}
	if code, body, err := h.get(t.Context(), "/readyz"); code != 200 || body != "ready\n" {
		t.Error(code, body, err)
	}
	r.must("volume delete vol --yes")
	r.until("no metric of it is left", func() error {
		if _, text, _ = h.get(t.Context(), "/metrics"); strings.Contains(text, `"vol"`) {
			return errors.New(text)
		}
		return nil
	})
	registry := prometheus.NewRegistry()
	own := prometheus.WrapRegistererWithPrefix(metricsPrefix, registry)
	newTraffic(promauto.With(own))
	own.MustRegister(&collector{})
	testenv.MetricNames(t, "testdata/metrics.txt", registry.Describe)
}

// TestOldRecords: when etcd has an older map of a volume than its hosts, doctor says so; when it has lost the volume, and another
// was made under its name, clients open the new one, and there are metrics.
func TestOldRecords(t *testing.T) {
	r := newRig(t, 1)
	h := r.hosts[0]
	r.must("volume create vol --size 16M")
	serves := func(size int64) {
		r.until(fmt.Sprintf("a volume of %d bytes is served", size), func() error {
			d, err := r.open(h, "vol", identity.Files{})
			if err != nil {
				return err
			}
			if is := d.Info().Size; is != size {
				return fmt.Errorf("%d bytes", is)
			}
			return d.ReadAt(t.Context(), make([]byte, 4096), 0)
		})
	}
	serves(16 << 20)
	kv, err := etcd.Dial(etcd.Config{Endpoints: h.cfg.EtcdClients(), Files: files(h.cfg)})
	if err != nil {
		t.Fatal(err)
	}
	defer kv.Close()
	m := osdmap.New(kv, osdmap.Options{})
	s, err := m.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lose := func() {
		for _, prefix := range []string{"volumes/", "names/"} {
			pairs, _, err := kv.Get(t.Context(), prefix)
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := kv.Commit(t.Context(), osdmap.Change{Key: pairs[0].Key, Revision: pairs[0].Revision}); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	}
	lose()
	v := s.Volumes[0].Volume
	if err := m.Create(t.Context(), v, osdmap.FirstMap(v, 1)); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := call(t, "doctor"); code != 1 || !strings.Contains(out, "volume vol: etcd has an older map of it than its hosts") || strings.Contains(out, "not served") {
		t.Error(code, out, errs)
	}

	lose()
	r.must("volume create vol --size 32M")
	serves(32 << 20)
	for range 10 { // the order of a map is random
		serves(32 << 20)
	}
	if code, text, err := h.get(t.Context(), "/metrics"); code != 200 || !strings.Contains(text, `volume_size_bytes{volume="vol"} 3.3554432e+07`) {
		t.Error(code, text, err)
	}
}

// TestBench: a scratch volume is measured and deleted, also after an interrupt; an existing volume
// is only read, unless writing is allowed by flag.
func TestBench(t *testing.T) {
	r := newRig(t, 2)
	var got []benchResult
	if err := json.Unmarshal([]byte(r.must("bench --size 16M --runtime 30ms --fsync 4 -o json")), &got); err != nil {
		t.Fatal(err)
	}
	for i, w := range workloads {
		if len(got) != len(workloads) || got[i].Workload != w || got[i].Iterations == 0 || got[i].Bandwidth <= 0 || got[i].Min > got[i].Typical || got[i].Typical > got[i].P99 || got[i].P99 > got[i].Max {
			t.Errorf("%+v", got)
			break
		}
	}
	none := func() {
		t.Helper()
		if out := r.must("volume list -o json"); strings.TrimSpace(out) != "[]" {
			t.Errorf("left: %s", out)
		}
	}
	none()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	var out, errs testenv.SyncBuffer
	go func() { ended <- run(ctx, []string{"bench", "--size", "16M", "--runtime", "1h"}, &out, &errs) }()
	r.until("it runs", func() error {
		name := regexp.MustCompile(`bench-[0-9a-f]+`).FindString(r.must("volume list"))
		_, text, err := r.hosts[0].get(t.Context(), "/metrics")
		if written := `volume_request_seconds_count{operation="write",volume="` + name + `"} `; !strings.Contains(text, written) || strings.Contains(text, written+"0\n") || strings.Contains(text, written+"1\n") {
			return errors.Join(errors.New("nothing is written that is measured"), err)
		}
		return nil
	})
	cancel()
	if code := <-ended; code != cmdline.ExitInterrupted || !strings.Contains(out.String(), "\nwrite  1048576 ") || !strings.Contains(errs.String(), "mcblock bench: interrupted: the last line") {
		t.Errorf("%d, %s%s", code, out.String(), errs.String())
	}
	none()

	r.must("volume create vol --size 16M")
	var d *nbd.Device
	r.until("it is served", func() (err error) {
		d, err = r.open(r.hosts[1], "vol", identity.Files{})
		return err
	})
	want, p := []byte(strings.Repeat("keep me ", 512)), make([]byte, 4096)
	if err := d.WriteAt(t.Context(), want, 0, false); err != nil {
		t.Fatal(err)
	}
	if out := r.must("bench vol --runtime 30ms"); strings.Contains(out, "write") || !strings.Contains(out, "randread") || !strings.Contains(out, "T_TYPICAL") {
		t.Error(out)
	}
	if err := d.ReadAt(t.Context(), p, 0); err != nil || string(p) != string(want) {
		t.Errorf("a bench without --write has written, or %v", err)
	}
	if out := r.must("bench vol --rw write --write --runtime 30ms --tls"); !strings.Contains(out, "write") {
		t.Error(out)
	}
	if err := d.ReadAt(t.Context(), p, 0); err != nil || string(p) == string(want) {
		t.Errorf("a bench with --write has not written, or %v", err)
	}
	for args, want := range map[string]string{"vol --rw write": "allow that with --write", "--write": "is for a VOLUME", "--rw trim": "none of", "a b": "unexpected argument",
		"--runtime 0s": "--runtime", "--bs 1G": "--bs", "--bs 32M --iodepth 33 --size 64M --runtime 1ms": "in flight", "vol --bs 1000": "in blocks of 4096"} {
		if code, out, errs := call(t, append([]string{"bench"}, strings.Fields(args)...)...); code != 2 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %s%s", args, code, out, errs)
		}
	}
	if strings.Contains(r.must("volume list"), "bench-") {
		t.Error("a bench that was called wrongly has left a volume")
	}
}

// TestHandOver: a primary that ends makes another host the primary first.
func TestHandOver(t *testing.T) {
	r := newRig(t, 3)
	r.must("volume create vol --size 16M")
	volume := func() volumeView {
		var list []volumeView
		if err := json.Unmarshal([]byte(r.must("volume list -o json")), &list); err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		return list[0]
	}
	r.until("all act", func() error {
		if v := volume(); len(v.Acting) < 3 || v.Primary == "" {
			return fmt.Errorf("%+v", v)
		}
		return nil
	})
	r.must("volume promote vol h2")
	d, err := r.open(r.hosts[2], "vol", identity.Files{})
	if err != nil {
		t.Fatal(err)
	}
	var longest time.Duration
	var wg sync.WaitGroup
	ended := make(chan struct{})
	wg.Go(func() {
		for more := true; more; {
			select {
			case <-ended:
				more = false // the last one is after the end
			default:
			}
			begun := time.Now()
			if err := d.WriteAt(t.Context(), make([]byte, 4096), 0, false); err != nil {
				t.Error(err)
				return
			}
			longest = max(longest, time.Since(begun))
		}
	})
	before := volume()
	r.hosts[1].stop()
	if now := volume(); now.Primary == "" || now.Primary == "h2" || now.Epoch == before.Epoch {
		t.Errorf("the primary has ended: %+v, before %+v", now, before)
	}
	close(ended)
	wg.Wait()
	t.Logf("the longest write took %v", longest)
}

// TestSummary: the median of few requests is not above the higher percentiles.
func TestSummary(t *testing.T) {
	for n := 1; n <= 300; n++ {
		var times []time.Duration
		for i := range n {
			times = append(times, time.Duration(i+1)*time.Microsecond)
		}
		var r benchResult
		if r.summarize(times, time.Second); r.Min != 1 || r.Typical != float64((n+1)/2) || r.P99 < r.Typical || r.P999 < r.P99 || r.Max < r.P999 || n%100 == 0 && r.P99 != float64(n*99/100) {
			t.Errorf("%d: %+v", n, r)
		}
	}
}

// TestDeleteWaits: after a volume was deleted, no client opens it at any host, and writes to what is
// lost.
func TestDeleteWaits(t *testing.T) {
	r := newRig(t, 2)
	for range 4 {
		r.must("volume create vol --size 16M --hosts h1,h2")
		d, err := r.open(r.hosts[1], "vol", identity.Files{})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.WriteAt(t.Context(), make([]byte, 4096), 0, true); err != nil {
			t.Fatal(err)
		}
		r.must("volume delete vol --yes")
		for _, h := range r.hosts {
			if _, err := r.open(h, "vol", identity.Files{}); err == nil {
				t.Errorf("%s serves a volume that was deleted", h.cfg.Name)
			}
		}
	}
}
