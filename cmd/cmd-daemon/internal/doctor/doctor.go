// Package doctor diagnoses a host's daemon: what is wrong, why, and what to do.
//
// The rules are pure: Diagnose turns collected facts into findings. Collect gathers them from this
// host and its neighbors; the command gathers the daemon's own report.
package doctor

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	mcrdmav1 "github.com/mcrdma/mcrdma/api/mcrdma/v1"
	"github.com/mcrdma/mcrdma/cmd/internal/findings"
	"github.com/mcrdma/mcrdma/internal/connmgr/config"
	"github.com/mcrdma/mcrdma/internal/identity"
	"github.com/mcrdma/mcrdma/pkg/qp"
)

// Facts are the collected facts. Facts that were not collected are zero.
type Facts struct {
	Now    time.Time
	Config *config.Config

	// The daemon's answer on its socket; DaemonErr if it did not answer.
	Daemon    *mcrdmav1.GetDaemonResponse
	DaemonErr error

	Certificate *Certificate // nil: plain text
	Links       []Link       // to other daemons and to the switch's agent
	Host        Host
	Device      *Device // nil: not tried
	Disk        *Disk   // with the state file; nil: not known
}

// A Certificate is this host's certificate.
type Certificate struct {
	Err         error // then nothing else is known
	Own         identity.Identity
	From, Until time.Time
	CAUntil     time.Time // of the last CA; zero: not known
	KeyMode     os.FileMode
}

// A Link is an attempt to reach a daemon or an agent.
type Link struct {
	What    string // "daemon of host h2", "agent of switch torA"
	Address string
	Err     error
	Own     bool // it is the address of the daemon itself
}

// A Host is the state of this machine.
type Host struct {
	Addresses []Address // nil: not checked
	MemLock   uint64    // soft limit of this process, bytes
	Unlimited bool      // of locked memory
	RawNet    bool      // CAP_NET_RAW
	Busy      bool      // more tasks are running than there are processors
	Ordinary  bool      // the daemon's priority is that of other processes, or lower
}

// An Address is an address of an interface.
type Address struct {
	Prefix    netip.Prefix
	Interface string
	MTU       int
	Up        bool
}

// A Device is an attempt to open the RDMA device.
type Device struct {
	Err  error
	Attr qp.DeviceAttr
}

// A Disk is a file system, as it is mounted.
type Disk struct {
	ReadOnly bool
	Free     uint64 // bytes, for others than root
}

// Abbreviations of severities.
const (
	note    = findings.Note
	warning = findings.Warning
	failure = findings.Error
)

// soon is how long before expiry to renew certificates.
const soon = 14 * 24 * time.Hour

// Diagnose applies all rules. Findings are sorted by severity, the worst first.
func Diagnose(f Facts) []findings.Finding {
	d := &diagnosis{Facts: f}
	d.daemon()
	if f.Config != nil {
		d.certificate()
		d.address()
		d.device()
		d.disk()
		d.memory()
		d.times()
		d.priority()
	}
	d.links()
	return d.Sorted()
}

type diagnosis struct {
	Facts
	findings.List
}

