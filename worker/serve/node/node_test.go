package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// journal is a log that a test reads.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) count(part string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), part)
}

// serve runs a supervisor with a command for each cluster, until the test ends or the function returned is called.
func serve(t *testing.T, cfg Config, command ...string) (log *journal, end func()) {
	t.Helper()
	log = &journal{}
	cfg.Log = zerolog.New(log)
	cfg.Interval = 50 * time.Millisecond
	cfg.Command = func(string, int, int, *os.File) *exec.Cmd {
		return exec.Command(command[0], command[1:]...)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return log, end
}

// scan looks at all processes once.
func scan(cfg Config) (found []Process, denied int, err error) {
	s := newScanner(cfg.withDefaults())
	_, err = s.look(time.Now())
	return slices.Collect(maps.Values(s.found)), len(s.denied), err
}

// untilEOF is a worker that ends when its standard input does.
var untilEOF = []string{"cat"}

// visible skips a test whose server this user may not look at.
func visible(t *testing.T, s *pgtest.Server) {
	t.Helper()
	if _, err := os.Readlink("/proc/self/cwd"); err != nil {
		t.Skip(err)
	}
	if _, err := prove("/proc", Process{PID: s.PostmasterPID(), Start: 0, DataDir: s.DataDir}); err != nil &&
		strings.Contains(err.Error(), "nor root") {
		t.Skip("this user may not look at the server: ", err)
	}
}

func TestLimit(t *testing.T) {
	bin := pgtest.BinDir(t)
	one, two := pgtest.Start(t, bin, pgtest.Options{}), pgtest.Start(t, bin, pgtest.Options{})
	visible(t, one)
	log, end := serve(t, Config{Max: 1, Below: []string{one.DataDir, two.DataDir}}, untilEOF...)
	pgtest.Wait(t, "a worker, and a warning", func() bool {
		return log.count("started a worker") == 1 && log.count(`"clusters_without_worker":1`) == 1
	})
	first, other := one, two
	if log.count(two.DataDir) > 0 && log.count(one.DataDir) == 0 {
		first, other = two, one
	}
	first.Stop("fast")
	pgtest.Wait(t, "the other server's worker", func() bool { return log.count("started a worker") == 2 })
	if log.count(other.DataDir) == 0 {
		t.Error("the second worker is not for the second server")
	}
	end()
	if log.count(`"message":"stopped"`) != 1 {
		t.Error("the supervisor did not stop in order")
	}
}

// TestNoServerPasses: if no server passes --below and --uid, the log has one warning, and another one after a server has passed.
func TestNoServerPasses(t *testing.T) {
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	visible(t, s)
	const warning = "no server of this host passes the options --below and --uid"
	log, _ := serve(t, Config{Below: []string{s.DataDir}}, untilEOF...)
	other, _ := serve(t, Config{Below: []string{t.TempDir()}, UIDs: []int{65533}}, untilEOF...)
	pgtest.Wait(t, "a warning", func() bool { return other.count(warning) == 1 && other.count(`"uids":[65533]`) == 1 })
	for i := range 2 {
		pgtest.Wait(t, "a worker", func() bool { return log.count("started a worker") == i+1 })
		if n := log.count(warning); n != i {
			t.Errorf("%d warnings beside a server, want %d", n, i)
		}
		s.Stop("fast")
		pgtest.Wait(t, "a warning", func() bool { return log.count(warning) == i+1 })
		if i == 0 {
			s.Start()
		}
	}
	if n := other.count(warning); n != 1 {
		t.Errorf("%d warnings about options that no server ever passed", n)
	}
}

// TestStubborn: a worker that does not end with its server is killed after the grace.
func TestStubborn(t *testing.T) {
	s := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	visible(t, s)
	log, _ := serve(t, Config{Below: []string{s.DataDir}, Grace: 100 * time.Millisecond}, "sleep", "600")
	pgtest.Wait(t, "a worker", func() bool { return log.count("started a worker") == 1 })
	s.Stop("fast")
	pgtest.Wait(t, "its end", func() bool { return log.count("did not end, killing it") == 1 })
}

// TestFailing: a worker that fails at once is started again, with growing pauses.
func TestFailing(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	visible(t, s)
	log, _ := serve(t, Config{Below: []string{s.DataDir}}, "false")
	pgtest.Wait(t, "three attempts", func() bool { return log.count("a worker ended") >= 3 })
	if n := log.count(`"retry":1000`); n != 1 {
		t.Errorf("%d attempts have the shortest pause", n)
	}
}

// TestMissingProgram: a worker that cannot be started is a reason in the log, once.
func TestMissingProgram(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	visible(t, s)
	log, _ := serve(t, Config{Below: []string{s.DataDir}}, filepath.Join(t.TempDir(), "no-such-program"))
	pgtest.Wait(t, "the reason", func() bool { return log.count("the worker cannot be started") == 1 })
}

// TestUsers: servers of other user ids get no worker.
func TestUsers(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	visible(t, s)
	uid, _ := s.OSUser()
	for _, c := range []struct {
		uids []int
		want int
	}{{nil, 1}, {[]int{uid}, 1}, {[]int{uid + 1, uid}, 1}, {[]int{uid + 1}, 0}} {
		found, _, err := scan(Config{Proc: "/proc", Below: []string{s.DataDir}, UIDs: c.uids})
		if err != nil || len(found) != c.want {
			t.Errorf("user ids %v: %v, %v", c.uids, found, err)
		}
	}
}

// TestPostmasterBelowPostmaster: a process with another directory than its parent is no child of that postmaster. The
// parent here is this process, and the links are of a folder instead of /proc.
func TestPostmasterBelowPostmaster(t *testing.T) {
	child := exec.Command("sleep", "600")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	for directory, want := range map[string]int{"/data/first": 0, "/data/second": 1} {
		proc := t.TempDir()
		for pid, cwd := range map[int]string{os.Getpid(): "/data/first", child.Process.Pid: directory} {
			dir := filepath.Join(proc, strconv.Itoa(pid))
			if err := errors.Join(os.Mkdir(dir, 0o700), os.Symlink("/usr/bin/postgres", filepath.Join(dir, "exe")),
				os.Symlink(cwd, filepath.Join(dir, "cwd"))); err != nil {
				t.Fatal(err)
			}
		}
		found, denied, err := scan(Config{Proc: proc})
		if err != nil || denied != 0 {
			t.Fatal(denied, err)
		}
		got := 0
		for _, p := range found {
			if p.PID == child.Process.Pid && p.DataDir == directory {
				got++
			}
		}
		if got != want {
			t.Errorf("%s: %v", directory, found)
		}
	}
}

// TestDenied: a server that this user may not look at is counted, without its children.
func TestDenied(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	before, own, err := scan(Config{Proc: "/proc"})
	if err != nil || own != 0 || len(before) == 0 {
		t.Fatalf("root finds %d servers, and %d are denied: %v", len(before), own, err)
	}
	type result struct {
		found, denied int
		list          []Process
		err           error
	}
	results := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := errors.Join(unix.Setfsuid(65534), unix.Capset(&header, &none[0])); err != nil {
			results <- result{err: err}
			return
		}
		found, denied, err := scan(Config{Proc: "/proc"})
		list, err2 := Denied()
		results <- result{len(found), denied, list, errors.Join(err, err2)}
	}()
	r := <-results
	if r.err != nil || r.found != 0 || r.denied < 1 {
		t.Errorf("%+v", r)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", s.PostmasterPID()))
	if err != nil || len(children) == 0 {
		t.Fatal(string(children), err)
	}
	for _, p := range r.list { // it has the servers of other tests, too
		if slices.Contains(strings.Fields(string(children)), strconv.Itoa(p.PID)) {
			t.Errorf("%+v is a process of the server", p)
		}
	}
	if !slices.ContainsFunc(r.list, func(p Process) bool { return p.PID == s.PostmasterPID() && p.Start != 0 && p.UID != 0 }) {
		t.Errorf("the server is not in %+v", r.list)
	}
}

// TestRestartKeepsSlot: the worker for a restarted server waits for the end of the former one, which has its slot. It
// does not wait for a worker that cannot be ended.
func TestRestartKeepsSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSupervisor(Config{Log: zerolog.Nop()})
		add := func(pid int, name string, owner int, phase phase) *cluster {
			c := &cluster{Process: Process{PID: pid, UID: owner}, name: name, phase: phase, since: time.Now()}
			s.clusters[key{pid, 1}] = c
			return c
		}
		old := add(1, "/data", 26, stopping)
		old.gone = true
		add(2, "/data", 26, waiting)
		add(3, "/data", 27, waiting)
		add(4, "/other", 26, waiting)
		due := func() int { return len(s.due(time.Now())) }
		if n := due(); n != 2 {
			t.Errorf("%d workers may start while the former one ends, not those of the other user and the other directory", n)
		}
		time.Sleep(3 * s.Grace)
		if n := due(); n != 3 {
			t.Errorf("%d workers may start beside one that cannot be ended", n)
		}
		old.phase, old.since = running, time.Now()
		if n := due(); n != 3 {
			t.Errorf("%d workers may start beside one that runs", n)
		}
	})
}

