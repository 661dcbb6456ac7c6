package nbd

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

// program is the path of a program that tests are run with, from a Debian package.
func program(t testing.TB, name, debian string) string {
	t.Helper()
	for _, dir := range []string{"", "/usr/sbin/", "/sbin/"} {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path
		}
	}
	testenv.Skip(t, "%s is not installed: apt-get install %s", name, debian)
	return ""
}

// run runs a program, which must succeed, and returns what it says.
func run(t testing.TB, path string, args ...string) string {
	t.Helper()
	out, err := attempt(t, path, args...)
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", filepath.Base(path), args, err, out)
	}
	return out
}

func attempt(t testing.TB, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, path, args...)
	c.Dir = t.TempDir()
	out, err := c.CombinedOutput()
	return string(out), err
}

const mib = 1 << 20

// volume is an export of 64 MiB with data at 1 MiB and at its end, and the rest holes.
func volume() *memory {
	m := newMemory(Info{Name: "vol", Description: "a test's volume", Size: 64 * mib})
	pattern := bytes.Repeat([]byte("0123456789abcdef"), mib/16)
	for _, at := range []int64{mib, 63 * mib} {
		m.change(at, mib, true, true, func(p []byte) { copy(p, pattern) })
	}
	return m
}

// serveUnix serves the export and returns its URI and its socket.
func serveUnix(t testing.TB, exports ...Export) (uri, socket string) {
	t.Helper()
	l, path := unixListener(t)
	start(t, only(exports...), l)
	return "nbd+unix:///vol?socket=" + path, path
}

func TestNbdinfo(t *testing.T) {
	nbdinfo := program(t, "nbdinfo", "libnbd-bin")
	other := newMemory(Info{Name: "other", Size: 512, MinBlock: 512})
	uri, socket := serveUnix(t, volume(), other)

	var got struct {
		Protocol   string
		TLS        bool
		Structured bool
		Exports    []map[string]any
	}
	if err := json.Unmarshal([]byte(run(t, nbdinfo, "--json", "--list", "nbd+unix:///?socket="+socket)), &got); err != nil {
		t.Fatal(err)
	}
	if got.Protocol != "newstyle-fixed" || got.TLS || !got.Structured || len(got.Exports) != 2 {
		t.Fatalf("%+v", got)
	}
	for i, want := range []map[string]any{
		{"export-name": "vol", "description": "a test's volume", "export-size": float64(64 * mib), "is_read_only": false,
			"can_cache": false, "can_df": true, "can_fast_zero": true, "can_flush": true, "can_fua": true,
			"can_multi_conn": true, "can_trim": true, "can_zero": true, "block_size_minimum": 1., "block_size_preferred": 4096.,
			"block_size_maximum": float64(32 * mib)},
		{"export-name": "other", "export-size": 512., "is_read_only": false,
			"can_flush": true, "block_size_minimum": 512.},
	} {
		for k, v := range want {
			if got.Exports[i][k] != v {
				t.Errorf("export %d: %s is %v, want %v", i, k, got.Exports[i][k], v)
			}
		}
	}

	type extent struct {
		Offset, Length int64
		Type           int
	}
	var extents []extent
	if err := json.Unmarshal([]byte(run(t, nbdinfo, "--json", "--map", uri)), &extents); err != nil {
		t.Fatal(err)
	}
	want := []extent{{0, mib, 3}, {mib, mib, 0}, {2 * mib, 61 * mib, 3}, {63 * mib, mib, 0}}
	if fmt.Sprint(extents) != fmt.Sprint(want) {
		t.Errorf("extents %v, want %v", extents, want)
	}
	if out, err := attempt(t, nbdinfo, strings.Replace(uri, "vol", "none", 1)); err == nil || !strings.Contains(out, "No such file") {
		t.Errorf("an export that is not there: %v\n%s", err, out)
	}
}

