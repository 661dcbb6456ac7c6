//go:build ibverbs && cgo && linux

package ibverbs

/*
#cgo LDFLAGS: -libverbs
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mcrdma/mcrdma/pkg/qp"
	"github.com/mcrdma/mcrdma/pkg/rocev2"
)

func init() { qp.Register("ibverbs", Open, checkName) }

// check turns a shim function's result into an error.
func check(verb string, errno C.int) error {
	if errno == 0 {
		return nil
	}
	return verbError(verb, syscall.Errno(errno))
}

// A device is an open libibverbs context with one of its ports.
type device struct {
	name   string // of the kernel: mlx5_0, rxe0
	target target
	ctx    *C.struct_ibv_context
	attr   qp.DeviceAttr
	maxMsg uint64

	async  *os.File // a duplicate of the context's file, for waiting
	events chan qp.Event
	closed chan struct{}
	wg     sync.WaitGroup

	// mu protects the objects that Close has to destroy.
	mu   sync.Mutex
	qps  map[*queuePair]struct{}
	mrs  map[*region]struct{}
	cqs  map[*completionQueue]struct{}
	pds  map[*domain]struct{}
	once sync.Once
}

// eventQueue is how many asynchronous events are kept for Event; when more
// come, the oldest are forgotten.
const eventQueue = 64

// Open opens the device that arg describes; see the package comment.
func Open(arg string) (qp.Device, error) {
	t, err := parseTarget(arg)
	if err != nil {
		return nil, err
	}
	if t.dev, err = pick(t.dev); err != nil {
		return nil, err
	}
	cname := C.CString(t.dev)
	defer C.free(unsafe.Pointer(cname))
	d := &device{
		name:   t.dev,
		target: t,
		events: make(chan qp.Event, eventQueue),
		closed: make(chan struct{}),
		qps:    map[*queuePair]struct{}{},
		mrs:    map[*region]struct{}{},
		cqs:    map[*completionQueue]struct{}{},
		pds:    map[*domain]struct{}{},
	}
	if err := check("ibv_open_device", C.mc_open(cname, &d.ctx)); err != nil {
		return nil, fmt.Errorf("%w: %w", qp.ErrDevice, err)
	}
	if err := d.query(); err != nil {
		C.ibv_close_device(d.ctx)
		return nil, err
	}
	if d.async, err = dupFile(d.ctx.async_fd, "ibverbs events"); err != nil {
		C.ibv_close_device(d.ctx)
		return nil, err
	}
	d.wg.Go(d.readEvents)
	return d, nil
}

// pick returns the device called name, or the only one if name is empty.
func pick(name string) (string, error) {
	var buf [16 << 10]byte
	if err := check("ibv_get_device_list", C.mc_list((*C.char)(unsafe.Pointer(&buf[0])), C.size_t(len(buf)))); err != nil {
		return "", fmt.Errorf("%w: %w: is the ib_uverbs module loaded?", qp.ErrDevice, err)
	}
	list, _, _ := strings.Cut(string(buf[:]), "\x00")
	have := strings.Fields(list)
	for _, n := range have {
		if n == name || name == "" && len(have) == 1 {
			return n, nil
		}
	}
	if name == "" {
		return "", fmt.Errorf("%w: name one of the %d RDMA devices %v", qp.ErrDevice, len(have), have)
	}
	return "", fmt.Errorf("%w: no RDMA device %q, have %v", qp.ErrDevice, name, have)
}

// query fills attr and chooses the GID.
func (d *device) query() error {
	var info C.struct_mc_info
	port := C.uint8_t(d.target.port)
	if err := check("ibv_query_port", C.mc_query(d.ctx, port, &info)); err != nil {
		return fmt.Errorf("%w: %s port %d: %w", qp.ErrDevice, d.name, d.target.port, err)
	}
	switch {
	case info.ethernet == 0:
		return fmt.Errorf("%w: %s port %d is InfiniBand; RoCE needs an Ethernet port", qp.ErrDevice, d.name, d.target.port)
	case info.active == 0:
		return fmt.Errorf("%w: %s port %d is not active; is its network interface up?", qp.ErrDevice, d.name, d.target.port)
	}
	addr, err := d.chooseGID(int(info.gid_tbl_len))
	if err != nil {
		return err
	}
	d.maxMsg = min(uint64(info.max_msg_sz), qp.MaxMessage)
	d.attr = qp.DeviceAttr{
		Driver:             "ibverbs",
		Addr:               addr,
		ActiveMTU:          mtuFromVerbs(int(info.active_mtu)),
		MaxSGE:             int(info.max_sge),
		MaxQPWR:            int(info.max_qp_wr),
		MaxCQE:             int(info.max_cqe),
		SeesIdentification: true,
	}
	return nil
}

// chooseGID checks the target's GID index, or finds the first RoCEv2 GID with
// an IPv4 address, and returns that address.
func (d *device) chooseGID(n int) (netip.Addr, error) {
	from, to := 0, min(n, 256) // an index is 8 bits in an address vector
	if d.target.gid != autoGID {
		from, to = d.target.gid, d.target.gid+1
		if from >= n {
			return netip.Addr{}, fmt.Errorf("%w: %s has %d GIDs, no index %d", qp.ErrDevice, d.name, n, from)
		}
	}
	for i := from; i < to; i++ {
		var gid [16]byte
		var typ C.uint32_t
		err := C.mc_query_gid(d.ctx, C.uint8_t(d.target.port), C.uint32_t(i), (*C.uint8_t)(&gid[0]), &typ)
		if err != 0 {
			continue // an empty entry
		}
		if addr, ok := gidAddr(gid, uint32(typ)); ok {
			d.target.gid = i
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%w: %s port %d: none of the GIDs %d..%d is RoCEv2 with an IPv4 address; "+
		"give its network interface one", qp.ErrDevice, d.name, d.target.port, from, to-1)
}

// dupFile makes a file of a non-blocking descriptor that libibverbs owns, so
// that Go can wait for it without a thread.
func dupFile(fd C.int, name string) (*os.File, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("ibverbs: duplicating a descriptor: %w", err)
	}
	return os.NewFile(uintptr(dup), name), nil
}

func (d *device) Name() string        { return "ibverbs:" + d.name }
func (d *device) Attr() qp.DeviceAttr { return d.attr }

// readEvents takes asynchronous events from the kernel until Close.
func (d *device) readEvents() {
	raw, err := d.async.SyscallConn()
	if err != nil {
		return // closed already
	}
	for {
		var e C.struct_mc_event
		var errno C.int
		err := raw.Read(func(uintptr) bool {
			errno = C.mc_get_async_event(d.ctx, &e)
			return syscall.Errno(errno) != syscall.EAGAIN
		})
		if err != nil {
			return
		}
		if errno != 0 {
			d.deliver(qp.Event{Type: qp.EventDeviceFatal, Err: check("ibv_get_async_event", errno)})
			return
		}
		typ := eventType(int(e._type))
		if typ == 0 {
			continue
		}
		ev := qp.Event{Type: typ, QPN: rocev2.QPN(e.qpn), Err: fmt.Errorf("ibverbs: %s: %v", d.name, typ)}
		if typ == qp.EventCQError {
			ev.Err = qp.ErrOverrun
			d.overrun(e.cq)
		}
		d.deliver(ev)
	}
}

func (d *device) deliver(ev qp.Event) {
	for {
		select {
		case d.events <- ev:
			return
		default:
		}
		select {
		case <-d.events:
		default:
		}
	}
}

// overrun tells the completion queue that the kernel calls cq.
func (d *device) overrun(cq *C.struct_ibv_cq) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.cqs {
		if c.cq == cq {
			c.overrun()
		}
	}
}

func (d *device) Event(ctx context.Context) (qp.Event, error) {
	select {
	case <-d.closed:
		return qp.Event{}, qp.ErrClosed
	default:
	}
	select {
	case ev := <-d.events:
		return ev, nil
	case <-ctx.Done():
		return qp.Event{}, ctx.Err()
	case <-d.closed:
		return qp.Event{}, qp.ErrClosed
	}
}

// Counters returns the port's statistics as the kernel names them.
func (d *device) Counters() map[string]uint64 {
	m := map[string]uint64{}
	for _, dir := range []string{"counters", "hw_counters"} {
		files, _ := filepath.Glob(fmt.Sprintf("/sys/class/infiniband/%s/ports/%d/%s/*", d.name, d.target.port, dir))
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				continue // some counters need privilege to read
			}
			if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
				m[filepath.Base(f)] = n
			}
		}
	}
	return m
}

func (d *device) Close() (err error) {
	err = qp.ErrClosed
	d.once.Do(func() { err = d.close() })
	return err
}

func (d *device) close() error {
	close(d.closed)
	d.async.Close()
	d.wg.Wait()
	var errs []error
	for _, o := range d.objects() {
		if err := o.Close(); !errors.Is(err, qp.ErrClosed) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, check("ibv_close_device", C.ibv_close_device(d.ctx)))
	return errors.Join(errs...)
}

// objects returns what was created from the device and still lives, users
// before what they use.
func (d *device) objects() []interface{ Close() error } {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []interface{ Close() error }
	for q := range d.qps {
		out = append(out, q)
	}
	for m := range d.mrs {
		out = append(out, m)
	}
	for c := range d.cqs {
		out = append(out, c)
	}
	for p := range d.pds {
		out = append(out, p)
	}
	return out
}

// create makes an object by calling make and remembers it in set, unless the
// device is closed. Holding the lock keeps Close from missing it.
func create[T comparable](d *device, set map[T]struct{}, make func() (T, error)) (T, error) {
	var none T
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.closed:
		return none, qp.ErrClosed
	default:
	}
	obj, err := make()
	if err != nil {
		return none, err
	}
	set[obj] = struct{}{}
	return obj, nil
}

// forget removes a destroyed object.
func forget[T comparable](d *device, set map[T]struct{}, obj T) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(set, obj)
}
