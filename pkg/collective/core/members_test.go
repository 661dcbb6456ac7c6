package core

import "testing"

// TestLostAreNotHeard: what a lost rank says of others changes nothing, as it may be late, or cut off alone.
func TestLostAreNotHeard(t *testing.T) {
	m := members{state: make([]State, 4)}
	if !m.hear(1, State{Lost: 1 << 2}) || !m.own().lost(2) {
		t.Fatalf("what rank 1 says: %+v", m.state)
	}
	if m.hear(2, State{Lost: 1 << 3, GivenUp: 1}) || m.own() != (State{Lost: 1 << 2}) || m.state[2] != (State{}) {
		t.Errorf("what rank 2 says, which is lost: %+v", m.state)
	}
}