func TestNbdcopy(t *testing.T) {
	nbdcopy := program(t, "nbdcopy", "libnbd-bin")
	from, to := volume(), newMemory(Info{Name: "vol", Size: 64 * mib})
	for i := range from.data[5*mib : 9*mib] {
		from.data[5*mib+i] = byte(i * 7 >> 3)
	}
	for i := 5 * mib / memBlock; i < 9*mib/memBlock; i++ {
		from.used[i] = true
	}
	fromURI, _ := serveUnix(t, from)
	toURI, _ := serveUnix(t, to)
	file := filepath.Join(t.TempDir(), "copy")
	run(t, nbdcopy, fromURI, file)
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, from.data) {
		t.Fatalf("the file differs, %v", err)
	}
	run(t, nbdcopy, "--flush", file, toURI)
	if now, durable := to.content(0, 64*mib); !bytes.Equal(now, from.data) || !bytes.Equal(durable, from.data) {
		t.Fatal("the copy of the file differs, or is not durable")
	}
	to.change(0, 64*mib, false, false, func(p []byte) { clear(p) })
	run(t, nbdcopy, "--connections=4", "--requests=16", fromURI, toURI)
	if now, _ := to.content(0, 64*mib); !bytes.Equal(now, from.data) {
		t.Fatal("the copy differs")
	}
}

func TestQEMU(t *testing.T) {
	img, io := program(t, "qemu-img", "qemu-utils"), program(t, "qemu-io", "qemu-utils")
	m, empty := volume(), newMemory(Info{Name: "vol", Size: 64 * mib})
	uri, _ := serveUnix(t, m)
	target, _ := serveUnix(t, empty)
	if out := run(t, img, "info", uri); !strings.Contains(out, "virtual size: 64 MiB") {
		t.Error(out)
	}
	file := filepath.Join(t.TempDir(), "copy.qcow2")
	run(t, img, "convert", "-O", "qcow2", uri, file)
	run(t, img, "compare", file, uri)
	run(t, img, "convert", "-n", "-f", "qcow2", "-O", "raw", file, target)
	run(t, img, "compare", uri, target)
	want, _ := m.content(0, 64*mib)
	if got, _ := empty.content(0, 64*mib); !bytes.Equal(got, want) {
		t.Error("the copy differs")
	}
	for _, want := range []string{`"start": 1048576, "length": 1048576`, `"start": 66060288, "length": 1048576`} {
		if out := run(t, img, "map", "--output=json", target); !strings.Contains(out, want) {
			t.Errorf("no %s in %s", want, out)
		}
	}
	out := run(t, io, "-f", "raw", "-c", "write -P 0x5a 3M 1M", "-c", "write -P 0x5b -f 4096 512", "-c", "write -P 0x77 4M 3000",
		"-c", "write -z 3200K 100K", "-c", "write -z -u 3500K 100K", "-c", "discard 1M 512K", "-c", "flush",
		"-c", "read -v -P 0x5a 3M 128K", "-c", "read -P 0 3200K 100K", "-c", "read -P 0x5a 3300K 200K",
		"-c", "read -P 0 3500K 100K", "-c", "read -P 0x77 4M 3000", "-c", "read -P 0x5b 4096 512", uri)
	if strings.Contains(out, "Pattern verification failed") || strings.Contains(out, "failed:") {
		t.Error(out[max(0, len(out)-2000):])
	}
	if now, durable := m.content(4096, 512); now[0] != 0x5b || !bytes.Equal(now, durable) {
		t.Error("a write with FUA is not durable")
	}
	if now, durable := m.content(0, 64*mib); !bytes.Equal(now, durable) {
		t.Error("not all is durable after a flush")
	}
}

func TestFio(t *testing.T) {
	fio := program(t, "fio", "fio")
	if out := run(t, fio, "--enghelp"); !strings.Contains(out, "nbd") {
		testenv.Skip(t, "fio is built without its nbd engine")
	}
	m := newMemory(Info{Name: "vol", Size: 64 * mib})
	m.pieces = 64 << 10
	uri, _ := serveUnix(t, m)
	for _, args := range []string{
		"--bs=4k --iodepth=32 --size=16m --fsync=32",
		"--bsrange=512-300k --iodepth=16 --size=48m",
		"--bs=4k --iodepth=8 --size=8m --numjobs=4 --offset_increment=16m",
	} {
		args := append([]string{"--name=j", "--ioengine=nbd", "--uri=" + uri, "--rw=randrw", "--verify=crc32c",
			"--verify_fatal=1", "--group_reporting", "--output-format=terse"}, strings.Fields(args)...)
		if out := run(t, fio, args...); strings.Contains(out, "verify:") {
			t.Errorf("%q: %s", args, out)
		}
	}
	if !m.unused() {
		t.Error("buffers are not given back")
	}
}

