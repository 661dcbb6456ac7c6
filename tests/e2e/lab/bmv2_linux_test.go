package lab

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Features that bmv2 does not have are refused before anything is made.
func TestBMv2Refuses(t *testing.T) {
	s := Spec{BMv2: true, Switches: map[string]Switch{"spine": {Rate: "1mbit"}}}
	if err := s.complete(); err == nil || !strings.Contains(err.Error(), "spine: bmv2") {
		t.Error(err)
	}
	s.BMv2 = false
	if err := s.complete(); err != nil {
		t.Errorf("on the embedded switch: %v", err)
	}
}

// Devices and amounts differ from the request only with bmv2.
func TestBMv2Scale(t *testing.T) {
	h := HostNode{Addr: netip.MustParseAddr("10.1.0.11"), lab: &Lab{}}
	if got := h.Device(); got != "softroce:10.1.0.11" {
		t.Error(got)
	}
	if got := h.Device("a=b", "c=d"); got != "softroce:10.1.0.11?a=b&c=d" {
		t.Error(got)
	}
	if got := h.lab.Share(64); got != 64 {
		t.Error(got)
	}
	h.lab.Spec.BMv2 = true
	if got := h.Device("a=b"); got != "softroce:10.1.0.11?a=b&window=32" {
		t.Error(got)
	}
	if got := h.lab.Share(64); got != 16 {
		t.Error(got)
	}
}

// Without bmv2 the error says what is missing; a program in its place is found.
func TestFindBMv2(t *testing.T) {
	t.Setenv("SIMPLE_SWITCH_GRPC", filepath.Join(t.TempDir(), "absent"))
	if _, err := FindBMv2(); err == nil || !strings.Contains(err.Error(), "absent: no such program") {
		t.Errorf("without bmv2: %v", err)
	}
	t.Setenv("SIMPLE_SWITCH_GRPC", os.Args[0])
	launcher, err := FindBMv2()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(launcher); err != nil {
		t.Error(err)
	}
}
