//go:build !linux

package main

import (
	"errors"

	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/journey"
)

func openTaps([]tapSpec) (<-chan journey.Packet, <-chan error, func(), error) {
	return nil, nil, nil, errors.New("interfaces are watched on Linux only; files of \"switchctl softswitch --pcap\" are read everywhere")
}
