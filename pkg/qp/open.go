package qp

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
)

// An OpenFunc opens the device that arg, the part of the name after the
// driver and its colon, describes.
type OpenFunc func(arg string) (Device, error)

// A CheckFunc says what is wrong with arg, as far as that is known without opening a device: its
// form, and peers that the device could not send to.
type CheckFunc func(arg string, peers []netip.Addr) error

// A driver is what Register was called with.
type driver struct {
	open  OpenFunc
	check CheckFunc
}

var (
	driversMu sync.RWMutex
	drivers   = map[string]driver{}
)

// Register makes a driver known to Open and Check. Device packages call it from init; a
// second registration of one name panics. check may be nil.
func Register(name string, open OpenFunc, check CheckFunc) {
	driversMu.Lock()
	defer driversMu.Unlock()
	if _, dup := drivers[name]; dup {
		panic("qp: driver registered twice: " + name)
	}
	drivers[name] = driver{open, check}
}

// Drivers returns the names of the registered drivers, sorted.
func Drivers() []string {
	driversMu.RLock()
	defer driversMu.RUnlock()
	return slices.Sorted(maps.Keys(drivers))
}

// Open opens the device called driver:arg, for example "softroce:10.0.0.1" or
// "ibverbs:mlx5_0". What follows the driver's name is the driver's own; see
// its package. The error wraps ErrDevice if there is no such driver or device.
func Open(name string) (Device, error) {
	d, arg, err := find(name)
	if err != nil {
		return nil, err
	}
	dev, err := d.open(arg)
	if err != nil {
		return nil, fmt.Errorf("qp: open %s: %w", name, err)
	}
	return dev, nil
}

// Check says what is wrong with the name of a device that is to send to these peers, without
// opening the device: what Open would refuse on any machine, and peers that it could not send to.
func Check(name string, peers ...netip.Addr) error {
	d, arg, err := find(name)
	if err != nil || d.check == nil {
		return err
	}
	return d.check(arg, peers)
}

// find splits a device's name into its driver and the driver's part.
func find(name string) (driver, string, error) {
	first, arg, _ := strings.Cut(name, ":")
	driversMu.RLock()
	d, ok := drivers[first]
	driversMu.RUnlock()
	if !ok {
		return d, "", fmt.Errorf("%w: %q: no driver %q, have %v (is its package imported?)",
			ErrDevice, name, first, Drivers())
	}
	return d, arg, nil
}
