// Package scenario tells the life of groups as stories, and judges them by what an application
// or an operator can see: package mcrdma (events, errors, the bytes in receivers' memory), the
// daemons' and agents' gRPC, and the tables of switches read by P4Runtime. No story imports
// anything unexported, so the stories hold whatever the inside looks like.
//
// Everything is production code: daemons, agents with static routes, embedded switches with
// their P4Runtime, softroce devices on frames, applications with package mcrdma. Only what
// joins them is in memory (network, cable), and what they keep (disk, which can also be a real
// state file). So all of it runs in a bubble of testing/synctest: time is virtual, leases
// and minutes of silence take no time, and what happens half a millisecond after something else
// does so each time. A message from host to host takes half a millisecond; frames take no time.
//
//	inVirtualTime(t, true, func(l *lab) { … })       // four hosts at two switches
//	everywhere(t, []story{{"a receiver leaves", leaves}, …})
//	go test ./tests/scenario -run TestDeath -scenario.only 'sender'
//	SCENARIO_LOG=1 go test …                         // what daemons, agents and applications log
//
// After each story the judge ends the applications and demands that nothing of any group is
// left in a daemon, agent, switch or on a disk: within seconds, or within leases where a process
// could not be told. Then it restarts all daemons, and demands it again. At the end of the
// bubble no goroutine may be left.
//
// README.md says which tests of inner workings these stories can replace.
package scenario