// TestSlots: workers that run at the same time have different slots below Max, and a data directory keeps its slot.
func TestSlots(t *testing.T) {
	t.Parallel()
	s := newSupervisor(Config{Max: 3})
	now := time.Now()
	run := func(pid int, name string, owner, want int) {
		t.Helper()
		k := key{pid, 1}
		if s.clusters[k] == nil {
			s.clusters[k] = &cluster{Process: Process{UID: owner}, name: name}
		}
		c := s.clusters[k]
		now = now.Add(time.Second)
		if c.slot = s.takeSlot(k, c, now); c.slot != want {
			t.Errorf("process %d in %s has slot %d, not %d", pid, name, c.slot, want)
		}
		c.phase = running
	}
	end := func(pid int) { delete(s.clusters, key{pid, 1}) }
	const postgres, another = 26, 1000
	run(1, "/a", postgres, 0)
	run(2, "/b", postgres, 1)
	s.clusters[key{1, 1}].phase = refused // its worker ended
	run(3, "/a", postgres, 2)             // in another container
	run(1, "/a", postgres, 0)
	end(1)
	end(2)
	run(4, "/b", postgres, 1) // restarted
	run(5, "/c", postgres, 0) // no slot is unused
	end(4)
	end(5)
	run(6, "/b", another, 1) // an imitated directory: it gets the slot with the oldest last use
	run(7, "/c", postgres, 0)
	end(7)
	s.clusters[key{6, 1}].phase = waiting
	run(8, "/d", postgres, 0) // not the slot of the process whose worker starts again
	end(3)
	end(8)
	for pid := range 1000 {
		run(100+pid, "/e", pid, []int{2, 0}[pid%2])
		end(100 + pid)
	}
}

