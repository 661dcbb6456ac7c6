// Package identity authenticates the other end of a gRPC connection: a host, a switch or an
// administrator. Switch agents and daemons use it.
//
// With TLS, an identity is a URI in the certificate: mcrdma:host:NAME,
// mcrdma:switch:NAME or mcrdma:admin:NAME. Its addresses are the certificate's IP
// addresses. A certificate has one identity, is used in both directions (server
// and client authentication), and is issued by a CA that both sides trust. Host
// names do not matter: a client says which identity it expects.
//
//	files := identity.Files{Cert: "torA.pem", Key: "torA.key", CA: "ca.pem"}
//	creds, err := files.Server()
//	server := grpc.NewServer(grpc.Creds(creds))
//	…
//	id, err := identity.FromContext(ctx)          // in a handler
//	if err != nil || !id.Is(identity.Host) || !id.Owns(source) { …
//
//	creds, err := files.Client(identity.Identity{Role: identity.Switch, Name: "torA"})
//	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds), identity.Claim(own))
//
// Replaced files take effect at the next connection; existing connections keep their identity.
//
// Without files everything is unencrypted, and the server believes the identity and addresses that
// a client states (Claim). That is for tests, loopback, and lab networks.
package identity