// daemon checks the daemon's own report.
func (d *diagnosis) daemon() {
	if d.DaemonErr != nil {
		d.Add(failure, "daemon", "does not answer", d.DaemonErr.Error(), `start it: cmd-daemon run --config FILE, or systemctl start cmd-daemon`)
		return
	}
	if d.Daemon == nil {
		return
	}
	who := "daemon of " + d.Daemon.GetHost()
	for i, p := range d.Daemon.GetProblems() {
		switch {
		case strings.HasPrefix(p, "switch "+d.Daemon.GetSwitch().GetName()+": "): // it is reported below, with what to do
		case mcrdmav1.ProblemOf(d.Daemon.GetProblemKinds(), i) == mcrdmav1.ProblemKind_PROBLEM_KIND_STATE_FILE: // it takes no groups any more
			d.Add(failure, who, p, "", "")
		default:
			d.Add(warning, who, p, "", "")
		}
	}
	if s := d.Daemon.GetSwitch(); s != nil && !s.GetReachable() && !d.cut(s.GetAgent()) {
		d.Add(failure, "switch "+s.GetName(), "its agent at "+s.GetAgent()+" is not reachable for the daemon", s.GetError(),
			"see that switchctl agent runs there; "+d.stake(s.GetAgent()))
	}
	if s := d.Daemon.GetSwitch(); s.GetNotReady() != "" {
		d.Add(failure, "switch "+s.GetName(), "its agent at "+s.GetAgent()+" takes no groups", s.GetNotReady(),
			"see that the switch runs and its agent reaches it (switchctl doctor); "+d.stake(s.GetAgent()))
	}
	for _, p := range d.Daemon.GetPeers() {
		if s := p.GetState(); s != "ok" && s != "" && !d.cut(p.GetDaemon()) {
			sev := cmp.Or(map[bool]findings.Severity{true: failure}[p.GetShared() > 0], warning)
			do := "see that cmd-daemon runs there, and with switchctl doctor that the network leads there; "
			if s == "untrusted" { // it does not trust this host
				do = "correct the certificates, here or there; "
			}
			d.Add(sev, "host "+cmp.Or(p.GetHost(), p.GetAddress()), "its daemon at "+p.GetDaemon()+" is "+s, p.GetError(), do+d.stake(p.GetDaemon()))
		}
	}
	lost := 0
	for _, s := range d.Daemon.GetSessions() {
		if s.GetLost() {
			lost++
		}
	}
	if lost > 0 {
		d.Add(note, who, fmt.Sprintf("%d of %d applications have not come back since the daemon was restarted", lost, len(d.Daemon.GetSessions())),
			"their groups end when the grace period ends", "")
	}
	if c := d.Config; c != nil && (c.Name != d.Daemon.GetHost() || c.Address.String() != d.Daemon.GetAddress()) {
		d.Add(failure, "daemon", fmt.Sprintf("the one that answers is host %s, %s; the configuration is of host %s, %v", d.Daemon.GetHost(), d.Daemon.GetAddress(), c.Name, c.Address),
			"it runs with another configuration, or was not restarted since this one was changed", "restart it, or name its configuration (--config)")
	}
}

// cut reports whether this host cannot reach an address itself: then links reports it.
func (d *diagnosis) cut(address string) bool {
	return slices.ContainsFunc(d.Links, func(l Link) bool { return l.Address == address && l.Err != nil })
}

// stake returns what depends on the agent or daemon at an address, as far as the daemon knows.
func (d *diagnosis) stake(address string) string {
	if s := d.Daemon.GetSwitch(); s != nil && s.GetAgent() == address {
		return "meanwhile hosts relay, and groups of mode require are refused"
	}
	for _, p := range d.Daemon.GetPeers() {
		if p.GetDaemon() == address {
			return fmt.Sprintf("groups and memberships that depend on it: %d", p.GetShared())
		}
	}
	return ""
}

// certificate checks this host's certificate, and the clock against it.
func (d *diagnosis) certificate() {
	c, cfg := d.Certificate, d.Config
	const who = "certificate"
	switch {
	case c == nil:
		if !cfg.Insecure {
			return // loopback
		}
		d.Add(warning, "tls", "all traffic is in plain text, and no identity is verified", "insecure: true", "cmd-daemon init makes certificates")
		return
	case c.Err != nil:
		d.Add(failure, who, "cannot be used", c.Err.Error(), "correct tls in the configuration; cmd-daemon init makes certificates")
		return
	}
	if !c.Own.Is(identity.Host) || c.Own.Name != cfg.Name || !c.Own.Owns(cfg.Address) {
		d.Add(failure, who, fmt.Sprintf("%s is for %v", cfg.TLS.Cert, c.Own), fmt.Sprintf("this is host:%s %v", cfg.Name, cfg.Address),
			"issue one for it, or correct name and address")
	}
	at := func(t time.Time) string { return t.UTC().Format(time.DateTime) + " UTC" }
	const renew = "renew it; the daemon takes it up by itself (cmd-daemon init --renew for a lab's)"
	switch {
	case d.Now.Before(c.From):
		d.Add(failure, who, "is valid only from "+at(c.From)+" on", fmt.Sprintf("by this host's clock it is %s: the clock is slow, by %v at least, or the issuer's is fast", at(d.Now), c.From.Sub(d.Now).Round(time.Second)),
			"set the clock (NTP)")
	case d.Now.After(c.Until):
		d.Add(failure, who, "has ended, on "+at(c.Until), "or this host's clock is fast: it says "+at(d.Now), renew)
	case identity.EndsSoon(c.From, c.Until, d.Now, soon):
		d.Add(warning, who, "ends soon, on "+at(c.Until), "", renew)
	}
	switch {
	case c.CAUntil.IsZero():
	case d.Now.After(c.CAUntil):
		d.Add(failure, who, "that of the CA has ended, on "+at(c.CAUntil), "", "make another CA, and give its certificate to all before the new certificates")
	case c.CAUntil.Sub(d.Now) < 4*soon:
		d.Add(warning, who, "that of the CA ends on "+at(c.CAUntil), "", "make another CA, and give its certificate to all before the new certificates")
	}
	if c.KeyMode&0o077 != 0 {
		d.Add(warning, who, fmt.Sprintf("others can read the key %s (mode %#o)", cfg.TLS.Key, c.KeyMode.Perm()), "its holder can act as this host", "chmod 600 "+cfg.TLS.Key)
	}
}

