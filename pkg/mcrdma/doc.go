// Package mcrdma is the library that applications import: one call writes to the memory of many
// hosts, and returns when all of them have the data. Switches copy the packets where they can;
// elsewhere hosts relay them. The calls are the same.
//
// The host's daemon, cmd-daemon, arranges groups. An application dials it with Dial, and opens no
// connections itself. A sender creates a group and writes:
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
// All data that is sent, received or written is in registered Memory, and Pieces name parts of it.
// The device reads and writes it directly: this package copies no payload, except for messages of
// up to 8 KiB that hosts relay.
//
// Do not change a Piece of an operation until the operation is done.
//
// When Recv returns a message, the receiver's regions contain what all operations up to that one
// wrote, or what later ones wrote over it, and they never show anything older again. If the group
// is re-formed, the sender sends again the operations that some receivers lack. If several of these
// wrote the same bytes, that would show older bytes to the other receivers. In that case hosts
// relay, in any mode, until all have caught up, because a receiver's library skips operations that
// it has; after that switches copy again. Otherwise the same bytes may be written once more: a
// receiver must not change them before the operation is done everywhere.
//
// A receiver that polls its regions instead sees WRITEs take effect in order. After the group was
// re-formed, WRITEs that follow the receiver's last message may take effect once more, in the same
// order. So the bytes of a WRITE that is not done may show older content for a while.
//
// # Operations
//
// A WRITE puts bytes into a region of each receiver, without any action of the receiver. A
// SEND puts them into the receiver's next posted receive. A WRITE with immediate is a WRITE
// that also consumes a posted receive, which notifies the receiver. Operations take effect
// at each receiver in the order of their submission, and complete in that order. A
// completion means: every member of the present View has it.
//
// If a receiver has no receive posted, the sender waits for it. A receiver that is not ready for
// longer than the daemons' beat.grace, 10 s by default, is removed.
//
// # One member
//
// Group.Unicast is the sender's connection with one member, separate from the group. It is for
// READs, and for operations to that member alone, for example to copy what it lacks when it comes
// back. The member answers on it by counters (Member.SetCounter), for example to report how much is
// durable, and by small messages (Member.Send). It lasts as long as the membership, and does not
// pass through daemons. There is no order between its operations and the group's.
//
// # Failures
//
// If a receiver fails, the daemons detect that and remove it. The rest goes on if at least
// GroupConfig.MinSize copies remain; otherwise the group fails, or with WaitForMinSize waits for
// Group.Add. Group.Departures names the first operation that the removed receiver may lack. Before
// any operation completes without it, GroupConfig.OnView gets the View without it: an application
// that makes views durable there finds out after a crash which receivers have everything. Events
// that are not read may be lost; Group.View, Departures and Err have the same information.
// Group.Add adds another receiver in its place, and returns the first operation that the new
// receiver has. If the connection of the whole group is lost, the group is re-formed, and
// incomplete operations are sent again (see Memory); each message is delivered to a receiver once,
// in order. Applications see a pause, and an Event.
//
// The daemon may be restarted: data keeps flowing without it, and the session resumes when it is
// back. If it is away for longer than beat.grace, memberships end with ErrDaemon, because senders'
// daemons remove receivers whose daemon does not answer.
//
// # Devices
//
// The package imports no device driver: the application imports the drivers that it uses, for their
// side effect. Without a device, hosts relay groups over TCP.
package mcrdma
