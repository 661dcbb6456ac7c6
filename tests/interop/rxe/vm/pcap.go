package vm

import (
	"encoding/binary"
	"os"
	"sync"
	"time"
)

// pcapWriter makes a capture file in the classic pcap format and returns a
// function that appends Ethernet frames to it. The file is never closed: it is
// whole after each frame.
func pcapWriter(name string) (func(frame []byte), error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	hdr := le.AppendUint32(nil, 0xa1b2c3d4)
	hdr = le.AppendUint16(le.AppendUint16(hdr, 2), 4)
	const linkEthernet = 1
	for _, v := range []uint32{0, 0, maxFrame, linkEthernet} {
		hdr = le.AppendUint32(hdr, v)
	}
	if _, err := f.Write(hdr); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	return func(frame []byte) {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		rec := make([]byte, 0, 16+len(frame))
		for _, v := range []int{int(now.Unix()), now.Nanosecond() / 1000, len(frame), len(frame)} {
			rec = le.AppendUint32(rec, uint32(v))
		}
		_, _ = f.Write(append(rec, frame...)) // a debugging aid: a full disk must not fail the test
	}, nil
}
