package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	replicav1 "github.com/mcrdma/mcrdma/api/replica/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/cli"
	"github.com/mcrdma/mcrdma/cmd/internal/findings"
	"github.com/mcrdma/mcrdma/internal/grpcclient"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
)

// Limits for warnings.
const (
	certificateSoon = 14 * 24 * time.Hour
	littleFree      = 0.15 // of the file system with logs and stores
	hardlyFree      = 0.03
	slowly          = 500 * time.Millisecond // for an answer of etcd
	longestWait     = 3 * time.Second        // of a request, if one host fails: see docs/volumes.md
)

// facts are the doctor's facts.
type facts struct {
	now                 time.Time
	certificate, secret error // errors of this host's certificate, and of its key
	daemon              error // why the daemon does not answer; nil: it answers
	endpoints           string
	configured          []string // the members of etcd in this host's configuration, as "name at address"
	members             []etcd.Member
	noMember            error         // none answers
	took                time.Duration // of etcd, for an answer
	state               osdmap.State
	away                error // etcd has no majority
	hosts               map[core.ID]told
	self                string // this host's name
	number              core.ID
}

// A diagnosis collects findings.
type diagnosis struct {
	*facts
	findings.List
}

// diagnose returns the findings, the worst first.
func diagnose(f *facts) []findings.Finding {
	d := &diagnosis{facts: f}
	d.thisHost()
	d.etcd()
	for _, h := range f.state.Hosts {
		d.host(h)
	}
	for _, v := range f.state.Volumes {
		d.volume(v)
	}
	return d.Sorted()
}

func (d *diagnosis) thisHost() {
	if d.certificate != nil {
		d.Add(findings.Error, "certificate", "other hosts do not accept this one's", d.certificate.Error(), "issue one for this host; it counts from the next connection on")
	}
	if d.secret != nil {
		d.Add(findings.Warning, "certificate", "its key is not secret", d.secret.Error(), "take the right to read it from others, and issue another certificate if they may have copied it")
	}
	if d.daemon != nil {
		d.Add(findings.Error, "daemon", "this host's cmd-daemon does not answer", d.daemon.Error(), "systemctl start cmd-daemon, or see its log; \"cmd-daemon doctor\" says more")
	}
}

