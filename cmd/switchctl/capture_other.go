//go:build !linux

package main

import (
	"errors"
	"time"

	"github.com/mcrdma/mcrdma/cmd/switchctl/internal/journey"
)

func openTaps([]tapSpec, time.Duration) (<-chan journey.Packet, <-chan error, func(), error) {
	return nil, nil, nil, errors.New("interfaces are watched on Linux only; files of \"switchctl softswitch --pcap\" are read everywhere")
}
