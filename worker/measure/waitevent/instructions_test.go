package waitevent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/archcheck"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/pg/cluster"
)

// envInstructions says that the processor has one instruction a nanosecond, as an emulated one with `qemu -icount` has.
const envInstructions = "PGSB_ARCH_INSTRUCTIONS"

// Limits of the instructions that timing adds to a transaction, as a share, and of those of trampolines as a share of
// those of tracepoints.
const (
	limitSimple, limitPrepared = 0.008, 0.012
	limitOfTracepoints         = 1.0 / 3
)

// pgbenchRun is a way of timing, or none.
type pgbenchRun struct {
	name    string
	options waits.Options
}

// TestInstructions counts the instructions that timing wait events adds to a transaction of pgbench and to single
// system calls, by trampolines and by tracepoints in the same boot.
func TestInstructions(t *testing.T) {
	if os.Getenv(envInstructions) == "" {
		t.Skip(envInstructions + " is not set: only for a processor that counts instructions (make check-arch)")
	}
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Conf: []string{
		"autovacuum = off", "compute_query_id = on", "shared_buffers = 64MB", "jit = off",
	}})
	pgbench(t, s, "-i", "-q", "-I", "dtGvp")
	c, err := cluster.ByDataDir(s.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	located, err := Locate(c)
	if err != nil {
		t.Fatal(err)
	}
	runs := []pgbenchRun{
		{"off", waits.Options{}}, {"again", waits.Options{}},
		{"fentry", waits.Options{Method: waits.Exact, Mechanism: "fentry"}},
		{"fentry, by query", waits.Options{Method: waits.Exact, Mechanism: "fentry", Queries: true}},
		{"tracepoints", waits.Options{Method: waits.Exact, Mechanism: "tracepoints"}},
		{"tracepoints, by query", waits.Options{Method: waits.Exact, Mechanism: "tracepoints", Queries: true}},
	}
	calls := make(map[string]map[string]float64)
	fewest := map[string]map[string]float64{"simple": {}, "prepared": {}}
	const rounds = 3
	for round := range rounds {
		for _, run := range runs {
			during(t, located, run.options, func() {
				for mode, list := range fewest {
					n := transaction(t, s, mode)
					t.Logf("round %d, %s, %s: %.0f instructions a transaction", round, mode, run.name, n)
					if old, has := list[run.name]; !has || n < old {
						list[run.name] = n
					}
				}
				if round == 0 {
					calls[run.name] = systemCalls(t)
				}
			})
		}
	}
	for mode, limit := range map[string]float64{"simple": limitSimple, "prepared": limitPrepared} {
		checkTransactions(t, mode, fewest[mode], limit)
	}
	checkCalls(t, calls)
	publishInstructions(t, s, fewest, calls)
}

// during times wait events while the function work runs.
func during(t *testing.T, located *Server, o waits.Options, work func()) {
	t.Helper()
	if o.Method == "" {
		work()
		return
	}
	provider, err := waits.Open(located.Target, o)
	if err != nil {
		t.Fatal(err)
	}
	defer provider.Close()
	work()
	snapshot, err := provider.Snapshot()
	if err != nil || snapshot.Lost.Missed != 0 || len(snapshot.Totals()) == 0 {
		t.Errorf("%s: %+v, %v", provider.Info().Mechanism, snapshot, err)
	}
}

// pgbench runs pgbench and returns its output.
func pgbench(t *testing.T, s *pgtest.Server, arguments ...string) string {
	t.Helper()
	arguments = append(arguments, "-h", s.SocketDir, "-p", strconv.Itoa(s.Port), "-U", s.User, "postgres")
	command := s.AsServerUser(exec.Command(filepath.Join(s.BinDir, "pgbench"), arguments...))
	var problems bytes.Buffer
	command.Stderr = &problems
	out, err := command.Output()
	if err != nil {
		t.Fatalf("pgbench: %v: %s", err, &problems)
	}
	return string(out)
}

// transaction returns the instructions of one transaction of pgbench select-only: of its client, the server and the
// kernel.
func transaction(t *testing.T, s *pgtest.Server, mode string) float64 {
	t.Helper()
	out := pgbench(t, s, "-n", "-S", "-M", mode, "-t", "5000", "--random-seed", "1")
	_, text, _ := strings.Cut(out, "\ntps = ")
	tps, err := strconv.ParseFloat(strings.SplitN(text, " ", 2)[0], 64)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const second = 1e9 // instructions
	return second / tps
}

// systemCalls returns the instructions of some system calls of a process that is not the server's.
func systemCalls(t *testing.T) map[string]float64 {
	t.Helper()
	program := filepath.Join(t.TempDir(), "instructions")
	if out, err := exec.Command("gcc", "-O1", "-o", program, "testdata/instructions.c").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]float64)
	for line := range strings.Lines(string(out)) {
		var name string
		var n float64
		if _, err := fmt.Sscan(line, &name, &n); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		counts[name] = n
	}
	return counts
}

// checkTransactions verifies the limits.
func checkTransactions(t *testing.T, mode string, n map[string]float64, limit float64) {
	t.Helper()
	added := func(name string) float64 { return n[name]/n["off"] - 1 }
	t.Logf("%s: %.0f instructions; again %+.2f %%, fentry %+.2f %%, by query %+.2f %%, "+
		"tracepoints %+.2f %%, by query %+.2f %%",
		mode, n["off"], 100*added("again"), 100*added("fentry"), 100*added("fentry, by query"), 100*added("tracepoints"),
		100*added("tracepoints, by query"))
	if noise := math.Abs(added("again")); noise > limit/4 {
		t.Errorf("%s: the same without timing differs by %.2f %%", mode, 100*noise)
	}
	if got := added("fentry"); got > limit {
		t.Errorf("%s: trampolines add %.2f %%, the limit is %.2f %%", mode, 100*got, 100*limit)
	}
	if got := added("fentry") / added("tracepoints"); got > limitOfTracepoints {
		t.Errorf("%s: trampolines add %.2f of what tracepoints add", mode, got)
	}
}

// checkCalls verifies that system calls without a trampoline take the same instructions, and others more.
func checkCalls(t *testing.T, calls map[string]map[string]float64) {
	t.Helper()
	hooked := map[string]bool{"pread64": true, "epoll_wait": true}
	for name, off := range calls["off"] {
		got, again, points := calls["fentry"][name], calls["again"][name], calls["tracepoints"][name]
		t.Logf("%s: %.2f instructions, again %.2f, fentry %.2f, tracepoints %.2f", name, off, again, got, points)
		if off != again || hooked[name] != (got > off) || !hooked[name] && got != off || points <= off {
			t.Errorf("%s: %.2f instructions, again %.2f, with trampolines %.2f, with tracepoints %.2f", name, off, again,
				got, points)
		}
	}
}

// publishInstructions prints the figures for doc/internals/benchmarks.md.
func publishInstructions(t *testing.T, s *pgtest.Server, transactions, calls map[string]map[string]float64) {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	line, err := json.Marshal(archcheck.Instructions{
		Kernel: unix.ByteSliceToString(u.Release[:]), PostgreSQL: pgtest.Version(t, s.BinDir),
		Transactions: transactions, Calls: calls,
	})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\n%s%s\n", archcheck.InstructionsMarker, line)
}