func TestNbdClient(t *testing.T) {
	nbdClient := program(t, "nbd-client", "nbd-client")
	l, err := net.Listen("tcp", testenv.Loopback().String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	start(t, only(volume(), newMemory(Info{Name: "zweites ✓", Size: 1})), l)
	host, port, _ := net.SplitHostPort(l.Addr().String())
	if out := run(t, nbdClient, "-l", host, port); !strings.Contains(out, "vol") || !strings.Contains(out, "zweites ✓") {
		t.Error(out)
	}
}

// shell is a script for nbdsh, with h connected to the export; fails is the errno with which
// a request fails.
const shell = `
import errno
h.set_strict_mode(0)
def fails(name, f):
    try:
        f()
    except nbd.Error as e:
        assert e.errno == name, (e.errno, name, e.string)
    else:
        assert False, name
size = h.get_size()
`

func nbdsh(t *testing.T, python, uri, script string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "script.py")
	if err := os.WriteFile(file, []byte(shell+script), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, python, "-m", "nbd", "-u", uri, "-c", fmt.Sprintf("exec(open(%q).read())", file))
}

func TestNbdsh(t *testing.T) {
	python := program(t, "/usr/bin/python3", "python3-libnbd") // nbdsh takes the first python3 there is
	if out, err := attempt(t, python, "-c", "import nbd"); err != nil {
		testenv.Skip(t, "%s has no module nbd: apt-get install python3-libnbd (%v: %s)", python, err, out)
	}
	blocks := newMemory(Info{Name: "vol", Size: 64 * mib, MinBlock: 4096})
	for _, c := range []struct {
		name   string
		export *memory
		script string
	}{
		{"bytes", volume(), `
h.pwrite(b"x" * 3, 5)
assert h.pread(5, 4) == b"\0xxx\0"
assert h.pread(0, 0) == b"" and h.pread(0, size) == b""
h.pwrite(b"", 0); h.trim(0, 0); h.zero(0, size)
fails("EINVAL", lambda: h.pread(1, size))
fails("EINVAL", lambda: h.pread(2, size - 1))
fails("ENOSPC", lambda: h.pwrite(b"ab", size - 1))
fails("ENOSPC", lambda: h.zero(1, size))
fails("EINVAL", lambda: h.trim(size, 1))
fails("EINVAL", lambda: h.pread(1, 2**63 - 1))
fails("EINVAL", lambda: h.cache(512, 0))
h.pwrite(b"F" * 10, 100, nbd.CMD_FLAG_FUA)
h.zero(4096, 8192, nbd.CMD_FLAG_FUA | nbd.CMD_FLAG_NO_HOLE)
h.zero(4096, 8192, nbd.CMD_FLAG_FAST_ZERO)
fails("ENOTSUP", lambda: h.zero(4096, 8192, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE))
h.trim(4096, 8192, nbd.CMD_FLAG_FUA)
fails("EINVAL", lambda: h.trim(4096, 8192, nbd.CMD_FLAG_DF))
fails("EINVAL", lambda: h.pread(1, 0, nbd.CMD_FLAG_REQ_ONE))
assert len(h.pread(1024*1024, 512, nbd.CMD_FLAG_DF)) == 1024*1024
assert h.pread_structured(8, 3, lambda b, off, s, e: 0) == b"\0\0xxx\0\0\0"
h.pwrite(b"z" * (32*1024*1024), 0)
assert h.pread(32*1024*1024, 0) == b"z" * (32*1024*1024)
fails("EOVERFLOW", lambda: h.pread(32*1024*1024 + 1, 0))
h.flush()
for i in range(300):
    h.aio_pwrite(bytes([i % 251]) * 4096, i * 4096)
while h.aio_in_flight(): h.poll(-1)
for i in range(300):
    assert h.pread(4096, i * 4096) == bytes([i % 251]) * 4096
`},
		{"blocks", blocks, `
assert h.get_block_size(nbd.SIZE_MINIMUM) == 4096 and h.get_block_size(nbd.SIZE_MAXIMUM) == 32*1024*1024
for f in (lambda: h.pread(1, 0), lambda: h.pread(4096, 1), lambda: h.pwrite(b"a", 0), lambda: h.pwrite(b"a" * 4096, 512),
        lambda: h.trim(512, 0), lambda: h.zero(512, 4096)):
    fails("EINVAL", f)
h.pwrite(b"a" * 2**20, 0)
assert h.pread(4096, 2**20 - 4096) == b"a" * 4096
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			uri, _ := serveUnix(t, c.export)
			nbdsh(t, python, uri, c.script)
			if !c.export.unused() {
				t.Error("buffers are not given back")
			}
		})
	}
	t.Run("connections", func(t *testing.T) {
		uri, _ := serveUnix(t, volume())
		nbdsh(t, python, uri, `
assert h.can_multi_conn()
h2 = nbd.NBD(); h2.connect_uri("`+uri+`")
for i in range(200):
    h.pwrite(bytes([i]) * 700, i * 100)
    assert h2.pread(700, i * 100) == bytes([i]) * 700
h2.flush(); h2.shutdown(); h.shutdown()
`)
	})
}

// authority signs certificates for a test, in the files that libnbd looks for.
func certificates(t *testing.T, dir string) *tls.Config {
	t.Helper()
	write := func(name, kind string, der []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	caKey, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	write("ca-cert.pem", "CERTIFICATE", caDER)
	issue := func(name string, serial int64) tls.Certificate {
		key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		c := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: ca.NotBefore,
			NotAfter: ca.NotAfter, DNSNames: []string{"localhost"}, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
		der, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, caKey)
		if err != nil {
			t.Fatal(err)
		}
		pkcs8, _ := x509.MarshalPKCS8PrivateKey(key)
		write(name+"-cert.pem", "CERTIFICATE", der)
		write(name+"-key.pem", "PRIVATE KEY", pkcs8)
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
	issue("client", 3)
	pool := x509.NewCertPool()
	root, _ := x509.ParseCertificate(caDER)
	pool.AddCert(root)
	return &tls.Config{Certificates: []tls.Certificate{issue("server", 2)}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
}

func TestNbdinfoTLS(t *testing.T) {
	nbdinfo, nbdcopy := program(t, "nbdinfo", "libnbd-bin"), program(t, "nbdcopy", "libnbd-bin")
	good, stranger := t.TempDir(), t.TempDir()
	config := only(volume())
	config.TLS, config.RequireTLS = certificates(t, good), true
	certificates(t, stranger) // of another authority
	open := config.Open
	config.Open = func(ctx context.Context, c Client, name string) (Export, error) {
		if c.TLS == nil || c.TLS.PeerCertificates[0].Subject.CommonName != "client" {
			return nil, fmt.Errorf("not for you: %w", EPERM)
		}
		return open(ctx, c, name)
	}
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	start(t, config, l)
	uri := fmt.Sprintf("nbds://localhost:%d/vol?tls-certificates=", l.Addr().(*net.TCPAddr).Port)
	if out := run(t, nbdinfo, uri+good); !strings.Contains(out, "with TLS") {
		t.Error(out)
	}
	file := filepath.Join(t.TempDir(), "copy")
	run(t, nbdcopy, uri+good, file)
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, volume().data) {
		t.Errorf("the copy differs, %v", err)
	}
	if out, err := attempt(t, nbdinfo, uri+stranger); err == nil {
		t.Errorf("certificates of another authority: %s", out)
	}
	if out, err := attempt(t, nbdinfo, strings.Replace(uri, "nbds:", "nbd:", 1)); err == nil || !strings.Contains(out, "TLS") {
		t.Errorf("without TLS: %v %s", err, out)
	}
}
