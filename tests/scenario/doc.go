// Package scenario tests the life of groups in scenarios (stories), and checks them by what an
// application or an operator can see: package mcrdma (events, errors, the bytes in receivers'
// memory), the daemons' and agents' gRPC, and the tables of switches read by P4Runtime. The stories
// use no internals, so they hold for any implementation.
//
// Everything is production code: daemons, agents with static routes, embedded switches with
// P4Runtime, softroce devices on frames, applications with package mcrdma. Only the network, the
// cables, and the disks (which can also be real state files) are in memory. So everything runs in a
// bubble of testing/synctest: time is virtual, leases and minutes of silence take no time, and
// timing is reproducible to the half millisecond. A message between hosts takes half a millisecond;
// frames take no time.
//
//	inVirtualTime(t, true, func(l *lab) { … })       // four hosts at two switches
//	everywhere(t, []story{{"a receiver leaves", leaves}, …})
//	go test ./tests/scenario -run TestDeath -scenario.only 'sender'
//	SCENARIO_LOG=1 go test …                         // what daemons, agents and applications log
//
// After each story the test ends the applications, and checks that nothing of any group is left in
// a daemon, agent, switch or on a disk: within seconds, or within leases if a process could not be
// reached. Then it restarts all daemons, and checks again. At the end of the bubble no goroutine
// may be left.
//
// README.md lists the unit tests that these stories can replace.
package scenario