// TestFirstSlotsInOrder: whatever the order in which proofs end, the first workers have slots in the order of their
// data directories. A proof that hangs delays them by proofTime.
func TestFirstSlotsInOrder(t *testing.T) {
	t.Parallel()
	for _, hanging := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			const servers = 9
			slots := map[string]int{}
			s := newSupervisor(Config{Log: zerolog.Nop(), Command: func(dir string, _, slot int, _ *os.File) *exec.Cmd {
				slots[dir] = slot
				return exec.Command("/nonexistent")
			}})
			s.proof = func(_ string, p Process) (string, error) {
				if p.DataDir == "/hanging" {
					<-ctx.Done()
				}
				time.Sleep(time.Duration(servers-p.PID) * time.Millisecond) // the last directory is proved first
				return "/reached" + p.DataDir, nil
			}
			found := map[key]Process{}
			for pid := range servers {
				found[key{pid, 1}] = Process{PID: pid, Start: 1, DataDir: "/srv/" + string(rune('a'+pid))}
			}
			if hanging {
				found[key{servers, 1}] = Process{PID: servers, Start: 1, DataDir: "/hanging"}
			}
			s.update(ctx, found, time.Now())
			for range servers {
				s.handle(ctx, <-s.events)
			}
			if hanging {
				if len(slots) > 0 {
					t.Errorf("workers started before all proofs ended: %v", slots)
				}
				time.Sleep(proofTime)
				s.update(ctx, found, time.Now())
			}
			for pid := range servers {
				dir := "/reached/srv/" + string(rune('a'+pid))
				if slot, started := slots[dir]; !started || slot != pid {
					t.Errorf("hanging %t: %s has slot %d (%t), not %d", hanging, dir, slot, started, pid)
				}
			}
			cancel()
		})
	}
}