func (d *diagnosis) etcd() {
	if d.noMember != nil {
		d.Add(findings.Error, "etcd", "no member answers at "+d.endpoints, d.noMember.Error(),
			d.member(d.noMember, "start "+d.program()+" on the hosts that run it")+"; volumes go on as they are")
		return
	}
	if d.took > slowly {
		d.Add(findings.Warning, "etcd", fmt.Sprintf("it is slow: an answer takes %.1f s", d.took.Seconds()),
			"when a host fails, clients wait for several answers, and commands may fail: connecting takes several times as long",
			"look at the network between this host and etcd's members (ping), and at their disks and processors; for commands until then: --timeout 1m")
	}
	var down []string
	var why error // of the first of them
	for _, m := range d.members {
		switch {
		case m.Err != nil && m.Version == "":
			down = append(down, cmp.Or(m.Name, m.Peer)) // a member says its name when it starts
			why = cmp.Or(why, m.Err)
		case m.Err != nil && d.away == nil: // otherwise it reports that it has no leader
			d.Add(findings.Warning, "etcd", m.Name+" answers that something is wrong", m.Err.Error(), "see the log of "+d.program()+" there")
		}
	}
	need := len(d.members)/2 + 1
	switch {
	case d.away != nil && len(d.members)-len(down) >= need:
		d.Add(findings.Error, "etcd", fmt.Sprintf("it serves nothing, though %d of %d members answer", len(d.members)-len(down), len(d.members)), d.away.Error(),
			"see the logs of "+d.program()+" there: its members may not reach each other, or require a user, which mcblock does not have")
	case d.away != nil:
		d.Add(findings.Error, "etcd", fmt.Sprintf("it has no majority: %d of %d members answer, and %d must", len(d.members)-len(down), len(d.members), need), d.away.Error(),
			"start those that are down: "+strings.Join(down, ", "))
	case len(down) > 0:
		do := "start " + d.program() + " there"
		if len(d.configured) > 0 { // others' clusters are not mcblock's to change
			do += "; a member whose disk is lost: mcblock etcd replace"
		}
		d.Add(findings.Warning, "etcd", fmt.Sprintf("%s down: %s; it works with %d of %d", cli.Plural(len(down), "member"), strings.Join(down, ", "), need, len(d.members)),
			why.Error(), d.member(why, do))
	}
	var has []string
	for _, m := range d.members {
		if m.Name != "" { // otherwise it has not started yet
			has = append(has, memberAt(m.Name, m.Peer))
		}
	}
	slices.Sort(has)
	if len(d.configured) > 0 && len(has) == len(d.members) && !slices.Equal(has, d.configured) {
		d.Add(findings.Warning, "etcd", "this host's configuration has other members than etcd", fmt.Sprintf("etcd has %s, and etcd.members %s", cli.All(has), cli.All(d.configured)),
			"write what etcd has into mcblock.yaml of all hosts, for their next start")
	}
	for _, f := range d.state.Faults {
		d.Add(findings.Error, "etcd", "a record cannot be used", f.Error(), "update mcblock here if a newer one wrote it; else restore that record from a copy of etcd")
	}
	for _, h := range d.state.Hosts {
		if (h.Name == d.self) != (h.ID == d.number) {
			d.Add(findings.Error, "host "+d.self, "its name and number are not those that etcd has", fmt.Sprintf("it has the number %d in mcblock.yaml, and in etcd host %s has the number %d", d.number, h.Name, h.ID),
				"give it in mcblock.yaml the name and number that it had, or ones that no host ever had")
			return
		}
	}
	if d.away == nil && !slices.ContainsFunc(d.state.Hosts, func(h osdmap.Host) bool { return h.Name == d.self }) {
		d.Add(findings.Error, "host "+d.self, "no volume can have a copy here", "mcblock serve has not reached this etcd yet", "systemctl start mcblock; if it runs, its log says what it waits for")
	}
}

// program is what etcd's members run in.
func (d *diagnosis) program() string {
	return cli.Either(len(d.configured) > 0, "mcblock", "etcd")
}

// member returns what to do about a member of etcd: do, unless it runs, and a certificate is the reason.
func (d *diagnosis) member(why error, do string) string {
	// Etcd's client has no type for this.
	if text := why.Error(); strings.Contains(text, "x509: ") || strings.Contains(text, "tls: ") {
		return "renew or replace the certificate that is not accepted: a member's has its address, and one CA issues members' and hosts'; etcd reads the CA only once, when mcblock begins"
	}
	return do
}

func memberAt(name, peer string) string { return name + " at " + peer }