// onHost reports whether the device uses an address of this host, instead of its own network.
func onHost(device string) bool {
	driver, where, _ := strings.Cut(device, ":")
	where, _, _ = strings.Cut(where, "?")
	_, err := netip.ParseAddr(where)
	return driver != "softroce" || err == nil
}

// address checks the interface with the device's address.
func (d *diagnosis) address() {
	cfg := d.Config
	if d.Host.Addresses == nil || !onHost(cfg.Device) {
		return
	}
	subject := "address " + cfg.Address.String()
	i := slices.IndexFunc(d.Host.Addresses, func(a Address) bool {
		return a.Prefix.Addr() == cfg.Address || a.Prefix.Addr().IsLoopback() && a.Prefix.Contains(cfg.Address)
	})
	if i < 0 {
		var have []string
		for _, a := range d.Host.Addresses {
			if a.Prefix.Addr().Is4() && !a.Prefix.Addr().IsLoopback() {
				have = append(have, fmt.Sprintf("%v (%s)", a.Prefix.Addr(), a.Interface))
			}
		}
		d.Add(failure, subject, "is on no interface of this host", "there are "+cmp.Or(strings.Join(have, ", "), "none but loopback addresses"),
			"correct address in the configuration, or give it to an interface: ip address add")
		return
	}
	a := d.Host.Addresses[i]
	if !a.Up {
		d.Add(failure, "interface "+a.Interface, "is down", "it has the device's address, "+cfg.Address.String(), "ip link set "+a.Interface+" up")
	}
	switch mtu := qp.MTUFor(a.MTU); {
	case mtu < 1024:
		d.Add(failure, "interface "+a.Interface, fmt.Sprintf("its MTU, %d, leaves room for %d bytes of payload in a packet", a.MTU, mtu),
			"switches and other hosts expect 1024 or more", "ip link set "+a.Interface+" mtu 1500, or better 4200 or more, on all hosts and switches alike")
	case mtu < 4096:
		d.Add(note, "interface "+a.Interface, fmt.Sprintf("its MTU, %d, allows packets of %d bytes of payload", a.MTU, mtu),
			"", "with an MTU of 4200 or more on all hosts and switches, packets are of 4096 bytes, and fewer")
	}
}

// device checks whether the device can be opened.
func (d *diagnosis) device() {
	v := d.Device
	if v == nil {
		return
	}
	subject := "device " + d.Config.Device
	switch {
	case errors.Is(v.Err, qp.ErrAddrInUse):
		d.Add(note, subject, "is in use", v.Err.Error(), "that is as it should be if an application of this host is running; only one can have it")
	case v.Err != nil:
		d.Add(failure, subject, "cannot be used", v.Err.Error(), "correct device in the configuration; without a device applications are relayed to over TCP only")
	case v.Attr.Addr.IsValid() && v.Attr.Addr != d.Config.Address:
		d.Add(failure, subject, fmt.Sprintf("has the address %v, and the configuration says %v", v.Attr.Addr, d.Config.Address), "", "correct address or device in the configuration")
	}
	if v.Err == nil && v.Attr.Driver == "softroce" && onHost(d.Config.Device) && !d.Config.Address.IsLoopback() && !d.Host.RawNet {
		d.Add(note, subject, "cannot check ICRCs of packets from hardware", "you have no CAP_NET_RAW; applications without it have the same limit",
			"give it to applications that talk to real NICs: setcap cap_net_raw+ep PROGRAM")
	}
}

