package replica

import (
	"errors"
	"testing"

	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
)

func ended(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestGrant: a change of the list ends the grants of those that are not on it any longer, and no others; without a list all
// may, also those without a name.
func TestGrant(t *testing.T) {
	v := &Volume{info: osdmap.Volume{Name: volumeName}}
	list := func(clients ...string) { v.access.set(osdmap.Volume{Allow: clients}) }
	list()
	grants := map[string]<-chan struct{}{}
	for _, c := range []string{"", osdmap.Loopback, "host:a", "host:b", "admin:a"} {
		var err error
		if grants[c], err = v.Grant(c); err != nil {
			t.Fatal(err)
		}
	}
	check := func(step string, may ...string) {
		t.Helper()
		allowed := map[string]bool{}
		for _, c := range may {
			allowed[c] = true
		}
		for c, g := range grants {
			_, err := v.Grant(c)
			if ended(g) == allowed[c] || errors.Is(err, ErrDenied) == allowed[c] {
				t.Errorf("%s: %q: ended %v, %v", step, c, ended(g), err)
			}
		}
	}
	check("no list", "", osdmap.Loopback, "host:a", "host:b", "admin:a")
	list("host:a", osdmap.Loopback)
	check("a list", osdmap.Loopback, "host:a")
	list("host:a")
	check("a shorter one", "host:a")
	again, err := v.Grant("host:a")
	v.access.close()
	if err != nil || !ended(again) || !ended(grants["host:a"]) {
		t.Error("the volume is closed, and a grant has not ended", err)
	}
	if late, err := v.Grant("host:a"); err != nil || !ended(late) {
		t.Error("a grant of a closed volume", err)
	}
}

// TestAllow: the hosts of a volume follow its list.
func TestAllow(t *testing.T) {
	r := newRig(t, 2, 1, 8<<20, Fast())
	r.acting(2)
	g, err := r.volume(2).Grant("host:a")
	r.must(err)
	_, err = osdmap.New(r.kv, osdmap.Options{}).Allow(r.ctx(), r.id, []string{"host:b"})
	r.must(err)
	select {
	case <-g:
	case <-r.ctx().Done():
		t.Fatal("the grant does not end")
	}
	_, a := r.volume(2).Grant("host:a")
	_, b := r.volume(2).Grant("host:b")
	if !errors.Is(a, ErrDenied) || b != nil {
		t.Error(a, b)
	}
	r.must(r.volume(2).WriteAt(r.ctx(), fillBlock(1), 0, true)) // the volume goes on
}
