package capture_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/render"
)

// TestServerWithoutSections recognizes a server whose program has no section headers. Some linkers and packers omit
// them.
func TestServerWithoutSections(t *testing.T) {
	objcopy, err := exec.LookPath("llvm-objcopy")
	if err != nil {
		t.Skip("llvm-objcopy, which can remove section headers, is not installed")
	}
	pgtest.Each(t, func(t *testing.T, binDir string) {
		changed := changedServer(t, binDir, func(program string) { command(t, objcopy, "--strip-sections", program) })
		server := pgtest.Start(t, changed, pgtest.Options{})
		conn := server.Connect(t, server.User, "postgres")
		pgtest.Wait(t, "the session to be idle", func() bool {
			tr := observeAlone(t, int(conn.PgConn().PID()))
			if tr.Unrecognised != "" {
				t.Fatalf("not recognised: %s", tr.Unrecognised)
			}
			return tr.Wait.Event == "ClientRead"
		})
	})
}

// TestUnknownServer captures a server of a version that is not known: its stack has no levels, and says why.
func TestUnknownServer(t *testing.T) {
	pgtest.One(t, func(t *testing.T, binDir string) {
		changed := changedServer(t, binDir, func(program string) {
			text, err := os.ReadFile(program)
			if err != nil {
				t.Fatal(err)
			}
			const mark = "postgres (PostgreSQL) "
			version := mark + pgtest.Version(t, binDir)
			if !bytes.Contains(text, []byte(version)) {
				t.Fatalf("%s does not contain %q", program, version)
			}
			text = bytes.ReplaceAll(text, []byte(version), []byte(mark+strings.Repeat("9", len(version)-len(mark))))
			if err := os.WriteFile(program, text, 0o755); err != nil {
				t.Fatal(err)
			}
		})
		server := pgtest.Start(t, binDir, pgtest.Options{Stopped: true})
		server.BinDir = changed
		server.Start()
		conn := server.Connect(t, server.User, "postgres")
		tr := observeAlone(t, int(conn.PgConn().PID()))
		text := render.Text(tr, render.Options{})
		if tr.Unrecognised == "" || tr.Wait.Event != "" || !strings.Contains(text, "[server not recognised: ") {
			t.Errorf("waits for %v, unrecognised %q:\n%s", tr.Wait, tr.Unrecognised, text)
		}
	})
}

// observeAlone captures a process of a changed server. The shared capturer of observe may know another program with the same
// build-id.
func observeAlone(t *testing.T, pid int) *backtrace.Trace {
	t.Helper()
	c, err := capture.New(capture.Config{AwaitNames: true, LinesWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{Deadline: pgtest.Patience})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// changedServer makes a copy of a server's program in a tree of links beside which it finds its other files, changes
// the copy, and returns its folder.
func changedServer(t *testing.T, binDir string, change func(program string)) string {
	t.Helper()
	const levels = 4                        // from /usr/lib/postgresql/15/bin up to /usr
	root, err := os.MkdirTemp("", "server") // t.TempDir is closed to the server's user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	at, folder := root, binDir
	var names []string
	for range levels {
		names = append([]string{filepath.Base(folder)}, names...)
		folder = filepath.Dir(folder)
	}
	for _, name := range names {
		link(t, folder, at, name)
		folder, at = filepath.Join(folder, name), filepath.Join(at, name)
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link(t, folder, at, "postgres")
	program := filepath.Join(at, "postgres")
	command(t, "cp", filepath.Join(folder, "postgres"), program)
	change(program)
	return at
}

// link links all that is in a folder into another one, except one name.
func link(t *testing.T, from, to, except string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == except {
			continue
		}
		if err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
}
