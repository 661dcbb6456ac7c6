package vm

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"strings"
)

// A cpioWriter writes an initramfs: a cpio archive in the "newc" format, as
// the kernel's Documentation/driver-api/early-userspace/buffer-format.rst
// describes it. Parent directories are made as needed.
type cpioWriter struct {
	w    *bufio.Writer
	n    int // bytes written
	ino  int
	dirs map[string]bool
	err  error
}

func newCPIO(w io.Writer) *cpioWriter {
	return &cpioWriter{w: bufio.NewWriter(w), dirs: map[string]bool{".": true, "": true, "/": true}}
}

const (
	modeDir  = 0o040755
	modeFile = 0o100755
)

// File adds a regular, executable file at name, a path without leading slash.
func (c *cpioWriter) File(name string, data []byte) {
	name = strings.Trim(name, "/")
	c.Dir(path.Dir(name))
	c.entry(name, modeFile, data)
}

// Dir adds a directory and its parents.
func (c *cpioWriter) Dir(name string) {
	name = strings.Trim(name, "/")
	if c.dirs[name] {
		return
	}
	c.dirs[name] = true
	c.Dir(path.Dir(name))
	c.entry(name, modeDir, nil)
}

func (c *cpioWriter) entry(name string, mode int, data []byte) {
	c.ino++
	const mtime, uid, gid, nlink = 0, 0, 0, 1
	hdr := "070701"
	for _, v := range [...]int{c.ino, mode, uid, gid, nlink, mtime, len(data), 0, 0, 0, 0, len(name) + 1, 0} {
		hdr += fmt.Sprintf("%08x", v)
	}
	c.write([]byte(hdr + name + "\x00"))
	c.pad()
	c.write(data)
	c.pad()
}

func (c *cpioWriter) write(b []byte) {
	if c.err == nil {
		var n int
		n, c.err = c.w.Write(b)
		c.n += n
	}
}

func (c *cpioWriter) pad() { c.write(make([]byte, -c.n&3)) }

// Close ends the archive and reports the first error of all.
func (c *cpioWriter) Close() error {
	c.entry("TRAILER!!!", 0, nil)
	if c.err == nil {
		c.err = c.w.Flush()
	}
	return c.err
}
