package mcrdma_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/netip"

	"github.com/google/renameio/v2"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	"github.com/mcrdma/mcrdma/pkg/mcrdma/inproc"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce" // the device's driver
)

// A sender writes to the memory of two hosts by one call. Here, all hosts are addresses of
// this machine, and their daemons run in this process; elsewhere, cmd-daemon runs on each
// host, and each part in a program of its own.
func Example() {
	ctx := context.Background()
	var names []string
	for i := range 3 {
		addr := netip.AddrFrom4([4]byte{127, 43, 0, byte(i + 1)})
		d, err := inproc.Start(ctx, inproc.Options{Name: addr.String(), Address: addr})
		check(err)
		defer d.Close()
		names = append(names, d.Socket())
	}

	// Two receivers offer memory for a service.
	var members []func() *mcrdma.Member
	for _, socket := range names[1:] {
		client, err := mcrdma.Dial(ctx, mcrdma.Options{Socket: socket})
		check(err)
		defer client.Close()
		memory, err := client.Alloc(1 << 20)
		check(err)
		listener, err := client.Listen(ctx, mcrdma.ListenConfig{Service: "journal", Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) {
			return &mcrdma.Grant{Regions: []mcrdma.Piece{memory.All()}}, nil
		}})
		check(err)
		members = append(members, func() *mcrdma.Member {
			m, err := listener.Accept(ctx)
			check(err)
			return m
		})
	}

	// The sender makes a group of them, and writes.
	client, err := mcrdma.Dial(ctx, mcrdma.Options{Socket: names[0]})
	check(err)
	defer client.Close()
	group, err := client.Create(ctx, mcrdma.GroupConfig{
		Service:   "journal",
		Receivers: []string{"127.43.0.2", "127.43.0.3"},
		Regions:   []mcrdma.Region{{Name: "log", Length: 1 << 20}},
	})
	check(err)
	memory, err := client.Alloc(4096)
	check(err)
	n := copy(memory.Bytes(), "hello")
	check(group.Write(ctx, mcrdma.At{Region: 0, Offset: 4096}, memory.Slice(0, n)))

	// Now all receivers have it.
	for _, member := range members {
		fmt.Printf("%s\n", member().Region(0)[4096:4096+n])
	}
	check(group.Close(ctx))
	// Output:
	// hello
	// hello
}

// A sender that wants to know after a crash which receivers have everything that was
// complete makes each view durable: no operation completes without a member before the view
// without it is on the disk. This needs a daemon that counts views.
func ExampleGroupConfig_onView() {
	ctx := context.Background()
	client, err := mcrdma.Dial(ctx, mcrdma.Options{})
	check(err)
	defer client.Close()
	group, err := client.Create(ctx, mcrdma.GroupConfig{
		Service:   "journal",
		Receivers: []string{"storage1", "storage2", "storage3"},
		Regions:   []mcrdma.Region{{Name: "log", Length: 1 << 20}},
		OnView: func(_ context.Context, v mcrdma.View) error {
			text, err := json.Marshal(v)
			if err != nil {
				return err
			}
			return renameio.WriteFile("journal.view", text, 0o644) // with fsync
		},
	})
	check(err)
	check(group.Close(ctx))
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
