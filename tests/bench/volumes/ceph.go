package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mcrdma/mcrdma/tests/bench/report"

	"github.com/mcrdma/mcrdma/tests/e2e/lab"
)

// A cluster is Ceph on hosts of the rack: a monitor, and an OSD each. Its clients are fio's, beside the first OSD.
type cluster struct {
	hosts     []*lab.HostNode
	processes []*lab.Process
}

// missing returns the programs that Ceph needs and that are not installed.
func missing(o *options) (list []string) {
	for _, p := range [][2]string{{"ceph-mon", "ceph-mon"}, {"ceph-osd", "ceph-osd"}, {"ceph", "ceph-common"}, {"rbd", "ceph-common"}, {"monmaptool", "ceph-common"}} {
		if _, err := exec.LookPath(p[0]); err != nil {
			list = append(list, fmt.Sprintf("%s (Debian: %s)", p[0], p[1]))
		}
	}
	if err := exec.Command(o.fio, "--enghelp=rbd").Run(); err != nil {
		list = append(list, "fio with its rbd engine")
	}
	return list
}

// newCluster starts Ceph with what a cluster of three OSDs has by default, but for authentication, which it has none of, the
// size of its disks, which are sparse files, and librbd's cache: with it a write is complete before any OSD has it.
func newCluster(ctx context.Context, dir string, hosts []*lab.HostNode) (*cluster, error) {
	c := &cluster{hosts: hosts}
	const fsid = "5a1b0e0c-6d0f-4b55-9c7e-3f0f4a2d8b11"
	mon := hosts[0].Addr.String()
	conf := fmt.Sprintf(`[global]
fsid = %s
mon host = %s
mon initial members = a
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 3
osd crush chooseleaf type = 0
run dir = %s
log file = %s/$name.log
rbd cache = false
[mon]
mon data = %[3]s/mon
[osd]
osd data = %[3]s/osd.$id
osd memory target = 1G
bluestore block size = 4G
`, fsid, mon, dir, dir)
	file := filepath.Join(dir, "ceph.conf")
	if err := errors.Join(os.WriteFile(file, []byte(conf), 0o600), os.Setenv("CEPH_CONF", file)); err != nil { // fio has no option for it
		return c, err
	}
	monmap := filepath.Join(dir, "monmap")
	if err := c.steps([][]string{
		{"monmaptool", "--create", "--add", "a", mon, "--fsid", fsid, monmap},
		{"ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap},
	}); err != nil {
		return c, err
	}
	if err := c.start(ctx, 0, "mon.a", "ceph-mon", "-i", "a", "--public-addr", mon); err != nil {
		return c, err
	}
	for i, h := range hosts {
		uuid, id, at := fmt.Sprintf("5a1b0e0c-6d0f-4b55-9c7e-00000000000%d", i), fmt.Sprint(i), h.Addr.String()
		if err := os.Mkdir(filepath.Join(dir, "osd."+id), 0o700); err != nil {
			return c, err
		}
		if err := c.steps([][]string{{"ceph", "osd", "new", uuid, id}, {"ceph-osd", "-i", id, "--mkfs", "--osd-uuid", uuid}}); err != nil {
			return c, err
		}
		if err := c.start(ctx, i, "osd."+id, "ceph-osd", "-i", id, "--public-addr", at, "--cluster-addr", at); err != nil {
			return c, err
		}
	}
	return c, c.steps([][]string{
		{"ceph", "osd", "pool", "create", "rbd", "32", "32"}, {"ceph", "osd", "pool", "application", "enable", "rbd", "rbd"}, // placement groups
		{"rbd", "create", "--size", fmt.Sprint(size >> 20), name},
	})
}

// steps runs programs, one after another. A busy monitor may not answer the first time.
func (c *cluster) steps(list [][]string) error {
	for _, s := range list {
		var out string
		var err error
		for range 3 {
			if out, err = c.hosts[0].Space.Run("timeout", append([]string{"60"}, s...)...); err == nil {
				break
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(s, " "), err, out)
		}
	}
	return nil
}

func (c *cluster) start(ctx context.Context, host int, name string, args ...string) error {
	ready := []string{"sh", "-c", `echo ready; exec "$@"`, "sh"} // it says nothing itself, and the next step waits for it
	p := &lab.Process{Name: name, Space: c.hosts[host].Space, Args: append(append(ready, args...), "-f")}
	c.processes = append(c.processes, p)
	return p.Start(ctx)
}

func (c *cluster) close() error { return lab.Each(c.processes, (*lab.Process).Stop) }

// write makes fio write with the primaries of all placement groups on the first host's OSD, or on
// all by turns. The first second does not count, because the OSDs agree on their primaries then.
func (c *cluster) write(o *options, together bool, args ...string) func(context.Context) (figure, error) {
	others := "1"
	if together {
		others = "0"
	}
	args = append([]string{"--ioengine=rbd", "--clientname=admin", "--pool=rbd", "--rbdname=" + name}, args...)
	return func(context.Context) (f figure, err error) {
		if err := c.steps([][]string{{"ceph", "osd", "primary-affinity", "osd.1", others}, {"ceph", "osd", "primary-affinity", "osd.2", others}}); err != nil {
			return f, err
		}
		if _, err := fio(o, c.hosts[0], time.Second, args...); err != nil {
			return f, err
		}
		return onLinks(c.hosts, 0, c.processes[1], func(h *lab.HostNode) (figure, error) { return fio(o, h, o.span, args...) })
	}
}

// besideCeph: 1 MiB writes, 8 at a time, to a volume and to Ceph, on links of the same rate.
func besideCeph(ctx context.Context, r *rack, o *options) (err error) {
	dir, err := os.MkdirTemp(r.dir, "ceph-")
	if err != nil {
		return err
	}
	c, err := newCluster(ctx, dir, r.lab.Hosts[6:]) // of mcbench, which is idle
	defer func() {
		if err = errors.Join(err, c.close(), os.RemoveAll(dir)); err != nil {
			err = fmt.Errorf("%w\n%s", err, lab.Logs(c.processes...))
		}
	}()
	if err != nil {
		return err
	}
	args := []string{"--rw=write", "--bs=1M", "--iodepth=8"}
	all := []*contestant{
		{name: "volume", run: r.volumes[0].fio(o, args...)},
		{name: "Ceph, all primaries beside the client", run: c.write(o, true, args...)},
		{name: "Ceph as it comes", run: c.write(o, false, args...)},
	}
	m, err := contest(ctx, o.rounds, all)
	if err != nil {
		return err
	}
	fmt.Printf("\nwrites of 1 MiB, 8 at a time, beside Ceph:\n")
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "contestant\tMb/s of payload\tclient's link x payload\tall links x payload\tprocessor s/GiB\t")
	for i, a := range all {
		fmt.Fprintf(w, "%s\t%.1f\t%.3f\t%.3f\t%.2f\t\n", a.name, m[i].rate/1e6, m[i].uplink, m[i].links, m[i].processor)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Println(report.Verdict("volume's rate to that of Ceph with all primaries beside the client", m[0].rate/m[1].rate, 1.8, "", true))
	return nil
}
