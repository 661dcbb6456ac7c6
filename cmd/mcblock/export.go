package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mcrdma/mcrdma/internal/nbd"
	"github.com/mcrdma/mcrdma/pkg/replica"
)

// exports are the volumes of a host, as NBD clients see them.
type exports struct {
	host    *replica.Host
	traffic *traffic
}

// granted returns the volumes that a client may open.
func (x exports) granted(c nbd.Client) (all []export) {
	for _, v := range x.host.Volumes() {
		if e, err := x.grant(v, c); err == nil {
			all = append(all, e)
		}
	}
	return all
}

func (x exports) grant(v *replica.Volume, c nbd.Client) (export, error) {
	ended, err := v.Grant(clientName(c))
	return export{v, ended, x.traffic.volume(v.Info().Name)}, err
}

func (x exports) list(_ context.Context, c nbd.Client) ([]nbd.Info, error) {
	return each(x.granted(c), export.Info), nil
}

// open returns the volume with a name; the empty name is the only volume that the client may open.
func (x exports) open(ctx context.Context, c nbd.Client, name string) (nbd.Export, error) {
	if all := x.granted(c); name == "" && len(all) == 1 {
		return all[0], nil
	}
	v, err := x.host.Opened(ctx, name)
	if err != nil {
		return nil, err
	}
	e, err := x.grant(v, c)
	if err != nil {
		x.traffic.denied.Inc()
		return nil, fmt.Errorf("%w: %w", nbd.EPERM, err)
	}
	return e, nil
}

// An export is a volume, as long as the client has access.
type export struct {
	v     *replica.Volume
	ended <-chan struct{}
	*operations
}

// Info implements nbd.Export.
func (e export) Info() nbd.Info {
	i := e.v.Info()
	return nbd.Info{Name: i.Name, Description: fmt.Sprintf("volume %016x, %d copies", i.ID, len(i.Hosts)), Size: i.Size, MinBlock: i.BlockSize}
}

// Done implements nbd.Export.
func (e export) Done() <-chan struct{} { return e.ended }

// ReadAt implements nbd.Export.
func (e export) ReadAt(ctx context.Context, p []byte, off int64) error {
	begun := time.Now()
	return errno(e.read.done(begun, int64(len(p)), e.v.ReadAt(ctx, p, off)))
}

// Buffer implements nbd.Export.
func (e export) Buffer(ctx context.Context, n int) (nbd.Buffer, error) {
	b, err := e.v.Buffer(ctx, n)
	if err != nil {
		return nil, errno(err)
	}
	return b, nil
}

// Scarce implements nbd.Export.
func (e export) Scarce() bool { return e.v.Scarce() }

// Write implements nbd.Export.
func (e export) Write(ctx context.Context, b nbd.Buffer, off int64, fua bool, done func(error)) {
	begun, n := time.Now(), int64(len(b.Bytes()))
	e.v.StartWrite(ctx, b.(*replica.Buffer), off, fua, func(err error) { done(errno(e.write.done(begun, n, err))) })
}

// Flush implements nbd.Export.
func (e export) Flush(ctx context.Context, done func(error)) {
	begun := time.Now()
	e.v.StartFlush(ctx, func(err error) { done(errno(e.flush.done(begun, 0, err))) })
}

// Trim implements nbd.Export.
func (e export) Trim(ctx context.Context, off, n int64, fua bool) error {
	begun := time.Now()
	return errno(e.clear.done(begun, n, e.v.Trim(ctx, off, n, fua)))
}

// WriteZeroes implements nbd.Export.
func (e export) WriteZeroes(ctx context.Context, off, n int64, how nbd.Zeroes) error {
	if !how.NoHole {
		return e.Trim(ctx, off, n, how.FUA) // trimmed ranges read as zeros
	}
	if how.Fast { // a file system that cannot reserve space writes zeros
		return nbd.ENOTSUP
	}
	begun := time.Now()
	return errno(e.clear.done(begun, n, e.v.WriteZeroes(ctx, off, n, how.FUA)))
}

// Extents implements nbd.Export.
func (e export) Extents(ctx context.Context, off, n int64, limit int) ([]nbd.Extent, error) {
	list, err := e.v.Extents(ctx, off, n, limit)
	return each(list, func(x replica.Extent) nbd.Extent { return nbd.Extent(x) }), errno(err)
}

// errno gives an error an errno that clients know; others are EIO.
func errno(err error) error {
	switch {
	case errors.Is(err, replica.ErrRange):
		return fmt.Errorf("%w: %w", nbd.EINVAL, err)
	case errors.Is(err, replica.ErrClosed):
		return fmt.Errorf("%w: %w", nbd.ESHUTDOWN, err)
	}
	return err
}
