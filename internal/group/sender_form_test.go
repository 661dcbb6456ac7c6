package group_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/group"
)

// The first record of a new group is written while receivers prepare and the switches install
// it: nothing waits for it but the end of the formation.
func TestCreateDoesNotWaitForFirstRecord(t *testing.T) {
	now := time.Unix(0, 0)
	s := group.NewSender(senderConfig)
	s.Create(group.Call{ID: 1, Begun: now}, group.Endpoint{QPN: 5}, []netip.Addr{senderAddr(1)}, false, now)
	s.Numbered(9, 7, nil, now)
	s.Prepared(9, senderAddr(1), group.Receiver{Addr: senderAddr(1), QPN: 6}, nil, false, now)
	s.Installed(9, group.Installation{Left: true}, nil, now)
	var saves []group.SaveGroup
	commits := 0
	for _, a := range s.Take() {
		switch a := a.(type) {
		case group.SaveGroup:
			saves = append(saves, a)
		case group.CommitMember:
			commits++
		}
	}
	if len(saves) != 1 || commits != 1 {
		t.Fatalf("before the first record is durable: %d writes, %d receivers are told that the formation is complete", len(saves), commits)
	}
	s.Committed(9, senderAddr(1), nil, now)
	s.Recorded(saves[0].Version, nil, now)
	if st := s.Status(); st.State != group.Forming {
		t.Fatalf("%v, and the record does not say that the formation is complete", st.State)
	}
	for _, a := range s.Take() {
		if a, ok := a.(group.SaveGroup); ok {
			s.Recorded(a.Version, nil, now)
		}
	}
	if st := s.Status(); st.State != group.Active {
		t.Fatal(st.State)
	}
}

// TestWaitingRestored: a group that waits for receivers does so after a restart.
func TestWaitingRestored(t *testing.T) {
	c := senderConfig
	c.Waits = true
	now := time.Unix(1000, 0)
	s := group.RestoreSender(c, &group.SenderRecord{Form: &group.Formation{N: 3, View: 7}, Last: 3, Views: 20}, now)
	if s.Tick(now); s.Status().State != group.Broken {
		t.Errorf("it is %v", s.Status().State)
	}
}
