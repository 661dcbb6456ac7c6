// Package watch counts a process's durable writes (fdatasync) as they happen, and kills the process
// before one of them, or reports the file. The kernel holds each call until the watcher lets it
// continue (seccomp user notifications): other system calls are not slowed down, and the process
// does not notice.
//
//	w, err := watch.Listen("h1.watch", p.Kill)
//	// The process is "PROGRAM watched h1.watch daemon …", and PROGRAM calls watch.Exec.
//	died := w.Arm(3, 0)
//
// It needs Linux 5.5.
package watch
