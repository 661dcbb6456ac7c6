package nbd

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"
)

// Parsing and encoding of the handshake: "Option types" and "Option reply types" of the protocol.

const (
	initMagic   = 0x4e42444d41474943 // NBDMAGIC
	optionMagic = 0x49484156454f5054 // IHAVEOPT
	replyMagic  = 0x3e889045565a9

	// Handshake flags, and the client's answers to them.
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1

	optionLen = 16      // header of an option
	maxOption = 1 << 16 // bytes of data; longer options are refused,
	maxUnread = 1 << 20 // and their data discarded up to this length; beyond, the connection ends
	maxName   = 4096
)

const (
	optExportName      = 1
	optAbort           = 2
	optList            = 3
	optStartTLS        = 5
	optInfo            = 6
	optGo              = 7
	optStructuredReply = 8
	optListMetaContext = 9
	optSetMetaContext  = 10
)

const (
	repAck         = 1
	repServer      = 2
	repInfo        = 3
	repMetaContext = 4

	repErrUnsup    = 1<<31 + 1
	repErrPolicy   = 1<<31 + 2
	repErrInvalid  = 1<<31 + 3
	repErrTLSReqd  = 1<<31 + 5
	repErrUnknown  = 1<<31 + 6
	repErrShutdown = 1<<31 + 7
	repErrTooBig   = 1<<31 + 9
)

const (
	infoExport      = 0
	infoName        = 1
	infoDescription = 2
	infoBlockSize   = 3
)

// Transmission flags.
const (
	hasFlags        = 1 << 0
	sendFlush       = 1 << 2
	sendFUA         = 1 << 3
	sendTrim        = 1 << 5
	sendWriteZeroes = 1 << 6
	sendDF          = 1 << 7
	canMultiConn    = 1 << 8
	sendFastZero    = 1 << 11
)

const contextAllocation = "base:allocation"

// parseOption reads an option's header of optionLen bytes.
func parseOption(b []byte) (option, length uint32, err error) {
	if magic := binary.BigEndian.Uint64(b); magic != optionMagic {
		return 0, 0, violation(fmt.Sprintf("an option begins with %#x instead of IHAVEOPT", magic))
	}
	return binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:]), nil
}

// checkName returns an error unless b is a valid string of the protocol.
func checkName(b []byte) error {
	switch {
	case len(b) > maxName:
		return fmt.Errorf("a string of %d bytes: at most %d are allowed", len(b), maxName)
	case !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0:
		return fmt.Errorf("%q: not UTF-8 without NUL", b)
	}
	return nil
}

// cutString cuts a string with a 32-bit length prefix from the front of b.
func cutString(b []byte) (s, rest []byte, err error) {
	if len(b) < 4 {
		return nil, nil, fmt.Errorf("the data end in the length of a string")
	}
	n := binary.BigEndian.Uint32(b)
	if b = b[4:]; uint64(n) > uint64(len(b)) {
		return nil, nil, fmt.Errorf("a string of %d bytes in %d that are left", n, len(b))
	}
	return b[:n], b[n:], checkName(b[:n])
}

// parseGo parses the data of GO and INFO: the export, and the NBD_INFO_* requested.
func parseGo(b []byte) (name string, infos []uint16, err error) {
	s, b, err := cutString(b)
	if err != nil {
		return "", nil, err
	}
	if len(b) < 2 || len(b) != 2+2*int(binary.BigEndian.Uint16(b)) {
		return "", nil, fmt.Errorf("%d bytes after the name: not the number of information requests and these", len(b))
	}
	for b = b[2:]; len(b) > 0; b = b[2:] {
		infos = append(infos, binary.BigEndian.Uint16(b))
	}
	return string(s), infos, nil
}

// parseMeta parses the data of SET_META_CONTEXT and LIST_META_CONTEXT: the export, and whether the
// queries select base:allocation. In a list, no query and "base:" select all.
func parseMeta(b []byte, list bool) (name string, selected bool, err error) {
	s, b, err := cutString(b)
	if err != nil {
		return "", false, err
	}
	if len(b) < 4 {
		return "", false, fmt.Errorf("%d bytes after the name: not the number of queries", len(b))
	}
	count := binary.BigEndian.Uint32(b)
	queries := 0
	for b = b[4:]; len(b) > 0; queries++ {
		var query []byte
		if query, b, err = cutString(b); err != nil {
			return "", false, err
		}
		selected = selected || string(query) == contextAllocation || list && string(query) == "base:"
	}
	if uint64(count) != uint64(queries) {
		return "", false, fmt.Errorf("%d queries, and %d were announced", queries, count)
	}
	return string(s), selected || list && queries == 0, nil
}

func appendGreeting(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, initMagic)
	b = binary.BigEndian.AppendUint64(b, optionMagic)
	return binary.BigEndian.AppendUint16(b, flagFixedNewstyle|flagNoZeroes)
}

// appendReply appends one reply to an option.
func appendReply(b []byte, option, kind uint32, data ...byte) []byte {
	b = binary.BigEndian.AppendUint64(b, replyMagic)
	b = binary.BigEndian.AppendUint32(b, option)
	b = binary.BigEndian.AppendUint32(b, kind)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

func appendServer(b []byte, i Info) []byte {
	data := binary.BigEndian.AppendUint32(nil, uint32(len(i.Name)))
	data = append(data, i.Name...)
	return appendReply(b, optList, repServer, append(data, clean(i.Description, maxName)...)...)
}

func appendContext(b []byte, option, id uint32) []byte {
	data := binary.BigEndian.AppendUint32(nil, id)
	return appendReply(b, option, repMetaContext, append(data, contextAllocation...)...)
}

// appendInfos appends the replies to GO and INFO. It always sends the block sizes.
func appendInfos(b []byte, option uint32, i Info, structured bool, infos []uint16) []byte {
	one := func(kind uint16, data []byte) {
		b = appendReply(b, option, repInfo, append(binary.BigEndian.AppendUint16(nil, kind), data...)...)
	}
	one(infoExport, i.appendExport(nil, structured))
	if slices.Contains(infos, infoName) {
		one(infoName, []byte(i.Name))
	}
	if slices.Contains(infos, infoDescription) && i.Description != "" {
		one(infoDescription, []byte(clean(i.Description, maxName)))
	}
	sizes := binary.BigEndian.AppendUint32(nil, uint32(i.MinBlock))
	sizes = binary.BigEndian.AppendUint32(sizes, uint32(max(4096, i.MinBlock))) // the preferred one
	one(infoBlockSize, binary.BigEndian.AppendUint32(sizes, MaxPayload))
	return appendReply(b, option, repAck)
}

// appendExport appends size and transmission flags.
func (i Info) appendExport(b []byte, structured bool) []byte {
	flags := uint16(hasFlags | sendFlush | sendFUA | canMultiConn | sendTrim | sendWriteZeroes | sendFastZero)
	if structured {
		flags |= sendDF
	}
	b = binary.BigEndian.AppendUint64(b, uint64(i.Size))
	return binary.BigEndian.AppendUint16(b, flags)
}

// complete replaces zeros by defaults, and returns an error if the rest violates the protocol.
func (i Info) complete() (Info, error) {
	i.MinBlock = cmp.Or(i.MinBlock, 1)
	if i.MinBlock < 0 || i.MinBlock&(i.MinBlock-1) != 0 || i.MinBlock > 1<<16 || i.Size < 0 || i.Size%int64(i.MinBlock) != 0 {
		return i, fmt.Errorf("a size of %d bytes and blocks of %d bytes: not as NBD has them", i.Size, i.MinBlock)
	}
	return i, checkName([]byte(i.Name))
}
