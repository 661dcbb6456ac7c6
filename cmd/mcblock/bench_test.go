package main

import (
	"net/netip"
	"testing"

	"github.com/mcrdma/mcrdma/cmd/mcblock/internal/config"
	"github.com/mcrdma/mcrdma/pkg/replica/core"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

// TestReach: a host without a copy does not look for the volume at another host's loopback address, which is its own.
func TestReach(t *testing.T) {
	const local = "127.0.0.1:10809"
	v := osdmap.Volume{Name: "vol", Hosts: []core.ID{1, 2}}
	cfg := &config.Config{ID: 3, NBD: local, Address: netip.MustParseAddr("10.1.0.13")}
	for _, c := range []struct{ h1, h2, at, server string }{
		{local, "10.1.0.12:10809", "10.1.0.12:10809", "10.1.0.12"},
		{local, "127.0.0.1:10810", "127.0.0.1:10810", "10.1.0.12"},
		{local, local, "", ""},
	} {
		s := &osdmap.State{Hosts: []osdmap.Host{{ID: 1, Name: "h1", NBD: c.h1, Device: "10.1.0.11"}, {ID: 2, Name: "h2", NBD: c.h2, Device: "10.1.0.12"}}}
		if at, server, err := reach(cfg, s, v); at != c.at || server != c.server || (err == nil) != (at != "") {
			t.Errorf("%+v: %s, %s, %v", c, at, server, err)
		}
	}
	cfg.ID = 2
	if at, _, err := reach(cfg, &osdmap.State{}, v); at != local || err != nil {
		t.Errorf("%s, %v", at, err)
	}
}
