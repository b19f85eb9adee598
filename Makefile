# pg_stat_backtrace: build, install and test. `make` alone lists the targets.
# The work of a target that is more than a few lines is in scripts/.

GO       ?= go
PG_CONFIG ?=
DESTDIR  ?=
BINDIR   ?= /usr/local/bin
UNITDIR  ?= /usr/local/lib/systemd/system
OUT      := bin/pg_stat_backtrace
VERSION  := 1.2.0

# -trimpath, and no version-control stamp, make the same bytes from the same source wherever it lies (the stamp also
# fails in a checkout that belongs to somebody else). -s -w drop the symbol table: Go's own stack traces do without.
# -E names the entry point: worker/host/rlimits verifies the limits of the process before the Go runtime starts.
TRIMPATH := -trimpath
GOFLAGS_BUILD = $(TRIMPATH) -buildvcs=false -ldflags "-s -w -E=pg_stat_backtrace_start -X main.version=$(VERSION)"

export GO PG_CONFIG ARCHS

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## List the targets (this text)
	@echo "Usage: make TARGET [VARIABLE=value]"
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Variables:"
	@awk -F '## var ' '/^## var /{print "  " $$2}' $(firstword $(MAKEFILE_LIST))

## var PG_CONFIG=path       the PostgreSQL to install for (default: the path's), to test with (default: the newest)
## var PG_NPM_VERSION=17.10 test with this version of the npm binaries instead
## var DESTDIR=dir          put `make install` below this directory (packaging)
## var BINDIR=dir           where the program goes (default /usr/local/bin)
## var RELEASE_ARCHS=list   the architectures of `make release` (default: all five)
## var RELEASE_KEY=key      the gpg key that signs the checksums of `make release`
## var APT_KEY, DNF_KEY     the gpg keys that sign the repositories of `make apt-repo` and `make dnf-repo`
## var ARCHS=list           the architectures of `make check-arch` (default: all five)
## var SOURCES=dirs         PostgreSQL's source trees for `make name-tables` and `make layouts`
## var CONFIRM=tables       tables of other majors that weaken a table of `make name-tables`, for an older source
## var HEADERS=dirs         headers of servers for `make layouts`
## var PROVE_TESTS=t/x.pl   the TAP tests to run (default: all)
## var BENCHFLAGS=-publish  options of `make bench`; -publish puts table and chart into doc/
## var FUZZTIME=30s         how long `make fuzz` spends on each fuzz test

.PHONY: build
build: ## Build bin/pg_stat_backtrace: one static program, no cgo
	CGO_ENABLED=0 $(GO) build $(GOFLAGS_BUILD) -o "$(OUT)" .

.PHONY: release check-release
release: ## Build dist/: an archive and an SBOM for each architecture, reproducible, and SHA256SUMS (RELEASE_KEY)
	scripts/release.sh

check-release: ## Build the archives twice, compare, sign with a throw-away key (RELEASE_ARCHS)
	scripts/release.sh --check

.PHONY: packages check-packages apt-repo dnf-repo check-repositories dist check-container check-manifests fleet
packages: ## Build deb, rpm and apk packages in dist/packages, reproducible (PACKAGE_ARCHS, PACKAGE_MAJORS)
	packaging/nfpm/build.sh

check-packages: ## As root: build the packages twice, install, upgrade and remove them beside a real systemd and server
	scripts/check-packages.sh

apt-repo: ## Make a signed repository for apt in dist/apt of the packages in dist/packages (APT_KEY)
	scripts/repository.sh apt

dnf-repo: ## Make a signed repository for dnf in dist/dnf of the packages in dist/packages (DNF_KEY)
	scripts/repository.sh dnf

check-repositories: ## On Debian: make both repositories with a throw-away key, and let apt use one
	scripts/repository.sh --check

dist: ## Build dist/pg_stat_backtrace-VERSION.zip for the PostgreSQL Extension Network
	scripts/dist.sh

check-manifests: ## Build the manifests for Kubernetes and decode them strictly into Kubernetes' types
	cd packaging/tools && $(GO) test ./...

fleet: ## Scrape the metrics of 500 simulated servers with one Prometheus (FLEET_SERVERS, FLEET_SECONDS, FLEET_STUCK)
	scripts/fleet.sh

check-container: ## As root: build the worker's image, and run it in a pod made of namespaces (with buildah)
	scripts/check-container.sh

.PHONY: install
install: ## Install the program and the extension (PG_CONFIG, DESTDIR, BINDIR)
	@# sudo's path seldom has Go: what `make build` made is installed then.
	@if command -v "$(GO)" >/dev/null || [ ! -x bin/pg_stat_backtrace ]; then $(MAKE) build; fi
	install -d "$(DESTDIR)$(BINDIR)"
	install -m 0755 bin/pg_stat_backtrace "$(DESTDIR)$(BINDIR)/pg_stat_backtrace"
	scripts/pgxs.sh install DESTDIR="$(DESTDIR)"

