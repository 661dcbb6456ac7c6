package lab

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/mcrdma/mcrdma/internal/identity"
)

// A SwitchNode is a switch with its agent.
type SwitchNode struct {
	Name  string
	Space *Space
	// Switch and Agent are its processes.
	Switch, Agent *Process
	Management    netip.Addr
	lab           *Lab
	epoch         uint32 // of the last Faults
}

// A HostNode is a host with its daemon and its application.
type HostNode struct {
	Name   string
	Addr   netip.Addr
	Space  *Space
	Daemon *Process // nil: none
	Member *Member
	Socket string // of the daemon
	Config string // its configuration file
	Files  identity.Files
	lab    *Lab
	index  int
}

func torOf(rack int) string { return []string{"", "torA", "torB"}[rack] }

func swp(port int) string { return fmt.Sprint("swp", port) }

// Switch returns a switch by its name.
func (l *Lab) Switch(name string) *SwitchNode {
	return l.Switches[slices.IndexFunc(l.Switches, func(n *SwitchNode) bool { return n.Name == name })]
}

// Host returns a host by its name.
func (l *Lab) Host(name string) *HostNode {
	return l.Hosts[slices.IndexFunc(l.Hosts, func(h *HostNode) bool { return h.Name == name })]
}

// StateDir is the directory with only the state of a host's daemon, or of a switch's agent, of a
// lab in dir.
func StateDir(dir, name string) string { return filepath.Join(dir, name+".state") }

// StateFile is the file itself.
func (l *Lab) StateFile(name string) string { return filepath.Join(StateDir(l.Dir, name), "state.db") }

// Issue makes a certificate for a host, in place of its previous one.
func (h *HostNode) Issue() (identity.Files, error) {
	return h.lab.CA.Issue(identity.Identity{Role: identity.Host, Name: h.Name, Addrs: []netip.Addr{h.Addr}})
}

// Lab returns the host's lab.
func (h *HostNode) Lab() *Lab { return h.lab }

// Device returns the name of the host's device, with options of the form name=value.
func (h *HostNode) Device(options ...string) string {
	if h.lab.Spec.BMv2 {
		options = append(options, bmv2Window)
	}
	name, sep := "softroce:"+h.Addr.String(), "?"
	for _, o := range options {
		name, sep = name+sep+o, "&"
	}
	return name
}

func (l *Lab) write(name, text string) (string, error) {
	path := filepath.Join(l.Dir, name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}
