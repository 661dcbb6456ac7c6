// Command hello writes a line to the memory of hosts: "hello h2 h3" sends, and "hello"
// receives. It finds its host's daemon by MCRDMA_SOCKET.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce" // or …/ibverbs, for NICs
)

func main() {
	flag.Parse() // for --help
	ctx := context.Background()
	client := must(mcrdma.Dial(ctx, mcrdma.Options{}))
	defer client.Close()
	memory := must(client.Alloc(64))

	if hosts := flag.Args(); len(hosts) > 0 {
		group := must(client.Create(ctx, mcrdma.GroupConfig{
			Service: "hello", Receivers: hosts, Regions: []mcrdma.Region{{Length: 64}}, Wait: 10 * time.Second}))
		n := copy(memory.Bytes(), "Hello, all of you!")
		must(0, group.WriteImm(ctx, mcrdma.At{}, uint32(n), memory.Slice(0, n)))
		info := group.Info() // a receiver that fails is removed, and the write completes at the others
		fmt.Printf("%d of %d have it; %s\n", len(info.Members), len(hosts), strings.Join(info.Why, "; "))
		must(0, group.Close(ctx))
		return
	}
	listener := must(client.Listen(ctx, mcrdma.ListenConfig{Service: "hello",
		Accept: func(*mcrdma.Request) (*mcrdma.Grant, error) {
			return &mcrdma.Grant{Regions: []mcrdma.Piece{memory.All()}, Receives: make([]mcrdma.Piece, 1)}, nil
		}}))
	member := must(listener.Accept(ctx))
	for message, err := member.Recv(ctx); err == nil; message, err = member.Recv(ctx) { // until the group ends
		fmt.Printf("%s\n", member.Region(0)[:message.Imm])
	}
}

func init() {
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "hello HOST...   write a line to the memory of these hosts\nhello           receive one\n\n"+
			"The daemon's socket is $MCRDMA_SOCKET, or /run/mcrdma/daemon.sock.\n")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