.PHONY: install-units
install-units: ## Install the systemd units pg_stat_backtrace@.service and pg_stat_backtrace-all.service (UNITDIR, BINDIR)
	install -d "$(DESTDIR)$(UNITDIR)"
	sed 's|/usr/local/bin/|$(BINDIR)/|' systemd/pg_stat_backtrace@.service \
		>"$(DESTDIR)$(UNITDIR)/pg_stat_backtrace@.service"
	sed 's|/usr/local/bin/|$(BINDIR)/|' systemd/pg_stat_backtrace-all.service \
		>"$(DESTDIR)$(UNITDIR)/pg_stat_backtrace-all.service"
	chmod 0644 "$(DESTDIR)$(UNITDIR)/pg_stat_backtrace@.service" "$(DESTDIR)$(UNITDIR)/pg_stat_backtrace-all.service"

.PHONY: uninstall
uninstall: ## Remove what `make install` and `make install-units` put there
	rm -f "$(DESTDIR)$(BINDIR)/pg_stat_backtrace" "$(DESTDIR)$(UNITDIR)/pg_stat_backtrace@.service" \
		"$(DESTDIR)$(UNITDIR)/pg_stat_backtrace-all.service"
	scripts/pgxs.sh uninstall DESTDIR="$(DESTDIR)"

.PHONY: quickstart
quickstart: ## See it work: a throw-away server, a blocked backend, its stack from psql
	scripts/quickstart.sh

.PHONY: demo
demo: ## Record the command top in a terminal, and write the pictures of the README
	scripts/demo.sh

.PHONY: check check-flaky check-full
check: ## Run the tests: vet, format, Go, pg_regress, TAP (11 to 20 minutes)
	scripts/check.sh --beside pure,vet,format,tools --beside tap sql worker regress

check-flaky: ## Run the tests of `make check` beside four busy loops for each processor (half an hour or more)
	PGSB_TEST_STRICT=1 scripts/check.sh load sql pure worker regress tap

check-full: ## Run every test to its full extent: also builds, linters, the race detector, every version (two hours)
	PGSB_TEST_FULL=1 scripts/check.sh vet builds format lint tools pure race
	$(MAKE) check-versions

.PHONY: test test-pg
test: ## Run the quick tests that need no PostgreSQL server (minutes; seconds if little has changed)
	scripts/check.sh test

test-pg: ## Run the quick tests on one version of PostgreSQL (PG_CONFIG, PG_NPM_VERSION)
	scripts/check.sh test-pg regress

.PHONY: check-prose
check-prose: ## Fail on unclear words in new prose (tools/prosecheck lists them)
	scripts/tool.sh prosecheck

.PHONY: check-go check-race check-regress check-tap
check-go: ## Run the Go tests
	scripts/check.sh go

check-race: ## Run the Go tests with the race detector (half an hour)
	scripts/check.sh race

check-regress: ## Run the pg_regress tests
	scripts/check.sh regress

check-tap: ## Run the TAP tests (PROVE_TESTS)
	scripts/check.sh tap

.PHONY: check-soak
check-soak: ## The long tests: other unwinders, random stacks, faults by the thousand, PostgreSQL's own tests under constant capture
	scripts/check.sh soak faults nonstop
	scripts/check-witness.sh
	WITNESS_ENGINE=nonstop scripts/check-witness.sh tests replication

.PHONY: check-names
check-names: ## Compare names, lines and inlined calls with addr2line, libunwind and eu-stack, at length (builds a PostgreSQL with -g)
	scripts/check.sh names

.PHONY: name-tables
name-tables: ## Write the tables by which static functions of stripped servers are named (SOURCES, CONFIRM)
	@[ -n "$(SOURCES)" ] || { echo 'usage: make name-tables SOURCES="/path/to/postgresql-15.18 ..."' >&2; exit 1; }
	for source in $(SOURCES); do \
		major=$$(sed -n "s/^PACKAGE_VERSION='\([0-9]*\).*/\1/p" "$$source/configure") && \
		scripts/tool.sh selfnamesgen -confirm "$(CONFIRM)" -o "unwind/selfnames/tables/$$major.table" "$$source" || exit 1; done

