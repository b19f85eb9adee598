package capture_test

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// strippedTree copies a server and strips programs and libraries of the copy as Debian's dh_strip does; it returns the
// folder of the programs.
func strippedTree(t *testing.T, binDir string) string {
	t.Helper()
	tree := t.TempDir()
	command(t, "chmod", "-R", "a+rX", filepath.Dir(tree))
	command(t, "cp", "-rL", filepath.Dir(binDir)+"/.", tree)
	bin := filepath.Join(tree, filepath.Base(binDir))
	files := []string{filepath.Join(bin, "postgres")}
	err := filepath.WalkDir(tree, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && strings.Contains(e.Name(), ".so") {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		kind := []string{"--strip-unneeded"}
		if filepath.Dir(file) == bin {
			kind = nil
		}
		command(t, "strip", append(kind, "--remove-section=.comment", "--remove-section=.note", file)...)
	}
	return bin
}

// sleepers are the statements in which sessions of the server sleep.
var sleepers = []string{
	`SELECT sleeps(3)`,
	`SELECT count(*) FROM (SELECT g, pg_sleep(1000) FROM generate_series(1, 3) g ORDER BY g DESC) s`,
	`UPDATE held SET n = 2`, // waits for a lock
	`INSERT INTO fires VALUES (1)`,
	`DO $$ DECLARE v text := pg_sleep(1000)::text; BEGIN NULL; END $$`,
	`SELECT pg_advisory_lock(1)`,
	`WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE pg_sleep(1000) IS NOT NULL) SELECT * FROM r`,
}

// runners are the statements that busy sessions repeat.
var runners = []string{
	`DO $$ BEGIN LOOP PERFORM count(*) FROM generate_series(1, 2000) a JOIN generate_series(1, 2000) b ON a = b;
	PERFORM regexp_replace(md5(random()::text), '(\w)(\d)+', '\2\1', 'g') FROM generate_series(1, 100); END LOOP; END $$`,
	`DO $$ BEGIN LOOP PERFORM jsonb_agg(jsonb_build_object('k', g, 'v', g::numeric / 7)) FROM generate_series(1, 500) g;
	PERFORM string_agg(g::text, ',' ORDER BY g::text) FROM generate_series(1, 500) g; END LOOP; END $$`,
	`DO $$ BEGIN LOOP BEGIN DELETE FROM work; INSERT INTO work SELECT g, g::text FROM generate_series(1, 300) g;
	UPDATE work SET v = v || 'x'; PERFORM * FROM work WHERE k = 7; PERFORM 1 / (SELECT 0); EXCEPTION WHEN others THEN NULL;
	END; END LOOP; END $$`,
}

const wrongNameSQL = `
CREATE TABLE held (n int); INSERT INTO held VALUES (1);
CREATE TABLE fires (n int);
CREATE TABLE work (k int PRIMARY KEY, v text);
CREATE FUNCTION sleeps(n int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN IF n > 0 THEN RETURN sleeps(n - 1); END IF; PERFORM pg_sleep(1000); RETURN 0; END $$;
CREATE FUNCTION fired() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1000); RETURN NEW; END $$;
CREATE TRIGGER t BEFORE INSERT ON fires FOR EACH ROW EXECUTE FUNCTION fired();`

// sessions starts sleeping and busy sessions. It returns the processes of both kinds. asleep also has the server's
// auxiliary processes.
func sessions(t *testing.T, server *pgtest.Server) (asleep, busy []int) {
	t.Helper()
	control := server.Connect(t, server.User, "postgres")
	for _, sql := range []string{wrongNameSQL, `BEGIN; UPDATE held SET n = 3; SELECT pg_advisory_lock(1)`} {
		if _, err := control.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	running := make(map[int]bool)
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	for i, sql := range append(sleepers, runners...) {
		conn := server.Connect(t, server.User, "postgres")
		pid := int(conn.PgConn().PID())
		if running[pid] = i >= len(sleepers); running[pid] {
			busy = append(busy, pid)
		}
		group.Go(func() { _, _ = conn.Exec(ctx, sql) })
	}
	t.Cleanup(func() { // before the connections are closed
		cancel()
		group.Wait()
	})
	watch := server.Connect(t, server.User, "postgres")
	pgtest.Wait(t, "the sessions that sleep", func() bool {
		n := 0
		err := watch.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE wait_event IN ('PgSleep', 'transactionid', 'advisory') AND state = 'active'`).Scan(&n)
		return err == nil && n == len(sleepers)
	})
	pids, err := process.Children(server.PostmasterPID())
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if !running[pid] {
			asleep = append(asleep, pid)
		}
	}
	return asleep, busy
}

// namedMoments is the number of random moments of each busy session: PGSB_TEST_NAMES, else 1, or 5 if Full.
func namedMoments(t *testing.T) int {
	t.Helper()
	s := os.Getenv("PGSB_TEST_NAMES")
	if s == "" && pgtest.Full() {
		return 5
	}
	if s == "" {
		return 1
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestNoWrongName captures the processes of a stripped server, asleep and at random times. The unstripped files give
// the true name of each frame. A third of the sleeping processes is captured by default. libunwind and eu-stack name the
// same stacks while the process is stopped. For a server that came without symbols, only the shares are printed.
func TestNoWrongName(t *testing.T) {
	if testing.Short() {
		t.Skip("starts servers: not with -short")
	}
	pgtest.One(t, func(t *testing.T, binDir string) {
		n := newNaming(t, binDir)
		if len(n.truth["postgres"].symbols) > 0 {
			binDir = strippedTree(t, binDir)
		}
		server := pgtest.Start(t, binDir, pgtest.Options{
			Conf: []string{"autovacuum_naptime = 1d"}, // its workers come and go
		})
		asleep, busy := sessions(t, server)
		selected := figure.Share(t, 3)
		for i, pid := range append(asleep, server.PostmasterPID()) {
			if selected(i) {
				n.look(t, pid)
			}
		}
		for range namedMoments(t) {
			for _, pid := range busy {
				time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond)
				n.stopped(t, pid)
			}
		}
		n.report(t)
	})
}

// nameComparison compares names of frames.
type nameComparison struct {
	c         *capture.Capturer
	truth     map[string]elfTruth // by module
	libunwind string
	stacks    int
	ours      outcome
	// server counts the frames of the server's program by the source of their names and notes.
	server origins
	others map[string]*outcome
}

func newNaming(t *testing.T, binDir string) *nameComparison {
	t.Helper()
	n := &nameComparison{
		c: patient(t, capture.Config{AwaitNames: true}), truth: truthOf(t, binDir), libunwind: buildLibunwind(t),
		others: map[string]*outcome{"libunwind": {}, "eu-stack": {}},
	}
	if len(n.truth["postgres"].symbols) == 0 {
		t.Logf("%s/postgres has no .symtab: its names cannot be verified", binDir)
	}
	return n
}

// stopped looks at a process that runs, while SIGSTOP holds it.
func (n *nameComparison) stopped(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	pgtest.Wait(t, "a stopped process", func() bool {
		stat, err := process.ReadStat(pid)
		return err == nil && stat.State == 'T'
	})
	n.look(t, pid)
}

// look captures a process, and compares the names of its frames with the true names and with those of the other tools.
func (n *nameComparison) look(t *testing.T, pid int) {
	t.Helper()
	tr, err := n.c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{})
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	n.stacks++
	theirs := map[string]map[uint64]string{
		"libunwind": libunwindNames(t, n.libunwind, pid), "eu-stack": euStackNames(t, pid),
	}
	frames := tr.Threads[0].Frames
	for i := range frames {
		f := &frames[i]
		n.server.add(f)
		truth, ok := n.truth[f.Module]
		if !ok || f.Inlined || len(truth.symbols) == 0 {
			continue
		}
		names := truth.at(lookupAddress(frames, i))
		if f.Derived || strings.HasPrefix(f.Note, "part of ") {
			names = withoutSuffixes(names) // no code says which clone or part of a function it is
		}
		if of, ok := strings.CutPrefix(f.Note, "part of "); ok && !slices.Contains(names, of) {
			t.Errorf("process %d, frame %d: %s+%#x, in %v, is %s", pid, i, f.Module, f.ModuleOffset, names, f.Note)
		}
		if !n.ours.add(f.Function, names) {
			t.Errorf("process %d, frame %d: %s+%#x is called %s, but is in %v",
				pid, i, f.Module, f.ModuleOffset, f.Function, names)
		}
		if !truth.between(f.Note, lookupAddress(frames, i)) {
			t.Errorf("process %d, frame %d: %s+%#x, in %v, is %s", pid, i, f.Module, f.ModuleOffset, names, f.Note)
		}
		for tool, o := range n.others {
			if name, ok := theirs[tool][f.Address]; ok {
				o.add(name, names)
			} else {
				o.absent++
			}
		}
	}
}

func (n *nameComparison) report(t *testing.T) {
	t.Helper()
	figure.Printf(t, "%d stacks, %d frames in stripped files: %s; libunwind: %s; eu-stack: %s",
		n.stacks, n.ours.total(), &n.ours, n.others["libunwind"], n.others["eu-stack"])
	figure.Printf(t, "frames of postgres: %s", &n.server)
	if n.ours.named == 0 && len(n.truth["postgres"].symbols) > 0 || n.server.total == 0 || n.server.noted == 0 {
		t.Errorf("the stacks are not what this test needs: %s, %s", &n.ours, &n.server)
	}
}

// origins counts frames of the server's program by the source of their name: a symbol, a derived name, a note from
// the program's code, only the neighbours, or none.
type origins struct{ total, symbol, derived, noted, between, nothing int }

func (o *origins) add(f *backtrace.Frame) {
	if f.Module != "postgres" || f.Inlined {
		return
	}
	o.total++
	switch {
	case f.Derived:
		o.derived++
	case f.Function != "":
		o.symbol++
	case strings.HasPrefix(f.Note, "static, between "):
		o.between++
	case f.Note != "":
		o.noted++
	default:
		o.nothing++
	}
}

func (o *origins) String() string {
	share := func(n int) float64 { return 100 * float64(n) / float64(max(o.total, 1)) }
	return fmt.Sprintf("%d: by symbols %.1f %%, derived names %.1f %%, notes from the code %.1f %%, neighbours %.1f %%, "+
		"nothing %.1f %%",
		o.total, share(o.symbol), share(o.derived), share(o.noted), share(o.between), share(o.nothing))
}

// clones matches the suffixes that compilers append to the names of clones and parts of functions.
var clones = regexp.MustCompile(`\.(part|isra|constprop|cold|localalias)(\.\d+)?`)

func withoutSuffixes(names []string) []string {
	out := make([]string, 0, len(names))
	for _, name := range names {
		out = append(out, clones.ReplaceAllString(name, ""))
	}
	return out
}

// outcome counts names of frames.
type outcome struct{ named, unnamed, wrong, absent int }

// add counts a name. truth has the address's real names. It returns false if the name is wrong.
func (o *outcome) add(name string, truth []string) bool {
	switch {
	case name == "":
		o.unnamed++
	case containsName(truth, name):
		o.named++
	default:
		o.wrong++
		return false
	}
	return true
}

func (o *outcome) total() int { return o.named + o.unnamed + o.wrong + o.absent }

func (o *outcome) String() string {
	share := func(n int) string { return fmt.Sprintf("%d (%.1f %%)", n, 100*float64(n)/float64(max(o.total(), 1))) }
	return fmt.Sprintf("named %s, unnamed %s, wrong %s, not reached %s",
		share(o.named), share(o.unnamed), share(o.wrong), share(o.absent))
}

// lookupAddress returns the address in the module by which a frame is named. For a return address, this is the byte
// before it, because the call ends there.
func lookupAddress(frames []backtrace.Frame, i int) uint64 {
	if i == 0 || strings.Contains(frames[i].Note, "signal") || strings.Contains(frames[i-1].Note, "signal") {
		return frames[i].ModuleOffset
	}
	return frames[i].ModuleOffset - 1
}
