package agents

import (
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/mcrdma/mcrdma/internal/identity"
)

// words are the messages about agents, by error code.
var words = map[codes.Code]string{
	codes.DeadlineExceeded:  "; is it the right address, and does a firewall let it pass?",
	codes.Unauthenticated:   "does not accept who calls: ",
	codes.PermissionDenied:  "refuses; the certificate of an administrator (mcrdma:admin:NAME) is needed: ",
	codes.ResourceExhausted: "has more to say than fits in one answer, or is overloaded: ",
}

// Untrusted begins the error of an agent with which the handshake of TLS failed.
const Untrusted = "cannot be trusted, or does not trust: "

// unavailable explains why there is no connection.
func unavailable(said string, o Options) string {
	switch {
	case strings.Contains(said, "connection refused"):
		return "cannot be reached: connection refused; is \"switchctl agent\" running there, and is this the address in its \"listen\"?"
	case strings.Contains(said, "no such host"), strings.Contains(said, "server misbehaving"):
		return "cannot be reached: " + said + "; give its address, or put the name into DNS or /etc/hosts"
	case strings.Contains(said, identity.ErrWantsTLS.Error()):
		return "wants TLS: name an administrator's certificate, --tls-cert, --tls-key and --tls-ca"
	case strings.Contains(said, "handshake failed"):
		return Untrusted + strings.TrimPrefix(said, "authentication handshake failed: ")
	case !o.TLS.Plain() && strings.Contains(said, "closed the connection"):
		return "hangs up: " + said + "; its log says why it does not accept this certificate"
	case strings.Contains(said, "closed the connection"), strings.Contains(said, "reset by peer"):
		return "hangs up: " + said + "; is it a switch agent? Its log says more"
	}
	return "cannot be reached: " + said
}