.PHONY: layouts
layouts: ## Write package layout from headers of servers (HEADERS) and source trees for private structures (SOURCES)
	@[ -n "$(HEADERS)" ] || { echo 'usage: make layouts HEADERS="/usr/include/postgresql/18/server ..." [SOURCES="/path/to/postgresql-18.6 ..."]' >&2; exit 1; }
	for headers in $(HEADERS); do \
		major=$$(sed -n 's/^#define PG_MAJORVERSION "\(.*\)"/\1/p' "$$headers/pg_config.h") && \
		source= && for s in $(SOURCES); do case $$(sed -n "s/^PACKAGE_VERSION='\([0-9]*\).*/\1/p" "$$s/configure") in "$$major") source=$$s;; esac; done && \
		touch "tools/layoutgen/known/$$major.txt" && \
		scripts/tool.sh layoutgen -headers "$$headers" -source "$$source" -known "tools/layoutgen/known/$$major.txt" \
			-o "worker/pg/layout/pg$$major.go" || exit 1; done

.PHONY: check-foreign
check-foreign: ## As root: stacks of another distribution's PostgreSQL in a folder made by debootstrap (FOREIGN_SUITE, FOREIGN_VERSION)
	scripts/check-foreign.sh

.PHONY: check-musl
check-musl: ## Stacks of a PostgreSQL that runs with musl, Alpine's C library (builds one; needs the package musl-tools)
	scripts/check-musl.sh

.PHONY: check-go-versions
check-go-versions: ## Compare the goroutines and stacks of programs of Go 1.16 to today with what they print (slow: downloads tool chains)
	scripts/check-go.sh

.PHONY: check-arch
check-arch: ## Boot arm64, ppc64le, s390x, riscv64 and amd64 under qemu, test there, write doc/internals/benchmarks.md's table (ARCHS)
	scripts/check-arch.sh

.PHONY: check-versions
check-versions: ## Run the tests about SQL, pg_regress and TAP on every version of the npm binaries, 14 to 18
	scripts/check.sh versions
	awk '!/^#/ {print $$2}' scripts/npm-postgresql.sha512 | \
		while read -r version; do PG_NPM_VERSION=$$version scripts/check.sh regress tap </dev/null || exit 1; done

.PHONY: check-19
check-19: ## Run the tests of the SQL contract on the release candidate of PostgreSQL 19 (slow: from Debian experimental)
	PG_EXPERIMENTAL=1 scripts/check.sh contract regress

.PHONY: support-table
support-table: ## Run the end-to-end tests on every version and write doc/internals/benchmarks.md's table of supported versions
	scripts/check.sh support-table

.PHONY: lint
lint: ## Run go vet, golangci-lint and shellcheck, and build for every architecture
	scripts/check.sh vet builds format lint

.PHONY: fmt
fmt: ## Format the Go code
	gofmt -w $$(git ls-files --cached --others --exclude-standard '*.go')

.PHONY: sql
sql: ## Make the extension's scripts of the current version from sql/src
	scripts/tool.sh sqlscript

.PHONY: generate check-generate
generate: ## Compile the programs for the kernel anew (*.bpf.c, needs clang-19); the result is committed
	scripts/generate.sh

check-generate: ## Compile them in a copy, and fail if the committed result differs
	scripts/generate.sh --check

.PHONY: fuzz
fuzz: ## Run every fuzz test for FUZZTIME (default 30s) each
	scripts/fuzz.sh

.PHONY: cores check-cores
cores: ## Make the core files of the tests anew (cross compilers, qemu, gdb-multiarch)
	scripts/cores.sh

check-cores: ## Compare cores of C, C++ and Go programs of the other architectures with gdb-multiarch (MACHINES)
	scripts/check-cores.sh

.PHONY: bench
bench: ## Measure pause, capture and SQL round trip, beside libunwind over ptrace
	scripts/bench.sh $(BENCHFLAGS)

.PHONY: bench-waits
bench-waits: ## Measure the cost of timing wait events, switched on and off within one run (BENCHFLAGS)
	scripts/bench-waits.sh $(BENCHFLAGS)

.PHONY: bench-wakeups
bench-wakeups: ## As root: count the wake-ups of an idle worker, and of one for 20 idle servers
	scripts/bench-wakeups.sh

.PHONY: bench-profile
bench-profile: ## Measure the cost of profiles of a whole server, beside perf record, as bench-waits does (BENCHFLAGS)
	scripts/bench-waits.sh -cases control,profile-cpu,profile-cpu@10,profile-wall,perf -loads simple,prepared $(BENCHFLAGS)

.PHONY: soak-queue
soak-queue: ## 100,000 queued requests while the worker is killed every second (SOAK=-duration 1h: watch the table)
	scripts/soak-queue.sh $(SOAK)

.PHONY: clean
clean: ## Remove what was built here (bin/, dist/, tools/bench/out/, tmp_check/); downloads stay in the cache
	rm -rf bin dist tools/bench/out tmp_check
