// Package mcrdma is what applications import: one call writes to the memory of
// many hosts, and returns when all of them have it. Switches copy the packets
// where they can, and hosts relay them where switches can't; the calls are the same.
//
// The host's daemon, cmd-daemon, arranges groups. An application dials it, and opens
// no connections of its own. A sender makes a group and writes:
//
//	import _ "github.com/mcrdma/mcrdma/pkg/qp/softroce" // the device's driver
//
//	client, err := mcrdma.Dial(ctx, mcrdma.Options{})
//	memory, err := client.Alloc(1 << 20)
//	group, err := client.Create(ctx, mcrdma.GroupConfig{
//		Service:   "journal",
//		Receivers: []string{"storage1", "storage2", "storage3"},
//		Regions:   []mcrdma.Region{{Name: "log", Length: 1 << 30}},
//	})
//	copy(memory.Bytes(), "hello")
//	err = group.Write(ctx, mcrdma.At{Region: 0, Offset: 4096}, memory.Slice(0, 5))
//	err = group.Close(ctx)
//
// A receiver offers memory:
//
//	log, err := client.Alloc(1 << 30)
//	listener, err := client.Listen(ctx, mcrdma.ListenConfig{Service: "journal",
//		Accept: func(r *mcrdma.Request) (*mcrdma.Grant, error) {
//			return &mcrdma.Grant{Regions: []mcrdma.Piece{log.All()}}, nil
//		}})
//	member, err := listener.Accept(ctx)
//	fmt.Printf("%s\n", member.Region(0)[4096:4101])
//
// # Memory
//
// All that is sent from, received into or written to lies in registered Memory, and
// is named by Pieces of it. The device reads and writes it directly: this package
// copies no payload, but for messages of up to 8 KiB that hosts relay.
//
// A Piece given to an operation must not be changed until the operation is done.
//
// What a receiver was told stays. When Recv returns a message, the receiver's regions
// hold what all operations up to that one wrote, or what later ones wrote over it, and
// they never show anything older again. If the group has to be formed anew, the sender
// sends again what some receivers lack. Where bytes were written twice, this would take
// the others back. Then hosts relay until all have caught up, in any mode, because a
// receiver's library skips what it has, and after that switches copy again. Elsewhere
// the same bytes may be written once more: a receiver must not change them before the
// operation is done everywhere.
//
// A receiver that polls its regions instead sees WRITEs take effect in their order. When
// the group was formed anew, those that come after the last message that it got may take
// effect once more, in the same order; so what a WRITE that is not done covers may show
// older bytes for a while.
//
// # Operations
//
// A WRITE puts bytes into a region of each receiver, without their doing. A SEND
// puts them where the receiver's next posted receive says. A WRITE with immediate is
// a WRITE that also takes a posted receive, which tells the receiver that it is
// there. Operations take effect at each receiver in the order of their submission,
// and complete in that order. A completion means: every present member has it.
//
// If a receiver has no receive posted, the sender waits for it.
//
// # Failures
//
// If a receiver fails, the daemons find out, take it out, and the rest goes on, as
// long as GroupConfig.MinSize copies remain; the sender learns by an Event from which
// operation on it may lack something. Group.Add takes another in its place. If the
// connection of the whole group is lost, the group is formed anew, and what wasn't
// complete is sent again (see Memory); each message is delivered to a receiver once, in
// order.
// Applications see a pause, and an Event.
//
// The daemon may be restarted: data goes on without it, and the session is taken up
// again when it is back. If it stays away for longer than it keeps sessions, memberships end
// with ErrDaemon, as others take out whose daemon is gone.
//
// # Imports
//
// The package imports the daemon's protocol (api), qp, rocev2 and rdmcfallback with
// its transports, and gRPC. It imports no device driver: the application imports
// those that it wants, for their side effect. Without a device, groups are relayed
// over TCP. The package knows nothing of switches.
package mcrdma
