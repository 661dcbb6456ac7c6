// Command peer is the endpoint of the interoperability tests: it opens one RDMA
// device of package qp, given by its name, and does on it what its standard
// input asks for (package peerproto). The same program runs on the host over
// softroce and, built with the tag ibverbs, in the guests over the kernel's
// soft-RoCE.
//
//	peer softroce:10.77.0.1
//	peer ibverbs:rxe0
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/mcrdma/mcrdma/pkg/qp"
	_ "github.com/mcrdma/mcrdma/pkg/qp/ibverbs"
	_ "github.com/mcrdma/mcrdma/pkg/qp/softroce"
	"github.com/mcrdma/mcrdma/tests/interop/rxe/peerproto"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("peer: ")
	if len(os.Args) != 2 {
		log.Fatalf("usage: peer device, with one of the drivers %v", qp.Drivers())
	}
	if err := run(os.Args[1], os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// run serves requests until the end of in.
func run(device string, in io.Reader, out io.Writer) error {
	dev, err := qp.Open(device)
	if err != nil {
		return err
	}
	s, err := newSession(dev)
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var req peerproto.Request
		if err := dec.Decode(&req); err == io.EOF {
			return s.close()
		} else if err != nil {
			return errors.Join(fmt.Errorf("request: %w", err), s.close())
		}
		resp, err := s.handle(&req)
		if err != nil {
			resp.Err = err.Error()
		}
		if err := enc.Encode(resp); err != nil {
			return errors.Join(err, s.close())
		}
	}
}
