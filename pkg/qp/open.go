package qp

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// An OpenFunc opens the device that arg, the part of the name after the
// driver and its colon, describes.
type OpenFunc func(arg string) (Device, error)

var (
	driversMu sync.RWMutex
	drivers   = map[string]OpenFunc{}
)

// Register makes a driver known to Open. Device packages call it from init; a
// second registration of one name panics.
func Register(driver string, open OpenFunc) {
	driversMu.Lock()
	defer driversMu.Unlock()
	if _, dup := drivers[driver]; dup {
		panic("qp: driver registered twice: " + driver)
	}
	drivers[driver] = open
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
	driver, arg, _ := strings.Cut(name, ":")
	driversMu.RLock()
	open, ok := drivers[driver]
	driversMu.RUnlock()
	if !ok {
		return nil, fmt.Errorf("%w: %q: no driver %q, have %v (is its package imported?)",
			ErrDevice, name, driver, Drivers())
	}
	dev, err := open(arg)
	if err != nil {
		return nil, fmt.Errorf("qp: open %s: %w", name, err)
	}
	return dev, nil
}