// room is far more than the state file grows by with a group.
const room = 1 << 20

// disk checks whether the state file can be written. The daemon itself notices that it cannot when it
// next writes it.
func (d *diagnosis) disk() {
	subject := "state " + d.Config.State
	switch {
	case d.Disk == nil:
	case d.Disk.ReadOnly:
		d.Add(failure, subject, "is on a read-only file system", "a daemon does not start with it, and one that runs takes no groups",
			"make it writable, or name another file by state in the configuration; then restart the daemon")
	case d.Disk.Free < room:
		d.Add(warning, subject, fmt.Sprintf("is on a file system with %d KiB left", d.Disk.Free>>10),
			"once the file cannot be written, the daemon takes no groups until it is restarted", "make room there")
	}
}

// lockable is less than any application registers.
const lockable = 64 << 20

// memory checks the limit of locked memory, which NICs need.
func (d *diagnosis) memory() {
	h := d.Host
	if !strings.HasPrefix(d.Config.Device, "ibverbs:") || h.Unlimited || h.Addresses == nil {
		return
	}
	sev := note
	if h.MemLock < lockable {
		sev = warning
	}
	d.Add(sev, "RLIMIT_MEMLOCK", fmt.Sprintf("is %d KiB here", h.MemLock>>10), "registered memory is locked, and registering more fails",
		"LimitMEMLOCK=infinity in the units of applications, or memlock in /etc/security/limits.conf")
}

// retryBudget is how long a sender's queue pair waits for an acknowledgment, with the longest
// timeout and the retries that the library sets.
const retryBudget = 2 * time.Second

// times checks whether dead peers are detected in time.
func (d *diagnosis) times() {
	if b := d.Config.Beat; b.DeadAfter/4 > retryBudget-time.Second { // a quarter, when packets are in flight
		d.Add(warning, "beat.dead_after", fmt.Sprintf("is %v", b.DeadAfter), fmt.Sprintf("a sender's queue pair gives up after about %v: it fails before a dead receiver is taken out, and the group has to be formed anew", retryBudget),
			"make it 1s, the default")
	}
}

// priority checks whether a busy machine may delay the daemon.
func (d *diagnosis) priority() {
	if d.Host.Busy && d.Host.Ordinary {
		d.Add(note, "priority of the daemon", "is that of other processes, and this machine is busy", "it answers others late, and they wait longer before they take a silent host for dead",
			"Nice=-10 and CPUWeight=1000 in its unit, as in the one that comes with it")
	}
}

// links checks which peers this host cannot reach itself.
func (d *diagnosis) links() {
	for _, l := range d.Links {
		if l.Err == nil || l.Own && d.DaemonErr != nil { // it is reported elsewhere
			continue
		}
		sev, do := failure, "see that it runs, that the address is right, and that no firewall is in the way"
		if l.Own {
			do = "start the daemon, or see why it ended: journalctl -u cmd-daemon"
			sev = warning
		}
		if errors.Is(l.Err, identity.ErrUntrusted) || errors.Is(l.Err, identity.ErrMismatch) || errors.Is(l.Err, errRejected) {
			do = "compare the certificates of both, their CA, and the clocks"
		}
		if errors.Is(l.Err, identity.ErrWantsTLS) || errors.As(l.Err, new(tls.RecordHeaderError)) {
			do = "set tls in the configurations of both, or of neither (cmd-daemon init makes certificates)"
		}
		if at := d.stake(l.Address); at != "" {
			do += "; " + at
		}
		d.Add(sev, l.What, "cannot be reached at "+l.Address, l.Err.Error(), do)
	}
}
