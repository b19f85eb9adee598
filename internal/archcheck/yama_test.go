package archcheck

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
)

// scopeFile is the setting of Yama (Documentation/admin-guide/LSM/Yama.rst of the kernel).
const scopeFile = "/proc/sys/kernel/yama/ptrace_scope"

// envYama must be set for TestYama, because it leaves the machine with a scope of 3, which cannot be undone.
const envYama = "PGSB_ARCH_YAMA"

// TestYama tries every value of ptrace_scope with every useful capability. It also asks, through SQL, a worker
// without capabilities and a worker that was started as root. It checks the table of capabilities in doc/worker.md,
// and the text of refusals.
func TestYama(t *testing.T) {
	if os.Getenv(envYama) == "" {
		t.Skip(envYama + " is not set: only for machines that end with the test")
	}
	if text(t, scopeFile) == "" {
		t.Fatal("this kernel has no Yama")
	}
	binDir := pgtest.BinDir(t)
	plain := newYamaServer(t, binDir)
	work(t, plain.Server, nil)
	privileged := newYamaServer(t, binDir)
	work(t, privileged.Server, rootCommand())
	for scope := range 4 {
		if err := os.WriteFile(scopeFile, []byte(strconv.Itoa(scope)), 0); err != nil {
			t.Fatal(err)
		}
		plain.try(t, scope)
		plain.ask(t, scope, scope == 0)
		privileged.ask(t, scope, scope <= 2)
	}
	fmt.Printf("\n%s%q\n", YamaMarker, "0, 1, 2, 3")
}

// rootCommand is the program, started as root with its environment.
func rootCommand() *exec.Cmd {
	command := exec.Command(program)
	command.SysProcAttr = &syscall.SysProcAttr{}
	command.Dir = "/"
	return command
}

// yamaServer is a server with a sleeping backend.
type yamaServer struct {
	*pgtest.Server

	sleeper uint32
}

func newYamaServer(t *testing.T, binDir string) *yamaServer {
	t.Helper()
	f := &field{Server: pgtest.Start(t, binDir, pgtest.Options{})}
	f.Exec(t, `CREATE EXTENSION pg_stat_backtrace`)
	f.asks = f.Connect(t, f.User, "postgres")
	return &yamaServer{f.Server, f.start(t, `SELECT pg_sleep(3600)`, "PgSleep")}
}

// try runs the command line as the server's user with one capability alone.
func (s *yamaServer) try(t *testing.T, scope int) {
	t.Helper()
	for _, capability := range []struct {
		name string
		set  []uintptr
	}{
		{"none", nil},
		{"CAP_SYS_PTRACE", []uintptr{unix.CAP_SYS_PTRACE}},
		{"CAP_PERFMON", []uintptr{unix.CAP_PERFMON}},
		{"CAP_CHECKPOINT_RESTORE", []uintptr{unix.CAP_CHECKPOINT_RESTORE}},
		{"CAP_SYS_ADMIN", []uintptr{unix.CAP_SYS_ADMIN}},
	} {
		want := scope == 0 || scope <= 2 && capability.name == "CAP_SYS_PTRACE"
		for engine, arguments := range map[string][]string{
			"stop":    {"capture", "--stop", "--format", "json"},
			"blocked": {"capture", "--format", "json", "--nonstop"},
		} {
			command := s.AsServerUser(exec.Command(program, append(arguments, strconv.Itoa(int(s.sleeper)))...))
			command.SysProcAttr.AmbientCaps = capability.set
			out, err := command.CombinedOutput()
			said := string(out)
			works := err == nil && strings.Contains(said, `"engine":"`+engine+`"`) && strings.Contains(said, "PostgresMain")
			if works != want || !works && !strings.Contains(said, "ptrace_scope is "+strconv.Itoa(scope)) {
				t.Errorf("ptrace_scope %d, %s with %s: works %v, want %v: %v\n%s",
					scope, engine, capability.name, works, want, err, out)
			} else {
				t.Logf("ptrace_scope %d, %-7s with %-22s: %v", scope, engine, capability.name, works)
			}
		}
	}
}

// ask requests a stack through SQL. It must get the stack, or an error that names Yama.
func (s *yamaServer) ask(t *testing.T, scope int, want bool) {
	t.Helper()
	var stack string
	asks := s.Connect(t, s.User, "postgres")
	err := asks.QueryRow(t.Context(), `SELECT pg_get_backtrace($1)`, s.sleeper).Scan(&stack)
	var refused *pgconn.PgError
	switch {
	case want && (err != nil || !strings.Contains(stack, "PostgresMain")):
		t.Errorf("ptrace_scope %d: %v %s", scope, err, stack)
	case !want && (!errors.As(err, &refused) || refused.Code != "42501" ||
		!strings.Contains(refused.Hint, "ptrace_scope")):
		t.Errorf("ptrace_scope %d: %v %s", scope, err, stack)
	case !want:
		t.Logf("ptrace_scope %d through SQL: %s: %s DETAIL %s HINT %s",
			scope, refused.Code, refused.Message, refused.Detail, refused.Hint)
	default:
		t.Logf("ptrace_scope %d through SQL: a stack of %d lines", scope, strings.Count(stack, "\n"))
	}
}
