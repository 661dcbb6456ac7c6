package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcrdma/mcrdma/internal/cmdline"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/schedule"
	"github.com/mcrdma/mcrdma/pkg/rdmcfallback/tcp"
)

// The choice depends on nothing but the flags that all members share, and can be
// overruled.
func TestChoose(t *testing.T) {
	of := func(args ...string) *settings {
		t.Helper()
		s, err := parse(args)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	root := of("--members", "a:1,b:1,c:1,d:1,e:1", "--self", "0", "file")
	other := of("--members", "a:1,b:1,c:1,d:1,e:1", "--self", "3")
	here := of("-n", "4", "file")
	if root.algorithm != schedule.BinomialPipeline || root.plan == "" || root.blockSize < 4096 {
		t.Errorf("%+v", root)
	}
	if root.algorithm != other.algorithm || root.blockSize != other.blockSize || here.algorithm != root.algorithm || here.blockSize != root.blockSize {
		t.Errorf("%+v, %+v and %+v", root, other, here)
	}
	for _, text := range []string{"16 MiB to 4 receivers", "10 Gb/s", "not sequential"} {
		if !strings.Contains(root.plan, text) {
			t.Errorf("%q is missing in %q", text, root.plan)
		}
	}
	if s := of("-n", "4", "--gbps", "0.1", "--block", "8K", "file"); s.blockSize != 8<<10 || !strings.Contains(s.plan, "100 Mb/s") {
		t.Errorf("%+v", s)
	}
	small := filepath.Join(t.TempDir(), "small")
	if err := os.WriteFile(small, []byte("hi\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := of("-n", "4", small); !strings.Contains(s.plan, "3 B to 4 receivers") || !strings.Contains(s.plan, ", 1 of them") {
		t.Errorf("%+v", s)
	}
	if s := of("--members", "a:1,b:1,c:1,d:1,e:1", small); s.plan != root.plan {
		t.Errorf("receivers do not know that the file is small: %+v", s)
	}
	if s := of("-n", "1", "file"); s.algorithm == schedule.Chain {
		t.Errorf("%+v", s)
	}
	if s := of("-n", "4", "--algorithm", "chain", "file"); s.algorithm != schedule.Chain || s.blockSize != tcp.BlockSize || s.plan != "" {
		t.Errorf("%+v", s)
	}
	for _, args := range [][]string{
		{"-n", "4", "--algorithm", "fastest", "file"}, {"-n", "4", "--gbps", "-1", "file"}, {"--members", "a:1", "file"}, {"-n", "4", "--block", "-1", "file"}, {"-n", "4"}, {"-members", "a:1", "file"},
	} {
		if _, err := parse(args); !errors.As(err, new(cmdline.UsageError)) {
			t.Errorf("%q: %v, which is no error of usage", args, err)
		}
	}
}
