package agents

import (
	"strings"

	"google.golang.org/grpc/codes"
)

// words are what messages about agents say, by the code of an error.
var words = map[codes.Code]string{
	codes.DeadlineExceeded:  "; is it the right address, and does a firewall let it pass?",
	codes.Unauthenticated:   "does not accept who calls: ",
	codes.PermissionDenied:  "refuses; the certificate of an administrator (mcrdma:admin:NAME) is needed: ",
	codes.ResourceExhausted: "has more to say than fits in one answer, or is overloaded: ",
}

// unavailable says why there is no connection. gRPC's text is that of the error,
// wrapped twice.
func unavailable(said string, o Options) string {
	why := said
	for _, prefix := range []string{"connection error: desc = ", `"transport: `, "Error while dialing: ", "authentication handshake failed: "} {
		why = strings.TrimPrefix(why, prefix)
	}
	why = strings.TrimSuffix(strings.ReplaceAll(why, `\"`, `"`), `"`)
	if at := strings.LastIndex(why, ": connect: "); at >= 0 {
		why = why[at+len(": connect: "):]
	}
	switch {
	case strings.Contains(said, "connection refused"):
		return "cannot be reached: connection refused; is \"switchctl agent\" running there, and is this the address in its \"listen\"?"
	case strings.Contains(said, "no such host"), strings.Contains(said, "server misbehaving"):
		return "cannot be reached: " + why + "; give its address, or put the name into DNS or /etc/hosts"
	case strings.Contains(said, "handshake failed"):
		return "cannot be trusted, or does not trust: " + why
	case o.TLS.Plain() && (strings.Contains(said, "error reading server preface") || strings.Contains(said, "reset by peer")):
		return "hangs up: " + why + "; perhaps it wants TLS: --tls-cert, --tls-key and --tls-ca"
	case !o.TLS.Plain() && strings.Contains(said, "error reading server preface"):
		return "hangs up: " + why + "; its log says why it does not accept this certificate"
	}
	return "cannot be reached: " + why
}
