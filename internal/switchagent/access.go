package switchagent

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/mcrdma/mcrdma/internal/identity"
)

// caller returns the caller's identity, which must have one of the roles.
func (a *Agent) caller(ctx context.Context, any ...identity.Role) (identity.Identity, error) {
	id, err := identity.FromContext(ctx)
	if err != nil {
		return id, err
	}
	if !id.Is(any...) {
		return id, fmt.Errorf("%w: %v may not call this", ErrDenied, id)
	}
	return id, nil
}

// owner checks that the caller may manage a source's groups.
func (a *Agent) owner(ctx context.Context, source netip.Addr) error {
	id, err := a.caller(ctx, identity.Host, identity.Admin)
	if err != nil {
		return err
	}
	if id.Is(identity.Host) && !id.Owns(source) {
		return fmt.Errorf("%w: %v is not %v, and a host manages groups with itself as the source only: its certificate, or without TLS its configuration, must have its address", ErrDenied, id, source)
	}
	return nil
}

// maySee reports whether a client may see a source's groups.
func maySee(id identity.Identity, source netip.Addr) bool {
	return !id.Is(identity.Host) || id.Owns(source)
}
