package switchagent

import (
	"fmt"

	"github.com/mcrdma/mcrdma/internal/switchspec"
)

// An edit is a change of the desired state. It is called when its turn comes, may read the desired
// state, and changes it through the draft.
type edit func(d *draft) error

// puts makes an edit of entities to put and keys to delete, in that order.
func puts(put []switchspec.Entity, del []switchspec.Key) edit {
	return func(d *draft) error {
		for _, e := range put {
			if err := d.put(e); err != nil {
				return err
			}
		}
		for _, k := range del {
			d.delete(k)
		}
		return nil
	}
}

// A draft is the desired state while it is edited. It remembers the previous entities.
type draft struct {
	want *switchspec.State
	old  map[switchspec.Key]switchspec.Entity // nil: nothing was there
}

func (d *draft) touch(k switchspec.Key) {
	if _, ok := d.old[k]; !ok {
		d.old[k], _ = d.want.Find(k)
	}
}

func (d *draft) put(e switchspec.Entity) error {
	d.touch(e.Key())
	return d.want.Put(e)
}

// set puts an entity, or deletes it if it is nil.
func (d *draft) set(k switchspec.Key, e switchspec.Entity) error {
	if e != nil {
		return d.put(e)
	}
	d.delete(k)
	return nil
}

// keep puts an entity that undo does not revert.
func (d *draft) keep(e switchspec.Entity) error {
	err := d.want.Put(e)
	d.old[e.Key()] = e
	return err
}

func (d *draft) delete(k switchspec.Key) {
	d.touch(k)
	d.want.Delete(k)
}

// undo reverts everything except entities put by keep.
func (d *draft) undo() {
	for k, e := range d.old {
		if e == nil {
			d.want.Delete(k)
		} else if err := d.want.Put(e); err != nil {
			panic(fmt.Sprintf("switchagent: %v was there before: %v", e, err)) // it had been put
		}
	}
}
