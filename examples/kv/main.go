// Command kv is a key-value store that replicates: "kv h2 h3 h4" is the primary and puts the lines
// "key value" that it reads; "kv" is a backup, and prints the value of each key that it reads. Kill a
// backup and start it again: the primary takes it back and catches it up, while it puts.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/mcrdma/mcrdma/examples/kv/store"
	"github.com/mcrdma/mcrdma/pkg/mcrdma"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce" // or …/ibverbs, for NICs
)

const usage = `kv HOST...   be the primary of these hosts, and put the lines "KEY VALUE" of standard input
kv           be a backup, and print the values of the keys on standard input

The daemon's socket is $MCRDMA_SOCKET, or /run/mcrdma/daemon.sock.
`

func main() {
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage) }
	flag.Parse()
	ctx := context.Background()
	client := must(mcrdma.Dial(ctx, mcrdma.Options{}))
	lines := bufio.NewScanner(os.Stdin)
	if flag.NArg() == 0 {
		for b := must(store.NewBackup(ctx, client)); lines.Scan(); {
			fmt.Println(b.Get(lines.Text()))
		}
		return
	}
	p := must(store.NewPrimary(ctx, client, mcrdma.GroupConfig{Wait: time.Minute}, flag.Args()...))
	go p.Keep(ctx)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), " ")
		must(0, p.Put(ctx, key, value))
	}
	must(0, p.Close(ctx))
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
