package e2e

import (
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// groups are the rows of doc/internals/benchmarks.md's table of supported versions. A group about the worker and the host hardly
// depends on the server, and runs on the newest version only, unless pgtest.Full.
var groups = []struct {
	name  string
	about subject
	run   func(*testing.T, *site)
}{
	{"transactions, cursors, triggers, parallel plans", theSQL, situations},
	{"settings and search_path traps", theSQL, traps},
	{"encodings and names", theSQL, encodings},
	{"hot standby", theSQL, standby},
	{"no slot left, commits hanging, wal_level minimal", theSQL, strained},
	{"the server log", theSQL, logging},
	{"permissions", theSQL, permissions},
	{"identity: roles, wrappers, SET ROLE", theSQL, identity},
	{"attacks", theWorker, attacks},
	{"worker absent, killed, stopped, replaced", theWorker, workers},
	{"spool lost, full, read-only", theWorker, spools},
	{"server restarted, crashed, promoted, moved", theWorker, servers},
	{"the kernel refuses", theWorker, refusals},
	{"clock set back", theWorker, clocks},
	{"hundreds of callers at once", theWorker, crowd},
	{"errors word by word", theWorker, words}, // of all groups
}

type subject int

const (
	theSQL subject = iota
	theWorker
)

// TestContract checks the contract on each version. The groups share a server. Groups that would damage it start a
// separate server.
func TestContract(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers; left out by -short")
	}
	newest := pgtest.Newest(t)
	pgtest.Each(t, func(t *testing.T, binDir string) {
		t.Parallel()
		s := start(t, binDir, pgtest.Options{Conf: shared, Env: preloaded()})
		s.work(t)
		for _, g := range groups {
			if g.about == theWorker && binDir != newest && !pgtest.Full() {
				continue
			}
			t.Run(g.name, func(t *testing.T) { g.run(t, s) })
		}
	})
}

// words checks that each condition of the table was met on this version.
func words(t *testing.T, s *site) {
	for _, c := range conditions {
		if c.elsewhere == "" && !s.has(c.name) {
			t.Errorf("no call has ended with: %s (%s)", c.name, c.message)
		}
	}
	for _, m := range s.unknown {
		t.Errorf("words that the table of conditions has not: %v", m)
	}
}

// preloaded is the environment of a server with testdata/preload.c in it.
func preloaded() []string {
	if programs.preload == "" {
		return nil
	}
	return []string{"LD_PRELOAD=" + programs.preload}
}

// shared are the settings of the server that the groups share. Its autovacuum workers take their time.
var shared = []string{
	"autovacuum_naptime = 1s", "autovacuum_vacuum_threshold = 1", "autovacuum_vacuum_scale_factor = 0",
	"autovacuum_vacuum_cost_delay = 100ms", "autovacuum_vacuum_cost_limit = 1", "max_connections = 100",
	"authentication_timeout = 600", // one backend does not authenticate, and is captured
}
