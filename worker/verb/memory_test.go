package verb

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/memctx"
	"pg_stat_backtrace/worker/serve/spool"
)

// TestMemoryWarning: rows that are missing or not of one moment come with a warning, and others without.
func TestMemoryWarning(t *testing.T) {
	contexts := func(n int, ident string) []memctx.Context {
		list := make([]memctx.Context, n)
		for i := range list {
			list[i] = memctx.Context{Name: "some", Ident: ident, Parent: -1}
		}
		return list
	}
	for name, c := range map[string]struct {
		tree memctx.Tree
		want string
	}{
		"sound":   {memctx.Tree{Consistent: true}, ""},
		"changed": {memctx.Tree{LeftOut: true}, "memory contexts of process 7 changed while they were read"},
		"left out": {
			memctx.Tree{Consistent: true, LeftOut: true},
			"process 7 has too many memory contexts: some, or their free space, are left out",
		},
		"too long": {
			memctx.Tree{Consistent: true, Contexts: contexts(7000, strings.Repeat("x", 1000))},
			"process 7 has too many memory contexts: some, or their free space, are left out",
		},
		"too long with escapes": {
			memctx.Tree{Consistent: true, Contexts: contexts(1000, strings.Repeat("ж", 1500))},
			"process 7 has too many memory contexts: some, or their free space, are left out",
		},
		"deep": {
			memctx.Tree{Consistent: true, NoChecks: true, Contexts: []memctx.Context{
				{Name: "some", Parent: -1, Depth: 199}, {Name: "deeper", Parent: 0, Depth: 200},
			}},
			"process 7 has 1 memory contexts below level 200: their bytes count in their ancestors on that level",
		},
		"assertions": {
			memctx.Tree{Consistent: true, NoChecks: true},
			"free space is not known in a server that was built with assertions",
		},
	} {
		t.Run(name, func(t *testing.T) {
			rows := memoryRows((&capture.MemoryContexts{Tree: &c.tree, Major: 18}).Bounded(), 7, "LATIN1")
			if got := rows[0][0]; got != c.want {
				t.Errorf("the warning is %q, want %q", got, c.want)
			}
			if len(rows)-1 > len(c.tree.Contexts) || strings.HasPrefix(name, "too long") && len(rows)-1 >= len(c.tree.Contexts) {
				t.Errorf("%d rows of %d contexts", len(rows)-1, len(c.tree.Contexts))
			}
		})
	}
}

// TestMemoryFailure: each failure has its SQLSTATE and says what to do.
func TestMemoryFailure(t *testing.T) {
	for _, c := range []struct {
		err  error
		want spool.Answer
	}{
		{memctx.ErrNoContexts, spool.Answer{
			Message: "process with PID 7 has no memory contexts",
			Detail:  "It is starting or ending, or its memory cannot be read.",
		}},
		{capture.ErrNotPostgres, spool.Answer{
			Message: "memory contexts of process with PID 7 are not known",
			Detail:  "It runs no PostgreSQL server of version 14 to 19.",
		}},
		{context.DeadlineExceeded, spool.Answer{
			Message: "memory contexts of process with PID 7 could not be read in time",
			Hint:    "Increase pg_stat_backtrace.timeout.",
		}},
	} {
		got := memoryFailure(7, fmt.Errorf("read: %w", c.err))
		if got.Level != "ERROR" || got.SQLState != "55000" || got.Message != c.want.Message ||
			got.Detail != c.want.Detail || got.Hint != c.want.Hint {
			t.Errorf("%v: %+v", c.err, got)
		}
	}
}

// TestMemoryIsShared: a role has the memory contexts of one process read at a time. Others, and superusers, have room
// meanwhile, and captures too.
func TestMemoryIsShared(t *testing.T) {
	t.Parallel()
	s := idle()
	s.cfg.Server = serving(cluster.Cluster{PostmasterPID: os.Getpid(), PostmasterStart: startOf(t, os.Getpid())})
	ask := func(limit time.Duration, req spool.Request) string {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		req.Verb, req.Targets, req.Deadline = "memory", []int{1}, time.Now().Add(time.Minute)
		return s.Answer(ctx, req).SQLState
	}
	const busy, unknown = "53400", "01000"
	for _, role := range []uint32{16384, 16385} {
		done, err := s.bounds.trees.Acquire(t.Context(), limits.Who{Role: role}, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer done()
		if got := ask(50*time.Millisecond, spool.Request{Caller: role}); got != busy {
			t.Errorf("two readings for role %d: %q", role, got)
		}
	}
	if got := ask(time.Minute, spool.Request{Caller: 10, Superuser: true}); got != unknown {
		t.Errorf("a superuser: %q", got)
	}
}
