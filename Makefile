# Every target sets up what it needs itself. Details: CONTRIBUTING.md.
#   LONG=1        test: many more seeds and scenarios, without the race detector
#   FILE=some.iso demo: what is replicated; ARGS=--keep: it keeps running, to be looked at
#   FUZZTIME=10m  fuzz: time for each fuzz target
#   SEED=17       mutants: which are drawn; COUNT=300: how many; ARGS="-only pkg/qp/rc": of these packages
#   SWITCH=bmv2   ptf, e2e, mininet, mininet-test: on simple_switch_grpc; ptf with SWITCH=fastpath: with what is hot in the kernel
#   TESTS="merge ecn.Threshold" ptf: these only; TOPO=figure3 mininet, mininet-test: on this topology
#   CI=true or MCRDMA_MUST_RUN=1: a test that has to skip fails instead

GO       ?= go
MODULE    = github.com/mcrdma/mcrdma
FUZZTIME ?= 30s
TEST      = $(GO) run ./scripts/gotest $(if $(CI),-v) -vet=off
LINT      = $(GO) tool -modfile=tools/go.mod golangci-lint

# SERIAL are the pure cores, and tests without goroutines (tests/purity checks that). The
# race detector has nothing to find there, and makes them ten times slower; it sees the cores
# in those that use them.
SERIAL = pkg/rocev2 pkg/qp/rc pkg/ackmerge pkg/bifurcation pkg/rdmcfallback/schedule pkg/rdmcfallback/engine \
	internal/softswitch/program internal/softswitch/match internal/softswitch/pre internal/softswitch/pipeline \
	internal/softswitch/traffic internal/switchagent/unicast internal/switchagent/links internal/switchagent/planner internal/switchspec \
	internal/routing/liveness internal/connmgr/health internal/group pkg/replica/core pkg/collective/core pkg/collective/model tests/dataplane tests/purity \
	cmd/cmd-daemon/internal/lab cmd/internal/cli cmd/internal/findings cmd/switchctl/internal/journey cmd/switchctl/internal/planning \
	cmd/mcblock/internal/config internal/connmgr/config internal/failure internal/labca internal/pcapfile internal/strictyaml internal/switchagent/config \
	internal/simnet internal/simnet/figures internal/simnet/replicate internal/simnet/workload \
	internal/topology scripts/gotest tests/chaos/history tests/chaos/plan
# PER_PACKET are the cores of the embedded switch, which each packet of a lab passes through. The
# other packages' tests have them compiled without the race detector: TestDeath and TestCreate of
# tests/scenario compute half as long. SWITCH_TESTS, which call them from several goroutines, have
# all of it.
PER_PACKET   = $(filter internal/softswitch/%,$(SERIAL))
SWITCH_TESTS = internal/softswitch internal/softswitch/p4rtserver
# ONCE_MORE are tests that run without the race detector too, or only: those that count
# allocations, those that say so, and those that take a sample with it.
ONCE_MORE = Alloc|WithoutRace|KilledAnywhere|TestModel|TestRandom

# A program with the race detector waits for a second before it ends, unless told otherwise.
export GORACE ?= atexit_sleep_ms=10

export MCRDMA_MUST_RUN ?= $(if $(filter true 1,$(CI)),1,)

.PHONY: help demo volume build lint test test-race test-once-more test-serial test-switch nightly bench ptf fuzz mutants chaos e2e interop mininet mininet-test model proto p4 p4-tna bpf deb clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## a file to three hosts by switches and by hosts, and one of them dies
	@echo "compiling examples/replicate; the first time takes a minute or more" >&2
	@$(GO) build -o bin/replicate ./examples/replicate
	@bin/replicate $(if $(FILE),--file '$(FILE)') $(ARGS)

volume: ## a replicated volume on three hosts of this machine, at nbd://127.0.0.1:10809/vol
	@echo "compiling mcblock and examples/volume; the first time takes a minute or more" >&2
	@$(GO) build -o bin/ ./cmd/mcblock ./examples/volume
	@bin/volume $(ARGS)

