// Command hello writes a line to the memory of hosts: "hello h2 h3" sends, and "hello"
// receives. It finds its host's daemon by MCRDMA_SOCKET.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce" // or …/ibverbs, for NICs
)

func main() {
	ctx := context.Background()
	client := must(mcrdma.Dial(ctx, mcrdma.Options{}))
	defer client.Close()
	memory := must(client.Alloc(64))

	if hosts := os.Args[1:]; len(hosts) > 0 {
		group := must(client.Create(ctx, mcrdma.GroupConfig{
			Service: "hello", Receivers: hosts, Regions: []mcrdma.Region{{Length: 64}}, Wait: 10 * time.Second}))
		n := copy(memory.Bytes(), "Hello, all of you!")
		must(0, group.WriteImm(ctx, mcrdma.At{}, uint32(n), memory.Slice(0, n)))
		fmt.Println("all have it;", group.Info().Why) // by switches or by hosts, and why
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

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
