// Package p4rt is the P4Runtime client of the switch agent: it writes the state that package
// switchspec describes to a switch that runs the program of p4src, and reads it back.
//
//	c, err := p4rt.New(p4rt.Config{Target: "127.0.0.1:9559", ElectionID: p4rt.ElectionID{Low: 1}})
//	s, err := c.Open(ctx)             // a stream, and the arbitration's answer
//	err = s.WaitPrimary(ctx)
//	ok, err := s.HasPipeline(ctx)     // if not, s.PushPipeline
//	have, err := s.Read(ctx)
//	err = s.Apply(ctx, switchspec.Diff(have, want))
//	…
//	<-s.Done()                        // the stream was lost, see s.Err
//	s, err = c.Open(ctx)              // and everything from there on again
//
// It works with the embedded switch and with bmv2's simple_switch_grpc, and handles both behaviors
// after a primary has left: by the specification there is no primary until a client arbitrates
// again, with an election id that is not less than any before; bmv2 promotes the client with the
// next highest id. bmv2 accepts writes from any client, so a Session that is not the primary
// refuses to write.
//
// Writes use CONTINUE_ON_ERROR and rely on no order within a batch, so each stage of changes is a
// separate batch.
package p4rt
