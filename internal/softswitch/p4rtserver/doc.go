// Package p4rtserver is the P4Runtime service (p4.v1.P4Runtime, specification
// 1.5) of the embedded switch.
//
//	s := p4rtserver.New(target, p4rtserver.Options{DeviceID: 1})
//	g := grpc.NewServer(p4rtserver.ServerOptions()...)
//	s.Register(g)
//	go g.Serve(listener)
//	…
//	s.Close() // ends the streams, which GracefulStop would wait for
//	g.GracefulStop()
//
// The service knows the switch only as a [Target]. It does the arbitration among
// controllers, resolves the ids of a P4Info to the names of the program, checks
// every update against the P4Info before the state sees it, and translates
// between P4Runtime's entities and the state of package pipeline and package
// pre. The P4 device config is p4c's bmv2 JSON.
//
// Where the specification leaves a choice, or permits less:
//
//   - One device, whose id may be 0, as bmv2's.
//   - Roles are supported by name, each with its own primary; all have full
//     access, so role.config must be unset.
//   - All three atomicities. Packets may be processed amid a batch, except with
//     DATAPLANE_ATOMIC. The batches of concurrent Writes never mix, and a Read
//     sees a batch not at all or completely.
//   - After VERIFY_AND_SAVE, reads and writes concern the saved pipeline, which
//     COMMIT puts in the place of the running one. RECONCILE_AND_COMMIT carries
//     over all state whose objects the new P4Info has unchanged, and fails if
//     there is state in others.
//   - Per-color meter counters, backup replicas, extern entries and
//     SINGLE_RATE_THREE_COLOR meters are UNIMPLEMENTED or refused at load.
//   - Reading table entries by a missing key gives no entity and no error;
//     reading anything else by a missing id is NOT_FOUND.
//   - If the ports that all members of a group, or of an action set, watch are
//     down, nothing happens to a packet, as with an empty group.
//   - Values of translated types keep their number.
package p4rtserver
