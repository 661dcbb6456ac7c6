package replica_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce" // the device's driver
	"github.com/mcrdma/mcrdma/pkg/replica"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap"
	"github.com/mcrdma/mcrdma/pkg/replica/osdmap/etcd"
)

// A host with copies of volumes, which cmd-daemon runs on, in plain text; etcd runs elsewhere. "mcblock
// volume create" makes the volume, or osdmap.Manager.Create.
func Example() {
	ctx := context.Background()
	client, err := mcrdma.Dial(ctx, mcrdma.Options{})
	check(err)
	defer client.Close()
	store, err := etcd.Dial(etcd.Config{Endpoints: []string{"192.0.2.1:2379"}})
	check(err)
	defer store.Close()
	listener, err := net.Listen("tcp", "10.1.0.11:9570")
	check(err)

	host, err := replica.Open(replica.Config{
		Self:     osdmap.Host{ID: 1, Name: "h1", Peer: "10.1.0.11:9570", NBD: "10.1.0.11:10809", Device: client.Address()},
		Client:   client,
		Manager:  osdmap.New(store, osdmap.Options{}),
		Dir:      "/var/lib/example",
		Listener: listener,
	})
	check(err)
	defer host.Close()

	volume, err := host.Opened(ctx, "vol")
	check(err)
	block := make([]byte, volume.Info().BlockSize)
	copy(block, "hello")
	check(volume.WriteAt(ctx, block, 0, false)) // all acting members have it in memory
	check(volume.Flush(ctx))                    // … and on disk
	check(volume.ReadAt(ctx, block, 0))
	fmt.Printf("%s\n", block[:5])
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
