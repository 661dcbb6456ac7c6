// Package bpf holds the data plane's hot part as a program for the Linux kernel: what clang made
// of the C source in src.
//
// The object is committed, so that build, run and test need no clang. After a change of the
// source, "make bpf" compiles it anew; a test fails as long as source and object differ. The
// bytecode is the same for all machines whose least significant byte comes first.
package bpf

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"io/fs"

	"github.com/mcrdma/mcrdma/internal/made"
)

// Object is the program and its maps, in ELF.
//
//go:embed mcrdma.o
var Object []byte

//go:embed made.txt
var text string

// Origin returns what is committed of what Object was made from.
func Origin() string { return text }

// Made says what an object was made from, in the form in which that is committed: the hash of
// the names and contents of the .c and .h files in dir, the hash of the object, and the compiler.
func Made(dir fs.FS, object []byte, clang string) (string, error) {
	sources, err := made.HashSources(dir, "*.c", "*.h")
	return fmt.Sprintf("sources %s\nobject %x\nclang %s\n", sources, sha256.Sum256(object), clang), err
}

// Clang is the compiler that Object was made by, as it names its version.
func Clang() string { return made.Value(text, "clang") }
