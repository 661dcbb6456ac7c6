// Package watch counts a process's durable writes (fdatasync) as it makes them, and kills
// it before one of them, or says which file it is of. The kernel holds each until the watcher has said that it may go
// on (seccomp's user notifications): no other system call is slower for it, and the
// process knows nothing of it.
//
//	w, err := watch.Listen("h1.watch", p.Kill)
//	// The process is "PROGRAM watched h1.watch daemon …", and PROGRAM calls watch.Exec.
//	died := w.Arm(3, 0)
//
// It takes Linux 5.5.
package watch