build: ## compile everything, tests included; for programs: go build -o bin/ ./cmd/...
	$(GO) build ./...
	$(GO) vet -tags interop ./...

lint: ## static analysis, import directions, purity rules
	@scripts/need gcc
	$(LINT) run
	$(GO) test -count=1 ./tests/purity

test: ## all tests, with the race detector where anything is concurrent; LONG=1 for the long mode
	@scripts/need gcc ip:iproute2
ifeq ($(LONG),1)
	MCRDMA_LONG=1 $(TEST) -count=1 -timeout 120m ./...
else
	@$(MAKE) --no-print-directory -k -j2 test-race test-once-more test-serial test-switch
endif

# Two of these run side by side, as many tests wait most of the time. tests/scenario and
# pkg/replica take longest, and begin: the first computes for minutes on one processor
# (testenv.OneProcessor).
test-race:
	$(TEST) -race $(PER_PACKET:%=-gcflags=$(MODULE)/%=-race=false) -p 3 -timeout 25m \
		$$($(GO) list ./tests/scenario ./pkg/replica/... ./... | grep -vE '/($(subst $() ,|,$(SWITCH_TESTS) $(SERIAL)))$$')

test-switch:
	$(TEST) -race -timeout 10m $(SWITCH_TESTS:%=./%)

test-once-more:
	$(TEST) -p 2 -run '$(ONCE_MORE)' -timeout 15m \
		$$(grep -rlE 'func Test\w*($(ONCE_MORE))' --include=*_test.go . | xargs -n1 dirname | sort -ur | grep -vxE '\./($(subst $() ,|,$(SERIAL)))')

test-serial:
	$(TEST) -p 2 -timeout 10m $(SERIAL:%=./%)

nightly: ## what takes hours: the long mode, the model, the fault matrix, a Debian on a volume, mutants, and the fuzz targets; needs root
	$(MAKE) test LONG=1
	$(MAKE) model chaos
	scripts/need mmdebstrap mkfs.ext4:e2fsprogs nbdcopy:libnbd-bin qemu-system-x86_64:qemu-system-x86
	MCRDMA_LONG=1 $(GO) test -tags interop -count=1 -v -timeout 60m -run TestDebian ./tests/interop/volume
	MCRDMA_LONG=1 $(GO) test -tags interop -count=1 -v -timeout 60m ./tests/interop/rxe
	$(MAKE) mutants COUNT=300
	$(MAKE) fuzz FUZZTIME=$(if $(filter file,$(origin FUZZTIME)),10m,$(FUZZTIME))

bench: ## benchmarks, with allocations
	$(GO) test -run '^$$' -bench . -benchmem ./...
	$(GO) run ./tests/bench/simulated
	$(GO) run ./tests/bench/softroce
	$(GO) run ./tests/bench/softswitch
	$(GO) run ./tests/bench/receivers
	$(GO) run ./tests/bench/fastpath
	$(GO) run ./tests/bench/groups
	$(GO) run ./tests/bench/rdmc
	$(GO) run ./tests/bench/collective
	$(GO) run ./tests/bench/volumes

chaos: ## the fault matrices of groups and of volumes, on switches and with the fast path: rows and many runs, in network namespaces; needs root
	@scripts/need gcc ip:iproute2
	$(GO) run ./tests/chaos -rows -runs 200
	$(GO) run ./tests/chaos -volumes -rows -runs 200
	$(GO) run ./tests/chaos -fastpath -rows -runs 50
	$(GO) run ./tests/chaos -fastpath -volumes -rows -runs 20

e2e: ## whole programs, devices and switches across network namespaces, on bmv2 with SWITCH=bmv2 (needs root)
	@scripts/need gcc ip:iproute2
