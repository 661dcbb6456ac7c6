// Package mcrdma is the package that applications import: one call writes to the memory of
// many hosts, and returns when all of them have the data. Switches copy the packets where
// they can, and hosts relay them where switches can't; the calls are the same.
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
// All data that is sent, received or written lies in registered Memory, and Pieces name
// parts of it. The device reads and writes it directly: this package copies no payload,
// except for messages of up to 8 KiB that hosts relay.
//
// A Piece given to an operation must not be changed until the operation is done.
//
// What Recv has reported does not change back. When Recv returns a message, the receiver's
// regions hold what all operations up to that one wrote, or what later ones wrote over it,
// and they never show anything older again. If the group has to be formed anew, the sender
// sends again what some receivers lack. Where bytes were written twice, this would show
// older bytes to the others. Then hosts relay until all have caught up, in any mode,
// because a receiver's library skips what it has; after that switches copy again. Elsewhere
// the same bytes may be written once more: a receiver must not change them before the
// operation is done everywhere.
//
// A receiver that polls its regions instead sees WRITEs take effect in their order. When
// the group was formed anew, WRITEs after the last message that the receiver got may take
// effect once more, in the same order; so the bytes of a WRITE that is not done may show
// older content for a while.
//
// # Operations
//
// A WRITE puts bytes into a region of each receiver, without any action of the receiver. A
// SEND puts them into the receiver's next posted receive. A WRITE with immediate is a WRITE
// that also consumes a posted receive, which notifies the receiver. Operations take effect
// at each receiver in the order of their submission, and complete in that order. A
// completion means: every member of the present View has it.
//
// If a receiver has no receive posted, the sender waits for it; but a receiver that is not ready for longer
// than the daemons keep sessions, 10 s if they are not configured otherwise, is taken out.
//
// # One member
//
// Group.Unicast is the sender's connection with one member, beside the group: operations to
// that member alone, such as what it lacks when it comes back, and READ. On it the member
// answers: by counters (Member.SetCounter), for example how much it has made durable, and by
// small messages (Member.Send). It lasts as long as the membership, and goes through no daemon. Between its
// operations and the group's there is no order.
//
// # Failures
//
// If a receiver fails, the daemons detect it and take it out, and the rest goes on, as long
// as GroupConfig.MinSize copies remain, and with WaitForMinSize later; Group.Departures says from which operation on
// it may lack something. Before any operation completes without it, GroupConfig.OnView is
// told the View without it: an application that makes views durable there finds after a
// crash which receivers have everything. Events that are not read may be lost, and say nothing
// that Group.View, Departures and Err don't. Group.Add adds another in its place, and returns from
// which operation on that has everything. If the connection of the
// whole group is lost, the group is formed anew, and what wasn't complete is sent again
// (see Memory); each message is delivered to a receiver once, in order. Applications see a
// pause, and an Event.
//
// The daemon may be restarted: data flows without it, and the session resumes when it is
// back. If it stays away longer than it keeps sessions, memberships end with ErrDaemon,
// because senders' daemons take out receivers whose daemon does not answer.
//
// # Devices
//
// The package imports no device driver: the application imports those that it wants, for their
// side effect. Without a device, groups are relayed over TCP.
package mcrdma