// host checks a host, except its volumes.
func (d *diagnosis) host(h osdmap.Host) {
	name, t := "host "+h.Name, d.hosts[h.ID]
	if t.err != nil {
		do, s := "see whether it runs and can be reached at "+h.Peer+"; on it: systemctl status mcblock, mcblock doctor", findings.Error
		switch {
		case grpcclient.Untrusted(t.err):
			do = "renew or replace the certificate that is not accepted (cmd-daemon init --renew for a lab's); mcblock reads it at the next connection"
		case h.Name == d.self:
			do = "systemctl start mcblock; journalctl -u mcblock says why it has ended"
		case !d.needed(h):
			do, s = "nothing, if it is gone for good: it has no place in a volume; else "+do, findings.Note
		}
		d.Add(s, name, "its mcblock does not answer", cli.Clean(t.err.Error()), do)
		return
	}
	if t.GetHostResponse == nil {
		return
	}
	if free := float64(t.GetFreeBytes()) / float64(max(t.GetDataBytes(), 1)); t.GetDataBytes() > 0 && free < littleFree {
		s, what := findings.Warning, "its disk is nearly full"
		if free < hardlyFree {
			s, what = findings.Error, "its disk is full, or will be at any moment"
		}
		d.Add(s, name, what, fmt.Sprintf("%.1f %% are free where its data is; copies end on a host whose disk is full", 100*free), "make room, or a larger disk; a trim by the volumes' clients (fstrim) gives space back")
	}
	if u := t.GetCertificateUntil(); u != nil && u.AsTime().Sub(d.now) < certificateSoon {
		s := findings.Warning
		if u.AsTime().Before(d.now) {
			s = findings.Error
		}
		d.Add(s, name, "its certificate is valid until "+u.AsTime().Format(time.DateTime), "from then on no other host, and no client, accepts it",
			"renew it (cmd-daemon init --renew for a lab's), and replace the files; mcblock reads them at the next connection")
	}
	if why := t.GetDaemon(); why != "" && h.Name != d.self {
		d.Add(findings.Error, name, "its cmd-daemon does not answer", cli.Clean(why), "systemctl start cmd-daemon there, or see its log; until then it takes part in no new group")
	}
	if t.GetOldCa() {
		d.Add(findings.Warning, name, "its file of the CA was changed after its mcblock began", "etcd's members, and mcblock as their client, read it only when mcblock begins",
			"systemctl restart mcblock there, one host after the other, before certificates of another CA are used, or one is removed from the file")
	}
	if away := t.GetAway(); away != "" && d.away == nil {
		d.Add(findings.Error, name, "etcd does not answer it", cli.Clean(away), "look at the network between it and the members of etcd, and at its mcblock.yaml")
	}
	for _, v := range t.GetVolumes() {
		if id := v.GetVolume(); d.state.Volume(id) == nil && !slices.Contains(d.state.Deleted, id) && len(d.state.Faults) == 0 && d.away == nil {
			d.Add(findings.Error, name, "it has a copy of volume "+d.volumeName(id)+", of which etcd has no record, nor that it was deleted", "etcd was restored from an old copy, or is another cluster",
				"restore a newer copy of etcd, or connect to the right one; until then the volume goes on as it is")
		}
	}
	for _, b := range t.GetBroken() {
		what := "it cannot open its copy of volume %s"
		if v := d.state.Volume(b.GetVolume()); v != nil && !slices.Contains(v.Volume.Hosts, h.ID) {
			what = "it has a copy of volume %s, in which it has no place"
		}
		d.Add(findings.Error, name, fmt.Sprintf(what, d.volumeName(b.GetVolume())), cli.Clean(b.GetError()), "repair what that says, and start its mcblock again")
	}
}

// needed reports whether a volume has, or may have, a place for a host, or etcd a member there. Others' records stay after they were
// replaced.
func (d *diagnosis) needed(h osdmap.Host) bool {
	return len(d.state.Faults) > 0 || slices.ContainsFunc(d.state.Volumes, func(v osdmap.VolumeState) bool { return slices.Contains(v.Volume.Hosts, h.ID) }) ||
		slices.ContainsFunc(d.members, func(m etcd.Member) bool { return m.Name == h.Name })
}

func (d *diagnosis) volumeName(id uint64) string {
	if v := d.state.Volume(id); v != nil {
		return v.Volume.Name
	}
	return fmt.Sprintf("%016x", id)
}

// knows returns a host that knows a newer map of a volume than etcd has; 0: none.
func (f *facts) knows(s osdmap.VolumeState) core.ID {
	for _, id := range s.Volume.Hosts {
		if f.part(id, s.Volume.ID).GetEpoch() > s.Map.Epoch {
			return id
		}
	}
	return 0
}

// part returns what a host reports about its replica of a volume; nil: nothing.
func (f *facts) part(id core.ID, volume uint64) *replicav1.VolumeStatus {
	return ofVolume(f.hosts[id].GetVolumes(), volume)
}

// broken reports that a host cannot open its copy of a volume.
func (d *diagnosis) broken(id core.ID, volume uint64) bool {
	return ofVolume(d.hosts[id].GetBroken(), volume) != nil
}

// What to say of a host that has not opened its copy yet.
const (
	slowOpening    = "a host opens, closes and removes its copies one after another, which takes longer after it was killed"
	waitForOpening = "wait, and look again; if it lasts, see the log of mcblock there"
)

