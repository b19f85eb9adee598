package cluster_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/memctx"
	"pg_stat_backtrace/worker/pg/state"
)

// TestServers reads a server that was started by the dynamic linker, and one with its code in other memory, in all
// ways that need its variables.
func TestServers(t *testing.T) {
	pgtest.One(t, func(t *testing.T, binDir string) {
		program, err := filepath.EvalSymlinks(filepath.Join(binDir, "postgres"))
		if err != nil {
			t.Fatal(err)
		}
		library := filepath.Join(publicDir(t), "move.so")
		gcc := exec.Command("gcc", "-shared", "-fPIC", "-O1", "-o", library, "testdata/preload.c")
		if out, err := gcc.CombinedOutput(); err != nil {
			t.Skipf("gcc: %v\n%s", err, out)
		}
		for _, test := range []struct{ name, command string }{
			{"by the linker", fmt.Sprintf("exec %s --argv0 %s %[2]s", interpreter(t, program), program)},
			{"code moved", fmt.Sprintf("LD_PRELOAD=%s exec %s", library, program)},
		} {
			t.Run(test.name, func(t *testing.T) {
				server := pgtest.Start(t, binDir, pgtest.Options{Stopped: true})
				server.BinDir = wrapped(t, binDir, test.command)
				server.Start()
				server.BinDir = binDir // the other folder is removed before the server is stopped
				conn := server.Connect(t, server.User, "postgres")
				c, err := cluster.ByDataDir(server.DataDir)
				if err != nil {
					t.Fatal(err)
				}
				p, err := cluster.ProgramOf(c.PostmasterPID)
				if err != nil || p.Path != program {
					t.Fatalf("%s: %v", p.Path, err)
				}
				seen(t, &c, int(conn.PgConn().PID()))
			})
		}
	})
}

// seen reads a session that waits for its client.
func seen(t *testing.T, c *cluster.Cluster, pid int) {
	t.Helper()
	reader, err := state.OpenActivity(*c)
	if err != nil {
		t.Fatal(err)
	}
	capturer, err := capture.New(capture.Config{LinesWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the session to be idle", func() bool {
		list, err := reader.Read()
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			if list[i].PID == pid && list[i].WaitEvent == "ClientRead" {
				return true
			}
		}
		return false
	})
	target, err := c.Contains(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer target.Held.Release()
	// The first captures of a busy host may end before the program has been read.
	pgtest.Wait(t, "a capture with the wait event", func() bool {
		tr, err := capturer.Capture(context.Background(), target, capture.Options{Deadline: pgtest.Patience})
		if err != nil {
			t.Fatal(err)
		}
		return tr.Wait.Event == "ClientRead"
	})
	contexts, err := capturer.MemoryContexts(context.Background(), target, memctx.Options{})
	if err != nil || len(contexts.Contexts) == 0 || contexts.Contexts[0].Name != "TopMemoryContext" {
		t.Errorf("memory contexts: %+v, %v", contexts, err)
	}
}

// publicDir makes a directory that the server's user can read.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "program") // t.TempDir is closed to the server's user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // as its purpose is
		t.Fatal(err)
	}
	return dir
}

// wrapped makes a folder of programs in which postgres runs a command, with the arguments of postgres.
func wrapped(t *testing.T, binDir, command string) string {
	t.Helper()
	dir := publicDir(t)
	script := strings.Join([]string{"#!/bin/sh", command + ` "$@"`, ""}, "\n")
	if err := os.WriteFile(filepath.Join(dir, "postgres"), []byte(script), 0o755); err != nil { // a program
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(binDir, "pg_ctl"), filepath.Join(dir, "pg_ctl")); err != nil {
		t.Fatal(err)
	}
	return dir
}
