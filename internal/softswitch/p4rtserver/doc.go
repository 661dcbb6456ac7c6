// Package p4rtserver implements the P4Runtime service (p4.v1.P4Runtime, specification 1.5) of the
// embedded switch.
//
//	s := p4rtserver.New(target, p4rtserver.Options{DeviceID: 1})
//	g := grpc.NewServer(p4rtserver.ServerOptions()...)
//	s.Register(g)
//	go g.Serve(listener)
//	…
//	s.Close() // ends the streams, for which GracefulStop would wait
//	g.GracefulStop()
//
// The service accesses the switch only as a [Target]. It arbitrates among controllers, resolves the
// ids of a P4Info to the names of the program, checks every update against the P4Info before it
// reaches the state, and converts between P4Runtime's entities and the state of packages pipeline
// and pre. The P4 device config is p4c's bmv2 JSON.
//
// Where the specification leaves a choice, or allows a partial implementation:
//
//   - There is one device, whose id may be 0, as bmv2's.
//   - Roles are supported by name, each with its own primary; all have full
//     access, so role.config must be unset.
//   - All three atomicities are supported. Packets may be processed in the middle of a batch,
//     except with DATAPLANE_ATOMIC. The batches of concurrent Writes never interleave, and a Read
//     sees a batch either not at all or completely.
//   - After VERIFY_AND_SAVE, reads and writes refer to the saved pipeline; COMMIT replaces the
//     running one by it. RECONCILE_AND_COMMIT keeps all state of objects that are unchanged in the
//     new P4Info, and fails if other objects have state.
//   - Per-color meter counters, backup replicas, extern entries and SINGLE_RATE_THREE_COLOR meters
//     are UNIMPLEMENTED or rejected at load.
//   - Reading table entries with a key that does not exist returns no entity and no error; reading
//     anything else with an id that does not exist returns NOT_FOUND.
//   - If all watched ports of a group or an action set are down, no action runs on a packet, as
//     with an empty group.
//   - Translated values keep their number.
package p4rtserver