// opening reports that a host answers, and has not opened its copy of a volume yet.
func (d *diagnosis) opening(id core.ID, volume uint64) bool {
	t := d.hosts[id]
	return t.err == nil && t.GetHostResponse != nil && d.part(id, volume) == nil && !d.broken(id, volume)
}

func (d *diagnosis) anyBroken(s osdmap.VolumeState) bool {
	return slices.ContainsFunc(s.Map.Acting, func(x core.Member) bool { return d.broken(x.ID, s.Volume.ID) })
}

func (d *diagnosis) volume(s osdmap.VolumeState) {
	v, m := s.Volume, s.Map
	name := "volume " + v.Name
	if id := d.knows(s); id != 0 {
		d.Add(findings.Error, name, "etcd has an older map of it than its hosts",
			fmt.Sprintf("etcd has epoch %d, and %s knows epoch %d: etcd was restored from an old copy, or is another cluster", m.Epoch, d.state.HostName(id), d.part(id, v.ID).GetEpoch()),
			"restore a newer copy of etcd; until then the volume goes on as it is, but its map cannot change, and a host that starts again does not serve it")
		d.oldest(name, s)
		return
	}
	var head uint64
	var missing []core.ID // acting hosts that do not answer, or whose copies have ended
	for _, x := range m.Acting {
		if p := d.part(x.ID, v.ID); p != nil && p.GetFailure() == "" {
			head = max(head, p.GetHead())
		} else {
			missing = append(missing, x.ID)
		}
	}
	if p := d.part(m.Primary.ID, v.ID); !p.GetLeased() {
		d.waits(name, s, missing, p)
	}
	d.oldest(name, s)
	for _, id := range v.Hosts {
		host, p := d.state.HostName(id), d.part(id, v.ID)
		acting := m.Holds(id)
		switch {
		case d.broken(id, v.ID): // as for the host
			if !acting {
				d.Add(findings.Error, name, fmt.Sprintf("it is degraded: %s has no copy that counts", host), "it cannot open its copy", "as for host "+host)
			}
		case p.GetFailure() != "":
			d.Add(findings.Error, name, "the copy on "+host+" has ended", cli.Clean(p.GetFailure()),
				"repair what that says (make room on a full disk), and then on "+host+": systemctl restart mcblock; until then the copy stays as it is")
		case acting:
		case d.opening(id, v.ID):
			d.Add(findings.Warning, name, fmt.Sprintf("it is degraded: %s has not opened its copy yet", host), slowOpening, waitForOpening)
		case p == nil:
			d.Add(findings.Error, name, fmt.Sprintf("it is degraded: %s has no copy that counts", host), "its mcblock does not answer",
				fmt.Sprintf("start mcblock on %s: the copy is brought up to date by itself", host))
		case p.GetBackfilling():
			d.Add(findings.Warning, name, fmt.Sprintf("it is degraded, and is copied to %s: %.0f %%", host, 100*float64(p.GetCopiedBytes())/float64(v.Size)), host+" had no copy before, or the log does not go back to when it left", "wait; writes go there already")
		default:
			d.Add(findings.Warning, name, fmt.Sprintf("it is degraded: %s is being brought up to date, %s behind", host, cli.Plural(int(head-min(head, p.GetHead())), "write")), //nolint:gosec // to be shown
				"it was away", "wait; if it lasts, see the logs of mcblock on "+host+" and the primary")
		}
	}
}

