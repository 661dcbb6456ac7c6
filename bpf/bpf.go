// Package bpf holds the data plane's hot part as a program for the Linux kernel: what clang made
// of the C source in src.
//
// The object is committed, so that build, run and test need no clang. After a change of the
// source, "make bpf" compiles it anew; a test fails as long as source and object differ. The
// bytecode is the same for all machines whose least significant byte comes first.
//
// The package imports the standard library only.
package bpf

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// Object is the program and its maps, in ELF.
//
//go:embed mcrdma.o
var Object []byte

//go:embed made.txt
var made string

// Origin returns what is committed of what Object was made from.
func Origin() string { return made }

// Made says what an object was made from, in the form in which that is committed: the hash of
// the names and contents of the .c and .h files in dir, the hash of the object, and the compiler.
func Made(dir fs.FS, object []byte, clang string) (string, error) {
	var names []string
	for _, pattern := range []string{"*.c", "*.h"} {
		found, err := fs.Glob(dir, pattern)
		if err != nil {
			return "", err
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	h := sha256.New()
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(text), text)
	}
	sum := sha256.Sum256(object)
	return fmt.Sprintf("sources %x\nobject %s\nclang %s\n", h.Sum(nil), hex.EncodeToString(sum[:]), clang), nil
}

// Clang is the compiler that Object was made by, as it names its version.
func Clang() string {
	for line := range strings.Lines(made) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "clang "); ok {
			return v
		}
	}
	return ""
}
