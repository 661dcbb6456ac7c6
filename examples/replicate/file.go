package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"

	"github.com/mcrdma/mcrdma/examples/internal/bar"
)

// content returns the bytes to replicate, and what they are, for people.
func (s *settings) content() ([]byte, string, error) {
	if s.file == "" {
		data := make([]byte, s.size)
		_, _ = rand.NewChaCha8([32]byte{}).Read(data) // never fails
		return data, "random bytes", nil
	}
	data, err := readFile(s.file)
	return data, s.file, err
}

func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name) // before it is opened: a pipe would wait for a writer
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", name)
	case info.Size() == 0:
		return nil, fmt.Errorf("%s is empty: there is nothing to replicate", name)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s has %s; the demonstration holds it in memory four times, and takes %s at most", name,
			bar.Bytes(uint64(info.Size())), bar.Bytes(maxFile))
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, errors.Join(fmt.Errorf("%s has changed", name), err)
	}
	return data, nil
}