func TestIsBelow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path  string
		below []string
		want  bool
	}{
		{"/srv/pg", nil, true},
		{"/srv/pg", []string{"/srv"}, true},
		{"/srv/pg", []string{"/srv/pg/"}, true},
		{"/srv/pg2", []string{"/srv/pg"}, false},
		{"/srv", []string{"/srv/pg"}, false},
	} {
		if got := isBelow(c.path, c.below); got != c.want {
			t.Errorf("isBelow(%q, %q) = %v", c.path, c.below, got)
		}
	}
}

func TestNoProc(t *testing.T) {
	t.Parallel()
	if err := Run(t.Context(), Config{Proc: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("no error without /proc")
	}
}

// TestProofsThatHang: proofs that wait for a file system have few threads, and delay a server of another user by one
// proofTime at most.
func TestProofsThatHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const impostors, server, impostor, postgres = 5000, 1_000_000, 1000, 26
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var running atomic.Int64
		var proved atomic.Bool
		s := newSupervisor(Config{Max: -1, Log: zerolog.Nop()}) // -1: no worker starts
		s.proof = func(_ string, p Process) (string, error) {
			if p.PID == server {
				proved.Store(true)
				return p.DataDir, nil
			}
			running.Add(1)
			<-ctx.Done()
			return "", ctx.Err()
		}
		found := map[key]Process{}
		for pid := range impostors {
			found[key{pid, 1}] = Process{PID: pid, Start: 1, Account: impostor}
		}
		s.update(ctx, found, time.Now())
		synctest.Wait()
		if n := running.Load(); n != proofSlots {
			t.Errorf("%d proofs at the same time", n)
		}
		found[key{server, 1}] = Process{PID: server, Start: 1, Account: postgres}
		s.update(ctx, found, time.Now())
		time.Sleep(proofTime)
		s.update(ctx, found, time.Now())
		synctest.Wait()
		if !proved.Load() {
			t.Fatal("the server was not proved")
		}
		s.handle(ctx, <-s.events)
		for range 20 {
			time.Sleep(proofTime)
			s.update(ctx, found, time.Now())
		}
		synctest.Wait()
		if n := running.Load(); n != maxHangingOfUser {
			t.Errorf("%d proofs of one user hang", n)
		}
	})
}

// TestProofsAreFair: a server of another user does not wait for the proofs of many impostors.
func TestProofsAreFair(t *testing.T) {
	t.Parallel()
	s := newSupervisor(Config{})
	now := time.Now()
	for pid := range 100 {
		s.clusters[key{pid, 1}] = &cluster{Process: Process{Account: 1000}, next: now.Add(-time.Hour)}
	}
	s.clusters[key{100, 1}] = &cluster{Process: Process{Account: 26}, next: now}
	n := proofs{ofUser: map[int]int{1000: 1}}
	if k, c := s.nextProof(&n, now); c == nil || k.pid != 100 {
		t.Errorf("process %d is first", k.pid)
	}
	n.ofUser = map[int]int{1000: 1, 26: 1}
	if k, c := s.nextProof(&n, now); c == nil || k.pid == 100 {
		t.Error("the process that came last is first")
	}
	s.clusters[key{100, 1}].phase, s.clusters[key{7, 1}].next = refused, now.Add(-2*time.Hour)
	s.clusters[key{7, 1}].phase = refused
	if k, c := s.nextProof(&n, now); c == nil || c.phase != unproved {
		t.Errorf("process %d, which was refused before, comes before new ones", k.pid)
	}
	n.ofUser = map[int]int{1000: maxHangingOfUser, 26: maxHangingOfUser}
	if _, c := s.nextProof(&n, now); c != nil {
		t.Error("a user has too many proofs")
	}
}

