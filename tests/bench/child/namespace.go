package child

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
)

// NewNamespace makes a named network namespace and leaves this process in its own.
func NewNamespace(name string) error {
	done := make(chan error)
	go func() { // on a thread that ends afterward
		runtime.LockOSThread()
		h, err := netns.NewNamed(name)
		if err != nil {
			done <- fmt.Errorf("namespace %s: %w", name, err)
			return
		}
		done <- h.Close()
	}()
	return <-done
}

// InNamespace runs f on a thread in the network namespace ns, or in the current one if ns is empty.
func InNamespace(ns string, f func() error) error {
	if ns == "" {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	old, err := netns.Get()
	if err != nil {
		return err
	}
	defer old.Close()
	h, err := netns.GetFromName(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	if err := netns.Set(h); err != nil {
		return err
	}
	return errors.Join(f(), netns.Set(old))
}
