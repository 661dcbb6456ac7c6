package watch

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Exec makes the watcher that listens at the socket watch this process, which becomes the command.
// It returns only if that fails.
func Exec(socket string, command []string) error {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the filter is the thread's, and the thread becomes the command
	listener, err := install()
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(listener), nil); err != nil {
		return fmt.Errorf("%s: %w", socket, err)
	}
	return os.NewSyscallError("execve", unix.Exec(path, command, os.Environ()))
}

// install makes the kernel ask before each fdatasync and fsync, by the descriptor that it returns.
func install() (int, error) {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the system call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FDATASYNC, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program))) //nolint:gosec // the kernel's structure
	if errno != 0 {
		return 0, errno
	}
	return int(fd), nil //nolint:gosec // a descriptor
}
