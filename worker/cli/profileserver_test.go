package cli

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	pprof "github.com/google/pprof/profile"
	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/worker/cli/measurecmd"
)

// busyServer is a server with a session that works all the time.
func busyServer(t *testing.T, o pgtest.Options) *pgtest.Server {
	t.Helper()
	o.Conf = append([]string{"compute_query_id = on"}, o.Conf...)
	server := pgtest.Lend(t, pgtest.BinDir(t), o)
	session := server.Connect(t, "postgres", "postgres")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = session.Exec(ctx, "SELECT count(*) FROM generate_series(1, 1000000000000)")
	}()
	t.Cleanup(func() { cancel(); <-done })
	busyProcess(t, server)
	return server
}

// TestProfileServer takes profiles of a server in all formats.
func TestProfileServer(t *testing.T) {
	server := busyServer(t, pgtest.Options{})
	if err := clusterbpf.Check(); err != nil {
		status, stdout, stderr := run(t, "profile", "-D", server.DataDir)
		if status != 1 || stdout != "" || !strings.Contains(stderr, "CAP_BPF") {
			t.Errorf("status %d, %q, %q", status, stdout, stderr)
		}
		t.Skip(err)
	}
	// Another process may run too, and have a sample.
	query := regexp.MustCompile(`(?m)^.* QUERY ID  QUERY\n.* -?\d+  SELECT count\(\*\) FROM generate_series\(1, 1000000000000\)$`)
	profiled(t, func(stdout, stderr string) bool {
		return strings.Count(stdout, " %  client backend\n") == 1 && strings.Contains(stdout, "  FUNCTION\n") && query.MatchString(stdout) &&
			strings.Contains(stderr, "of them labelled")
	}, "-D", server.DataDir)
	file := filepath.Join(t.TempDir(), "p.pb.gz")
	status, stdout, stderr := run(t, "profile", "-D", server.DataDir, "--duration", "1s", "--mode", "wall",
		"--backend-type", "client backend", "--database", "postgres", "--format", "pprof", "-o", file)
	if status != 0 || stdout != "" {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p, err := pprof.Parse(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range p.Sample {
		if got := s.Label["backend_type"]; len(got) != 1 || got[0] != "client backend" {
			t.Errorf("a sample of %v", got)
		}
	}
	folded := regexp.MustCompile(`(?m)^client_backend;active;_start;.*PostgresMain;.* \d+$`)
	profiled(t, func(stdout, _ string) bool { return folded.MatchString(stdout) },
		"-D", server.DataDir, "--format", "folded", "--group-by", "backend_type,state")
	for _, format := range []string{"speedscope", "html"} {
		profiled(t, func(stdout, _ string) bool { return strings.Contains(stdout, "PostgresMain") }, "-D", server.DataDir, "--format", format)
	}
	status, stdout, stderr = run(t, "profile", "-D", server.DataDir, "--duration", "300ms", "--user", "nobody")
	if status != 1 || stdout != "" || !strings.Contains(stderr, "no samples") || !strings.Contains(stderr, "user nobody") {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
	// Go compiles pprof first. The session need not be busy meanwhile.
	server.Exec(t, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid()")
	for _, flag := range []string{"-raw", "-top"} {
		out, err := exec.CommandContext(t.Context(), "go", "tool", "pprof", flag, file).CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("PostgresMain")) {
			t.Errorf("go tool pprof %s: %v: %s", flag, err, out)
		}
	}
}

// TestProfileWithoutQueryIDs: if no statement has a query id, the profile says how to get query ids.
func TestProfileWithoutQueryIDs(t *testing.T) {
	if err := clusterbpf.Check(); err != nil {
		t.Skipf("this host cannot run the programs of profiles: %v", err)
	}
	const remedy = "ALTER SYSTEM SET compute_query_id = on; SELECT pg_reload_conf()"
	for _, setting := range []string{"on", "off"} {
		server := busyServer(t, pgtest.Options{Conf: []string{"compute_query_id = " + setting}})
		off := setting == "off"
		profiled(t, func(stdout, stderr string) bool { // without a sample of a statement, there is no query id either
			return strings.Contains(stdout, remedy) == off && strings.Contains(stderr, remedy) == off
		}, "-D", server.DataDir, "--group-by", "query")
	}
}

// TestProfileServerUse expects errors of use.
func TestProfileServerUse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, want string }{
		{"-D . 1", "not both"},
		{"-D . --mode x", "cpu, offcpu or wall"},
		{"-D . --query-id x", `"x" is not a query id`},
		{"-D . --rate 0.5", "from 1 to 1000"},
		{"-D . --group-by colour", `no label "colour"`},
		{"-D . --duration 48h", "at most 24h"},
	} {
		status, stdout, stderr := run(t, append([]string{"profile"}, strings.Fields(c.args)...)...)
		if status != exitUsage || stdout != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: status %d, %q, %q", c.args, status, stdout, stderr)
		}
	}
	status, _, stderr := run(t, "profile", "-D", t.TempDir())
	if status != exitFailed || !strings.Contains(stderr, "data directory") {
		t.Errorf("status %d, %q", status, stderr)
	}
}

