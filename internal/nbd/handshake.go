package nbd

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// A Client is the peer of a connection.
type Client struct {
	Addr net.Addr
	TLS  *tls.ConnectionState // nil without TLS
}

// errAbort is the error of a handshake that the client aborts.
var errAbort = errors.New("the client ended the handshake")

// A handshake negotiates the export and the features of a connection.
type handshake struct {
	config *Config
	conn   net.Conn // under TLS after STARTTLS
	in     *bufio.Reader
	client Client

	fixed, noZeroes bool
	structured      bool
	status          string // the export for which base:allocation is selected, if selected
	selected        bool
	farewell        bool // the last reply tells the client why the handshake failed

	export Export // set at the end
	info   Info
}

// run serves options until the client has chosen an export. The caller bounds the time.
func (h *handshake) run(ctx context.Context) error {
	var header [optionLen]byte
	if _, err := h.conn.Write(appendGreeting(header[:0])); err != nil {
		return err
	}
	if _, err := io.ReadFull(h.in, header[:4]); err != nil {
		return err
	}
	flags := binary.BigEndian.Uint32(header[:])
	if extra := flags &^ (flagFixedNewstyle | flagNoZeroes); extra != 0 {
		return violation(fmt.Sprintf("client flags %#x", extra))
	}
	h.fixed, h.noZeroes = flags&flagFixedNewstyle != 0, flags&flagNoZeroes != 0
	for h.export == nil {
		if _, err := io.ReadFull(h.in, header[:]); err != nil {
			return err
		}
		option, length, err := parseOption(header[:])
		if err != nil {
			return err
		}
		var data []byte
		if length <= maxUnread {
			data = make([]byte, min(length, maxOption))
		}
		if _, err := io.ReadFull(h.in, data); err != nil {
			return err
		}
		switch text := fmt.Sprintf("%d bytes of data; at most %d", length, maxOption); {
		case length > maxUnread: // reply before reading the data, because the client may never send it
			h.farewell = true
			return errors.Join(violation(fmt.Sprintf("option %d with %s", option, text)), h.refuse(option, repErrTooBig, text))
		case length > maxOption && option != optExportName:
			if _, err := io.CopyN(io.Discard, h.in, int64(length)-maxOption); err != nil {
				return err
			}
			err = h.refuse(option, repErrTooBig, text)
		default:
			err = h.option(ctx, option, data)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// option handles one option. An error ends the connection.
func (h *handshake) option(ctx context.Context, option uint32, data []byte) error {
	plain := h.client.TLS == nil
	if h.config.TLS != nil && h.config.RequireTLS && plain && option != optStartTLS && option != optAbort {
		if option == optExportName {
			return violation("EXPORT_NAME without TLS, which is required")
		}
		return h.refuse(option, repErrTLSReqd, "this server talks by TLS only")
	}
	if len(data) > 0 && (option == optList || option == optStartTLS || option == optStructuredReply) {
		return h.refuse(option, repErrInvalid, "this option has no data")
	}
	switch option {
	case optAbort:
		_, _ = h.conn.Write(appendReply(nil, option, repAck)) // the client may have disconnected already
		return errAbort
	case optExportName:
		return h.exportName(ctx, data)
	case optList:
		return h.list(ctx)
	case optStartTLS:
		return h.startTLS(ctx)
	case optInfo, optGo:
		name, infos, err := parseGo(data)
		if err != nil {
			return h.refuse(option, repErrInvalid, err.Error())
		}
		export, info, err := h.open(ctx, name)
		if err != nil {
			return h.refuse(option, openReply(err), err.Error())
		}
		if option == optGo {
			h.export, h.info = export, info
			h.selected = h.selected && h.status == name
		}
		return h.write(appendInfos(nil, option, info, h.structured, infos))
	case optStructuredReply:
		h.structured = true
		return h.write(appendReply(nil, option, repAck))
	case optListMetaContext, optSetMetaContext:
		return h.metaContext(ctx, option, data)
	}
	return h.refuse(option, repErrUnsup, fmt.Sprintf("option %d is not known here", option))
}

// exportName handles EXPORT_NAME, which has no error reply.
func (h *handshake) exportName(ctx context.Context, data []byte) error {
	if err := checkName(data); err != nil {
		return violation("EXPORT_NAME: " + err.Error())
	}
	export, info, err := h.open(ctx, string(data))
	if err != nil {
		return err
	}
	h.export, h.info = export, info
	h.selected = h.selected && h.status == string(data)
	reply := info.appendExport(nil, h.structured)
	if !h.noZeroes {
		reply = append(reply, make([]byte, 124)...)
	}
	return h.write(reply)
}

func (h *handshake) list(ctx context.Context) error {
	infos, err := h.config.List(ctx, h.client)
	if err != nil {
		return h.refuse(optList, openReply(err), err.Error())
	}
	var reply []byte
	for _, i := range infos {
		reply = appendServer(reply, i)
	}
	return h.write(appendReply(reply, optList, repAck))
}

// startTLS continues over TLS, and discards all that was negotiated before.
func (h *handshake) startTLS(ctx context.Context) error {
	switch {
	case h.config.TLS == nil || !h.fixed:
		return h.refuse(optStartTLS, repErrPolicy, "this server does not offer TLS")
	case h.client.TLS != nil:
		return h.refuse(optStartTLS, repErrInvalid, "TLS is in use already")
	case h.in.Buffered() > 0: // plaintext that would be read as if it had come over TLS
		return violation("data behind STARTTLS, before its reply")
	}
	if err := h.write(appendReply(nil, optStartTLS, repAck)); err != nil {
		return err
	}
	conn := tls.Server(h.conn, h.config.TLS)
	if err := conn.HandshakeContext(ctx); err != nil {
		h.farewell = true // the TLS alert says why; a TLS 1.3 client may have sent more already
		return fmt.Errorf("TLS: %w", err)
	}
	state := conn.ConnectionState()
	h.conn, h.client.TLS = conn, &state
	h.in.Reset(conn)
	h.structured, h.selected = false, false
	return nil
}

func (h *handshake) metaContext(ctx context.Context, option uint32, data []byte) error {
	set := option == optSetMetaContext
	if set {
		h.selected = false
	}
	name, selected, err := parseMeta(data, !set)
	if err == nil && !h.structured {
		err = errors.New("structured replies have to be agreed upon first")
	}
	if err != nil {
		return h.refuse(option, repErrInvalid, err.Error())
	}
	if _, _, err := h.open(ctx, name); err != nil {
		return h.refuse(option, openReply(err), err.Error())
	}
	var reply []byte
	if selected && set {
		h.status, h.selected = name, true
		reply = appendContext(reply, option, allocation)
	} else if selected {
		reply = appendContext(reply, option, 0)
	}
	return h.write(appendReply(reply, option, repAck))
}

func (h *handshake) open(ctx context.Context, name string) (Export, Info, error) {
	export, err := h.config.Open(ctx, h.client, name)
	if err != nil {
		return nil, Info{}, fmt.Errorf("export %q: %w", name, err)
	}
	info, err := export.Info().complete()
	if err != nil {
		return nil, Info{}, fmt.Errorf("export %q: %w", name, err)
	}
	return export, info, nil
}

// openReply returns the reply type for an error of List or Open.
func openReply(err error) uint32 {
	switch errnoOf(err) {
	case EPERM:
		return repErrPolicy
	case ESHUTDOWN:
		return repErrShutdown
	}
	return repErrUnknown
}

func (h *handshake) refuse(option, kind uint32, text string) error {
	return h.write(appendReply(nil, option, kind, []byte(clean(text, maxName))...))
}

func (h *handshake) write(b []byte) error {
	_, err := h.conn.Write(b)
	return err
}