ifeq ($(or $(SWITCH),softswitch),softswitch)
	MCRDMA_E2E=1 $(GO) run ./scripts/gotest -v -p 1 -count=1 -timeout 15m ./tests/e2e/...
	MCRDMA_E2E=1 $(GO) run ./scripts/gotest -v -count=1 -timeout 15m ./tests/docs
	MCRDMA_E2E=1 $(GO) run ./scripts/gotest -v -count=1 -timeout 15m -run '^TestVolume' ./tests/chaos
	$(GO) run ./scripts/gotest -v -count=1 -timeout 15m -run '^TestRun|Namespace|Veth' ./examples/... ./pkg/... ./internal/softswitch/... ./cmd/...
else
	MCRDMA_E2E=1 MCRDMA_SWITCH=$(SWITCH) $(GO) run ./scripts/gotest -v -count=1 -timeout 30m ./tests/e2e
endif

interop: ## against the Linux kernel's own RoCE stack and NBD client, in QEMU guests, and libnbd's tests; needs root, sets itself up
	@scripts/need gcc nbd-client mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs nbdkit nbdcopy:libnbd-bin nbdsh:python3-libnbd /usr/include/libnbd.h:libnbd-dev
	$(GO) test -tags interop -p 1 -count=1 -v -timeout 20m ./tests/interop/...

ptf: ## the P4 program on the embedded switch, on bmv2 with SWITCH=bmv2, in the kernel with SWITCH=fastpath; needs root
	@GO="$(GO)" tests/ptf/run -s $(or $(SWITCH),softswitch) $(TESTS)

mininet: ## a prompt on switches and hosts in Mininet: TOPO=rack, figure3, fattree or a file, SWITCH=bmv2; needs root
	@GO="$(GO)" bmv2/mininet/run $(if $(SWITCH),-s $(SWITCH)) $(TOPO)

mininet-test: ## the multicast test in Mininet, on bmv2 too if it is installed, and what is left then; needs root
	@GO="$(GO)" bmv2/mininet/run --test $(if $(SWITCH),-s $(SWITCH)) $(TOPO)
	@cd bmv2/mininet && GO="$(GO)" /usr/bin/python3 -B -m unittest discover -s tests -t .

model: ## explore the merging exhaustively up to a bound, in the model, the P4 program and, as root, the kernel's bytecode
	$(GO) run ./tests/model
	$(GO) run ./tests/model -p4
	$(if $(filter 0,$(shell id -u)),$(GO) run ./tests/model -kernel)

fuzz: ## run every fuzz target, one after the other, FUZZTIME each
	@GO="$(GO)" scripts/fuzz $(FUZZTIME)

mutants: ## small mistakes in the pure cores, drawn by SEED: the tests must find 97 % of them; COUNT of them
	$(GO) run ./tests/mutants -seed $(or $(SEED),$(shell date +%Y%m%d)) $(if $(COUNT),-count $(COUNT)) $(ARGS)

proto: ## check api/ and generate its Go code
	cd api && $(GO) tool -modfile=../tools/go.mod buf lint && $(GO) tool -modfile=../tools/go.mod buf generate

p4: ## compile p4src into bmv2/; needs p4c-bm2-ss
	$(GO) run ./bmv2/compile/p4c

p4-tna: ## compile p4src/tna for v1model and Tofino; needs p4c-bm2-ss, p4c-barefoot, bfas
	$(GO) run ./p4src/tna/compile

bpf: ## compile bpf/ into bpf/mcrdma.o, by Debian's clang; only after a change of its C source
	@scripts/need clang llvm-strip:llvm gcc
	$(GO) run ./bpf/compile

deb: ## the Debian package, in out/deb, and its life on a machine: installed, upgraded, removed; needs root for that
	@scripts/need dpkg-deb:dpkg gzip git ip:iproute2 systemctl:systemd
	@deb=$$(GO="$(GO)" packaging/build) && MCRDMA_DEB=$$deb $(GO) run ./scripts/gotest $(if $(CI),-v) -count=1 ./packaging && ls -l $$deb

clean: ## remove what the other targets made
	rm -rf bin out
	$(GO) clean -testcache -fuzzcache