// waits returns why a volume is not served; p is the report of its primary.
func (d *diagnosis) waits(name string, s osdmap.VolumeState, missing []core.ID, p *replicav1.VolumeStatus) {
	m, up, names := s.Map, len(s.Map.Acting)-len(missing), d.state.HostNames(missing)
	switch {
	case d.away != nil || d.noMember != nil: // the facts may be old
	case len(missing) > 0 && !slices.ContainsFunc(missing, func(id core.ID) bool { return !d.opening(id, s.Volume.ID) }):
		d.Add(findings.Warning, name, fmt.Sprintf("it is not served yet: %s %s not opened it yet", cli.All(names), cli.Either(len(missing) == 1, "has", "have")), slowOpening, waitForOpening)
	case d.restarted(s) && len(missing) > 0:
		d.Add(findings.Error, name, "it waits for "+cli.All(names), "all its acting hosts have started again since it was served, or are away: what was written last may be on those that are missing alone",
			"start mcblock there, or repair what keeps the volume from being opened; a host whose disk is lost: mcblock volume lost "+s.Volume.Name+" HOST")
	case d.copiesLost(s) != "":
		d.Add(findings.Error, name, "it waits for copies that acting hosts no longer have", d.copiesLost(s),
			"bring their disks back; or, for each of these hosts, mcblock volume lost "+s.Volume.Name+" HOST --lose-data: the volume then goes on with the most recent of the other copies, and the host receives it")
	case m.Since == 0 && len(missing) == 0 || p != nil && p.GetFailure() == "" && p.GetState() != "active" && up >= m.MinSize:
		d.Add(findings.Warning, name, "it is not served yet", fmt.Sprintf("its primary is being chosen, or prepares (%s)", cli.Either(p == nil, "none yet", p.GetState())), "wait a few seconds, and look again")
	case up < m.MinSize:
		d.Add(findings.Error, name, fmt.Sprintf("it waits: %d of its acting hosts answer, and min_size is %d", up, m.MinSize), "fewer copies than that take no writes; clients wait, and nothing is lost",
			"start mcblock on "+strings.Join(names, ", ")+cli.Either(d.anyBroken(s), "; where it runs and cannot open its copy, do as for that host", ""))
	default:
		d.Add(findings.Error, name, "it is not served", fmt.Sprintf("its primary, %s, does not answer, or has no leases", cli.Either(m.Since == 0, "not chosen yet", d.state.HostName(m.Primary.ID))),
			"another takes over within seconds; if none does, see the logs of mcblock on its hosts")
	}
}

// oldest reports requests that have waited longer than they do when a host fails.
func (d *diagnosis) oldest(name string, s osdmap.VolumeState) {
	var oldest time.Duration
	at := ""
	for _, id := range s.Volume.Hosts {
		if a := d.part(id, s.Volume.ID).GetOldestRequest().AsDuration(); a > max(oldest, longestWait) {
			oldest, at = a, d.state.HostName(id)
		}
	}
	if at == "" {
		return
	}
	primary := d.state.HostName(s.Map.Primary.ID)
	why := cli.Clean(d.part(s.Map.Primary.ID, s.Volume.ID).GetWaits())
	if why == "" && d.hosts[s.Map.Primary.ID].GetDaemon() != "" {
		why = "its cmd-daemon does not answer"
	}
	d.Add(findings.Error, name, fmt.Sprintf("a request of a client of %s has waited for %v", at, oldest.Round(time.Second/10)),
		cli.Either(why == "", "its primary, "+primary+", does not say why", "its primary, "+primary+", says: "+why),
		"see to the disk, the network, mcblock and cmd-daemon of the hosts that it names; if it names none, mcblock volume promote makes another host the primary")
}

// restarted reports that no acting host still has in memory what it had when the volume was last
// served.
func (d *diagnosis) restarted(s osdmap.VolumeState) bool {
	return s.Map.Since != 0 && !slices.ContainsFunc(s.Map.Acting, func(x core.Member) bool {
		p := d.part(x.ID, s.Volume.ID)
		return p != nil && p.GetState() != core.Stray.String()
	})
}

// copiesLost returns what an acting host says of acting hosts whose copies are new, or incomplete, so that none becomes the
// primary.
func (d *diagnosis) copiesLost(s osdmap.VolumeState) string {
	for _, x := range s.Map.Acting {
		if p := d.part(x.ID, s.Volume.ID); p.GetState() == core.Stray.String() && p.GetWaits() != "" {
			return cli.Clean(p.GetWaits())
		}
	}
	return ""
}
