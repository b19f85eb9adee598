package functrace_test

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/measure/functrace"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// workload calls all functions that are compared with gdb, with many different stacks.
const workload = `
BEGIN;
CREATE TEMP TABLE tt(a int, b text);
INSERT INTO tt SELECT g, repeat('x', 50) FROM generate_series(1, 200) g;
COMMIT;
DO $$ BEGIN FOR i IN 1..20 LOOP BEGIN PERFORM 1/0; EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $$;
DROP TABLE tt;
CREATE TABLE t_x(a int PRIMARY KEY, b text);
INSERT INTO t_x SELECT g, repeat('y', 200) FROM generate_series(1, 400) g;
UPDATE t_x SET b = b || 'z' WHERE a % 7 = 0;
SELECT count(*) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid;
DROP TABLE t_x;
`

// TestStacksEqualGDB: at the same hits of one backend, the stacks equal gdb's. By default each server has a third of the
// functions, because gdb reads the server's symbols for each of them.
func TestStacksEqualGDB(t *testing.T) {
	needProbes(t)
	if _, err := exec.LookPath("gdb"); err != nil {
		t.Skip("gdb is not installed")
	}
	hits := number("PGSB_TRACE_HITS", 15)
	selected := figure.Share(t, 3)
	for i, dir := range binDirs(t) {
		name := pgtest.Version(t, dir)
		if stripped(t, dir) {
			name += "-stripped"
		}
		t.Run(name, func(t *testing.T) {
			s := pgtest.Start(t, dir, pgtest.Options{})
			wrong, compared := 0, 0
			for j, function := range []string{"LWLockAcquire", "XLogInsert", "errfinish", "smgrextend", "hash_search"} {
				if !selected(i + j) {
					continue
				}
				a, b := compareWithGDB(t, s, function, hits)
				wrong, compared = wrong+a, compared+b
			}
			t.Logf("%d hits compared, %d differ", compared, wrong)
		})
	}
}

// compareWithGDB returns how many stacks differ, of how many.
func compareWithGDB(t *testing.T, s *pgtest.Server, function string, hits int) (wrong, compared int) {
	conn := s.Connect(t, s.User, "postgres")
	pid := int(conn.PgConn().PID())
	run := func() error {
		_, err := conn.Exec(context.WithoutCancel(t.Context()), workload)
		return err
	}
	tracer := open(t, functrace.Options{Functions: []string{function}, PIDs: []int{pid}, StacksPerSecond: 1_000_000})
	defer tracer.Close()
	at, behind := behindPoint(t, pid, function)
	ready, output := startGDB(t, pid, behind, hits)
	var stacks []*backtrace.Thread
	r := during(t, tracer, func(e *functrace.Event) error {
		stacks = append(stacks, e.Thread)
		return nil
	}, func() {
		pgtest.Wait(t, "gdb", func() bool { _, err := os.Stat(ready); return err == nil })
		time.Sleep(100 * time.Millisecond) // it continues the process
		for !output.done() {
			if err := run(); err != nil {
				t.Fatal(err)
			}
		}
	})
	checkSums(t, r)
	lines := output.lines(t)
	if len(lines) < hits || len(stacks) < hits {
		t.Fatalf("%s: gdb has %d stacks, the trace %d of %d", function, len(lines), len(stacks), hits)
	}
	different := make(map[string]bool)
	for i, line := range lines {
		pcs := strings.Fields(line)
		var own []string
		for _, f := range stacks[i].Frames {
			if !f.Inlined {
				own = append(own, strconv.FormatUint(f.Address, 16))
			}
		}
		different[strings.Join(pcs[1:], " ")] = true
		compared++
		// gdb stops one instruction later.
		if len(own) == 0 || own[0] != strconv.FormatUint(at, 16) || strings.Join(own[1:], " ") != strings.Join(pcs[1:], " ") {
			if wrong++; wrong <= 3 {
				t.Errorf("%s, hit %d:\ntrace: %v\ngdb:   %v", function, i, own, pcs)
			}
		}
	}
	t.Logf("%s: %d hits, %d different stacks", function, len(lines), len(different))
	return wrong, compared
}

// behindPoint returns the address of the instruction that is probed, and of the next one.
func behindPoint(t *testing.T, pid int, function string) (at, behind uint64) {
	t.Helper()
	list, err := newCapturer(t).Loaded(pid)
	if err != nil {
		t.Fatal(err)
	}
	f := list[0].Functions(function)
	if len(f) != 1 {
		t.Fatalf("%s: %+v", function, f)
	}
	code, err := list[0].Code(f[0].Addr, 64)
	if err != nil {
		t.Fatal(err)
	}
	p, err := functrace.ChoosePoint(elf.EM_X86_64, code, functrace.PointOptions{})
	if err != nil {
		t.Fatal(err)
	}
	at = list[0].Bias + f[0].Addr + p.Offset
	for n := uint64(1); n < 16; n++ {
		if _, err := functrace.PointAt(elf.EM_X86_64, code, p.Offset+n); err == nil {
			return at, at + n
		}
	}
	t.Fatalf("%s: nothing behind the probed instruction", function)
	return 0, 0
}

// gdbOutput is the output of a gdb.
type gdbOutput struct {
	file  string
	ended chan struct{}
}

func (g *gdbOutput) done() bool {
	select {
	case <-g.ended:
		return true
	default:
		return false
	}
}

func (g *gdbOutput) lines(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(g.file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// startGDB has gdb print the stacks at an address of a process.
func startGDB(t *testing.T, pid int, address uint64, hits int) (ready string, output *gdbOutput) {
	t.Helper()
	dir := t.TempDir()
	ready, output = filepath.Join(dir, "ready"), &gdbOutput{filepath.Join(dir, "stacks"), make(chan struct{})}
	cmd := exec.Command("gdb", "-q", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-p", strconv.Itoa(pid), "-x",
		filepath.Join("testdata", "hits.py"))
	cmd.Env = append(os.Environ(), fmt.Sprintf("ADDRESS=%#x", address), fmt.Sprintf("HITS=%d", hits),
		"OUTPUT="+output.file, "READY="+ready)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-output.ended
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("gdb: %s", text)
		}
	})
	go func() {
		_ = cmd.Wait()
		_ = log.Close()
		close(output.ended)
	}()
	return ready, output
}
