// Package stf runs STF scripts, the test format of P4's reference compiler: packets
// in, table entries, packets out. Those in testdata are for the programs of the
// embedded switch's own tests. $P4_CORPUS names a directory of more: scripts beside
// the JSON and the P4Info of their programs, and programs alone, which are to load.
package stf

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	p4cfg "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/mcrdma/mcrdma/internal/softswitch/p4rtserver"
	"github.com/mcrdma/mcrdma/internal/softswitch/pipeline"
	"github.com/mcrdma/mcrdma/internal/softswitch/pre"
	"github.com/mcrdma/mcrdma/internal/softswitch/program"
)

// target is a switch that keeps what is loaded.
type target struct{ run *run }

func (t target) Do(f func(*pipeline.Pipeline, *pre.Engine)) { f(t.run.pipe, t.run.pre) }

func (t target) Load(p *pipeline.Pipeline, e *pre.Engine) { t.run.pipe, t.run.pre = p, e }

func (t target) NewPipeline(prog *program.Program) (*pipeline.Pipeline, *pre.Engine, error) {
	e := pre.New(pre.Limits{})
	p, err := pipeline.New(prog, pipeline.Options{PRE: e})
	return p, e, err
}

func (t target) Inject([]byte) error { return nil }

func (t target) CPUPort() uint16 { return 0 }

func (t target) Subscribe(func([]byte), func([]pipeline.Digest), func([]pipeline.Expired)) {}

func (t target) Now() time.Duration { return 0 }

// start loads a program, by way of its P4Info if there is one.
func start(json, info []byte) (*run, error) {
	r := &run{}
	if info == nil {
		prog, err := program.Load(json)
		if err == nil {
			r.pipe, r.pre, err = target{r}.NewPipeline(prog)
		}
		return r, err
	}
	c := &p4.ForwardingPipelineConfig{P4Info: &p4cfg.P4Info{}, P4DeviceConfig: json}
	if err := prototext.Unmarshal(info, c.P4Info); err != nil {
		return nil, err
	}
	s := p4rtserver.New(target{r}, p4rtserver.Options{})
	defer s.Close()
	return r, s.Preset(c)
}

// one runs the script of that name, with JSON and P4Info of the same name.
func one(t *testing.T, script, program string) {
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	json, err := os.ReadFile(program + ".json")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.ReadFile(program + ".p4info.txtpb")
	if err != nil {
		info = nil
	}
	r, err := start(json, info)
	if err == nil {
		err = r.script(string(text))
	}
	if err != nil {
		t.Error(err)
	}
}

// TestOwn runs the scripts over our own programs.
func TestOwn(t *testing.T) {
	scripts, err := filepath.Glob("testdata/*.stf")
	if err != nil || len(scripts) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, s := range scripts {
		name := strings.TrimSuffix(filepath.Base(s), ".stf")
		t.Run(name, func(t *testing.T) { one(t, s, filepath.Join("../../internal/softswitch/program/testdata", name)) })
	}
}

// notHere are programs that bmv2's simple_switch refuses, too: of another
// architecture, or no whole programs.
var notHere = []string{"id_collision.json", "pna-demo-L2-one-table.json", "tests/testdata/logging.json", "one_header.json"}

// TestCorpus runs the scripts of $P4_CORPUS, and loads the programs that have none.
func TestCorpus(t *testing.T) {
	root := os.Getenv("P4_CORPUS")
	if root == "" {
		t.Skip("optional: P4_CORPUS names no directory with programs and their STF scripts")
	}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		name, isJSON := strings.CutSuffix(path, ".json")
		sub, _ := filepath.Rel(root, name)
		switch {
		case err != nil:
			return err
		case strings.HasSuffix(path, ".stf"):
			name = strings.TrimSuffix(path, ".stf")
			sub, _ = filepath.Rel(root, name)
			t.Run(sub, func(t *testing.T) {
				if !exists(name + ".json") {
					t.Skip("optional: the corpus has no JSON of it: p4c does not compile it for v1model")
				}
				one(t, path, name)
			})
		case isJSON && !exists(name+".stf"):
			t.Run(sub, func(t *testing.T) { loads(t, path) })
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// loads loads a file if it is a program.
func loads(t *testing.T, path string) {
	json, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(json), `"header_types"`) {
		t.Skip("optional: not a program")
	}
	for _, s := range notHere {
		if strings.HasSuffix(path, s) {
			t.Skip("optional: simple_switch refuses it, too")
		}
	}
	if _, err := start(json, nil); err != nil {
		t.Error(err)
	}
}