// TestProfileFullDisk expects an error, and no file, where there is no room for the profile.
func TestProfileFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	server := busyServer(t, pgtest.Options{})
	if err := clusterbpf.Check(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Skip(err)
	}
	defer func() { _ = syscall.Unmount(dir, 0) }()
	file := filepath.Join(dir, "profile.html")
	status, _, stderr := run(t, "profile", "-D", server.DataDir, "--duration", "1s", "--mode", "wall",
		"--format", "html", "-o", file)
	if status != exitFailed || !strings.Contains(stderr, "no space left on device") {
		t.Errorf("status %d, %q", status, stderr)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestProfileWithoutRights executes what the error of a profile suggests instead.
func TestProfileWithoutRights(t *testing.T) {
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	text := measurecmd.WithoutPrograms(server.DataDir, nil, fs.ErrPermission).Error()
	if !strings.Contains(text, "with CAP_BPF and CAP_PERFMON.\n") {
		t.Error(text)
	}
	if other := measurecmd.WithoutPrograms("it's", nil, clusterbpf.ErrUnsupported).Error(); !strings.Contains(other, "Linux 6.10") ||
		!strings.Contains(other, `-D 'it'\''s' `) {
		t.Error(other)
	}
	if other := measurecmd.WithoutPrograms("", []int{4711, 4712}, clusterbpf.ErrUnsupported).Error(); !strings.Contains(other, "capture 4711 4712 ") {
		t.Error(other)
	}
	_, command, _ := strings.Cut(text, "\n  pg_stat_backtrace ")
	capturing, reporting, _ := strings.Cut(command, "|\n  pg_stat_backtrace ")
	capturing = strings.Replace(capturing, "--repeat 100", "--repeat 3", 1)
	status, stdout, stderr := run(t, strings.Fields(capturing)...)
	if status != 0 || !strings.Contains(stdout, "CheckpointerMain") {
		t.Fatalf("%s: status %d, %q, %q", capturing, status, stdout, stderr)
	}
	folded, page := filepath.Join(t.TempDir(), "folded"), filepath.Join(t.TempDir(), "profile.html")
	if err := os.WriteFile(folded, []byte(stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	reporting = strings.Replace(strings.Replace(reporting, "profile.html", page, 1), " - ", " "+folded+" ", 1)
	if status, _, stderr := run(t, strings.Fields(reporting)...); status != 0 {
		t.Fatalf("%s: status %d, %q", reporting, status, stderr)
	}
	if data, err := os.ReadFile(page); err != nil || !bytes.Contains(data, []byte("CheckpointerMain")) {
		t.Errorf("%v, %d bytes", err, len(data))
	}
}

// TestCaptureServerWithoutFreeConnection captures all processes of a server that accepts no connection.
func TestCaptureServerWithoutFreeConnection(t *testing.T) {
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Conf: []string{
		"max_connections = 5", "superuser_reserved_connections = 1", "max_wal_senders = 0", "autovacuum = off",
	}})
	var last error
	for range 10 {
		c, err := pgx.Connect(context.Background(), server.DSN("postgres", "postgres"))
		if last = err; err != nil {
			break
		}
		t.Cleanup(func() { _ = c.Close(context.Background()) })
	}
	if last == nil {
		t.Fatal("the server still accepts connections")
	}
	status, stdout, stderr := run(t, "capture", "-D", server.DataDir)
	if status != 0 {
		t.Fatalf("status %d, %q", status, stderr)
	}
	for _, want := range []string{"checkpointer)", "walwriter)", "PostgresMain", " idle)"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in %s", want, stdout)
		}
	}
	for _, args := range [][]string{{"-D", ".", "1"}, {"-D", ".", "--core", "x"}} {
		if status, _, stderr := run(t, append([]string{"capture"}, args...)...); status != exitUsage {
			t.Errorf("%v: status %d, %q", args, status, stderr)
		}
	}
}