// TestProofFreesSlot: the end of a proof starts the next one at once.
func TestProofFreesSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		s := newSupervisor(Config{Log: zerolog.Nop()})
		s.proof = func(string, Process) (string, error) {
			running.Add(1)
			return "", errServed
		}
		found := map[key]Process{}
		for pid := range proofSlots + 5 {
			found[key{pid, 1}] = Process{PID: pid, Start: 1}
		}
		s.update(t.Context(), found, time.Now())
		for range found {
			s.handle(t.Context(), <-s.events)
		}
		if n := running.Load(); n != proofSlots+5 {
			t.Errorf("%d proofs", n)
		}
	})
}

// TestManyImpostors: any number of processes that are called postgres make few lines.
func TestManyImpostors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &journal{}
		s := newSupervisor(Config{Log: zerolog.New(log)})
		const impostors = 5000
		for pid := range impostors {
			s.explain(&cluster{Process: Process{PID: pid, Account: pid}}, "it is none")
			time.Sleep(time.Millisecond)
		}
		if n := log.count("\n"); n < linesAtOnce || n > linesAtOnce+6*linesPerSecond {
			t.Errorf("%d lines", n)
		}
		time.Sleep(time.Second)
		s.explain(&cluster{}, "it is none")
		if log.count(`"left_out":`) == 0 {
			t.Error("nothing is told of what was left out")
		}
	})
}

// TestReload asks the workers to read their files again. The command copies its standard input to the log.
func TestReload(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	visible(t, s)
	file := filepath.Join(t.TempDir(), "asked")
	reload := make(chan struct{})
	log, end := serve(t, Config{Below: []string{s.DataDir}, Reload: reload}, "sh", "-c", `while read -r _; do echo asked >>"$0"; done`, file)
	pgtest.Wait(t, "a worker", func() bool { return log.count("started a worker") == 1 })
	for want := 1; want <= 2; want++ {
		reload <- struct{}{}
		pgtest.Wait(t, "the worker is asked", func() bool {
			text, _ := os.ReadFile(file)
			return strings.Count(string(text), "asked") == want
		})
	}
	end()
	if log.count(`"workers":1,"message":"asked the workers`) != 2 {
		t.Error("the log does not say that the worker was asked")
	}
}

// TestPortsAreSent: each worker gets the ports of all workers, and again when there is one more. The command copies its standard
// input to a file.
func TestPortsAreSent(t *testing.T) {
	first, second := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{}), pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{})
	second.Stop("fast")
	visible(t, first)
	file := filepath.Join(t.TempDir(), "lines")
	addresses := []string{freeAddress(t), freeAddress(t)}
	var ports []string
	for _, a := range addresses {
		_, port, err := net.SplitHostPort(a)
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
	}
	log, end := serve(t, Config{
		Below: []string{first.DataDir, second.DataDir}, Address: func(slot int) string { return addresses[slot] },
	}, "sh", "-c", `while read -r line; do echo "$line" >>"$0"; done`, file)
	lines := func(want string) (n int) {
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			if line == want+"\n" {
				n++
			}
		}
		return n
	}
	pgtest.Wait(t, "the port of the first worker", func() bool { return lines("ports "+ports[0]) == 1 })
	second.Start()
	visible(t, second)
	slices.Sort(ports)
	pgtest.Wait(t, "both workers know both ports", func() bool { return lines("ports "+strings.Join(ports, " ")) == 2 })
	if log.count("started a worker") != 2 {
		t.Error("a worker was started again")
	}
	end()
}
