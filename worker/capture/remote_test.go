package capture_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/naming/debuginfod"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// announcer is a Remote that starts a request only when the test waits for a file. So no file arrives before the
// first capture. After the capturer has been informed, it also informs the test.
type announcer struct {
	*debuginfod.Client

	begin func()
	begun chan struct{}
	ended chan bool
	mu    sync.Mutex
	asked map[string]int
}

func (a *announcer) RequestDebugFile(id string, done func(arrived bool, again time.Time)) {
	a.mu.Lock()
	a.asked[id]++
	a.mu.Unlock()
	go func() {
		<-a.begun
		a.Client.RequestDebugFile(id, func(arrived bool, again time.Time) {
			done(arrived, again)
			if arrived {
				a.ended <- true
			}
		})
	}()
}

// announce makes a debuginfod client.
func announce(t *testing.T, url string) *announcer {
	t.Helper()
	client, err := debuginfod.New(debuginfod.Config{
		URLs: []string{url}, CacheDir: filepath.Join(t.TempDir(), "cache"), MinFree: debuginfod.None,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	t.Cleanup(begin)
	return &announcer{
		Client: client, begin: begin, begun: begun, ended: make(chan bool, 8), asked: make(map[string]int),
	}
}

func remoteCapturer(t *testing.T, r symbolize.Remote) *capture.Capturer {
	t.Helper()
	c, err := capture.New(capture.Config{Remote: r, LinesWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// arrival waits for a debug file.
func (a *announcer) arrival(t *testing.T) {
	t.Helper()
	a.begin()
	select {
	case <-a.ended:
	case <-time.After(pgtest.Patience):
		t.Fatal("no debug file has arrived")
	}
}

// TestDebuginfod checks a stripped program. Its first stack comes at once, without the names of static functions.
// After the debug file has arrived, the next stack has them.
func TestDebuginfod(t *testing.T) {
	program := imagetest.BuildSplit(t, "testdata/nest.c")
	server := imagetest.StartDebuginfod(t, filepath.Dir(program.Debug), program.BuildID)
	remote := announce(t, server.URL)
	pid := start(t, program.Exe)
	var asked sync.Map // the image's name by its build-id
	c, err := capture.New(capture.Config{
		Remote: remote, LinesWait: time.Minute, Wanted: func(image, id string) { asked.Store(id, image) },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"ready", "inner", "middle", "outer", "main"}
	before := take(t, c, pid, capture.Options{})
	for _, name := range names(&before) {
		for _, w := range want {
			if strings.HasPrefix(name, w) {
				t.Errorf("a stripped program has %s", name)
			}
		}
	}
	if name, _ := asked.Load(program.BuildID); name != filepath.Base(program.Exe) {
		t.Errorf("the debug file is asked for as that of %v", name)
	}
	remote.arrival(t)
	after := take(t, c, pid, capture.Options{})
	checkOrder(t, &after, want...)
	if len(before.Frames) != len(after.Frames) {
		t.Errorf("%d frames, then %d", len(before.Frames), len(after.Frames))
	}
	other := remoteCapturer(t, announceAt(t, remote.Dir()))
	cached := take(t, other, pid, capture.Options{})
	checkOrder(t, &cached, want...)
	if n := remote.asked[program.BuildID]; n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// TestDebuginfodSupplement uses a debug file from which dwz has moved parts to another file. In one case both come
// from the server, in the other the debug file is installed. The next capture must have all names.
func TestDebuginfodSupplement(t *testing.T) {
	a := imagetest.BuildSplit(t, "testdata/inlined.c", "-O2", "-gdwarf-4")
	b := imagetest.BuildSplit(t, "testdata/inlined.c", "-O3", "-gdwarf-4", "-DOTHER")
	sup, supID := imagetest.Share(t, a, b)
	folder := t.TempDir()
	installed := filepath.Join(folder, ".build-id", a.BuildID[:2], a.BuildID[2:]+".debug")
	command(t, "mkdir", "-p", filepath.Dir(installed))
	command(t, "cp", a.Debug, installed)
	exe := filepath.Join(t.TempDir(), "inlined")
	command(t, "cp", a.Exe, exe)
	pid := start(t, exe)
	bare := take(t, patient(t, capture.Config{DebugDirs: []string{folder}}), pid, capture.Options{})
	if slices.Equal(places(&bare), inlinedStack) {
		t.Fatal("nothing of what is looked for is in the supplementary file")
	}
	for name, cfg := range map[string]capture.Config{
		"both from the server": {DebugDirs: []string{t.TempDir()}},
		"debug file installed": {DebugDirs: []string{folder}},
	} {
		t.Run(name, func(t *testing.T) {
			served := t.TempDir()
			ids := []string{supID}
			command(t, "cp", sup, served)
			if cfg.DebugDirs[0] != folder {
				command(t, "cp", a.Debug, served)
				ids = append(ids, a.BuildID)
			}
			server := imagetest.StartDebuginfod(t, served, ids...)
			remote := announce(t, server.URL)
			cfg.Remote = remote
			c := patient(t, cfg)
			first := take(t, c, pid, capture.Options{})
			if slices.Equal(places(&first), inlinedStack) {
				t.Error("an answer has waited for the server")
			}
			remote.arrival(t)
			second := take(t, c, pid, capture.Options{})
			if got := places(&second); !slices.Equal(got, inlinedStack) {
				t.Errorf("got  %q\nwant %q", got, inlinedStack)
			}
			if n := remote.asked[a.BuildID] + remote.asked[supID]; n != 1 {
				t.Errorf("asked %d times", n)
			}
			other := patient(t, capture.Config{DebugDirs: cfg.DebugDirs, Remote: announceAt(t, remote.Dir())})
			cached := take(t, other, pid, capture.Options{})
			if got := places(&cached); !slices.Equal(got, inlinedStack) {
				t.Errorf("with the files in the cache: %q", got)
			}
		})
	}
}

// announceAt makes a client of a server that is not there, with the cache of another one.
func announceAt(t *testing.T, dir string) *announcer {
	t.Helper()
	a := announce(t, "http://127.0.0.1:1")
	client, err := debuginfod.New(debuginfod.Config{URLs: []string{"http://127.0.0.1:1"}, CacheDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	a.Client = client
	return a
}

// TestDebuginfodOfDeletedProgram captures a running program whose file was deleted. Its names come from the
// debuginfod server.
func TestDebuginfodOfDeletedProgram(t *testing.T) {
	program := imagetest.BuildSplit(t, "testdata/nest.c")
	server := imagetest.StartDebuginfod(t, filepath.Dir(program.Debug), program.BuildID)
	remote := announce(t, server.URL)
	pid := start(t, program.Exe)
	if err := os.Remove(program.Exe); err != nil {
		t.Fatal(err)
	}
	c := remoteCapturer(t, remote)
	_ = take(t, c, pid, capture.Options{})
	remote.arrival(t)
	after := take(t, c, pid, capture.Options{})
	checkOrder(t, &after, "ready", "inner", "middle", "outer", "main")
}

// slow is a Remote whose file never arrives.
type slow struct{ asked chan string }

func (slow) DebugFile(string) string { return "" }

func (s slow) RequestDebugFile(id string, _ func(bool, time.Time)) {
	select {
	case s.asked <- id:
	default:
	}
}

// TestDebuginfodNeverWaits checks that a server which does not respond delays no capture. Each image is requested
// once.
func TestDebuginfodNeverWaits(t *testing.T) {
	program := imagetest.BuildSplit(t, "testdata/nest.c")
	pid := start(t, program.Exe)
	remote := slow{asked: make(chan string, 100)}
	c := remoteCapturer(t, remote)
	for range 5 {
		if th := take(t, c, pid, capture.Options{}); len(th.Frames) < 5 {
			t.Errorf("frames: %q", names(&th))
		}
	}
	close(remote.asked)
	seen := make(map[string]int)
	for id := range remote.asked {
		if seen[id]++; seen[id] > 1 {
			t.Errorf("asked %d times for %s", seen[id], id)
		}
	}
	if seen[program.BuildID] != 1 {
		t.Errorf("asked for %v, not for %s", seen, program.BuildID)
	}
}

// flaky is a Remote whose requests fail until the test provides the file.
type flaky struct {
	mu    sync.Mutex
	path  string
	again time.Time
	asked int
}

func (f *flaky) DebugFile(id string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if filepath.Base(filepath.Dir(f.path)) != id {
		return ""
	}
	return f.path
}

func (f *flaky) RequestDebugFile(_ string, done func(bool, time.Time)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	done(false, f.again)
}

// times is how often it was asked; files are still looked for after a capture has ended.
func (f *flaky) times() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// TestDebuginfodAsksAgain checks that a failed request is repeated once, and not before the client's time for it.
func TestDebuginfodAsksAgain(t *testing.T) {
	program := imagetest.BuildSplit(t, "testdata/nest.c", "-static")
	pid := start(t, program.Exe)
	for _, tt := range []struct {
		again time.Time
		more  bool
	}{{time.Now().Add(time.Hour), false}, {time.Now(), true}} {
		remote := &flaky{again: tt.again}
		c := remoteCapturer(t, remote)
		_ = take(t, c, pid, capture.Options{})
		first := remote.times()
		_ = take(t, c, pid, capture.Options{})
		second := remote.times()
		if more := second > first; first == 0 || more != tt.more {
			t.Errorf("asked %d times, then %d", first, second)
		}
	}
}

// TestDebuginfodOtherBuild checks that a cached file of another build is ignored.
func TestDebuginfodOtherBuild(t *testing.T) {
	program := imagetest.BuildSplit(t, "testdata/nest.c")
	other := imagetest.BuildSplit(t, "testdata/nest.c", "-O2")
	place := filepath.Join(t.TempDir(), program.BuildID, "debuginfo")
	data, err := os.ReadFile(other.Debug)
	if err == nil {
		err = os.Mkdir(filepath.Dir(place), 0o700)
	}
	if err == nil {
		err = os.WriteFile(place, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := remoteCapturer(t, &flaky{path: place, again: time.Now().Add(time.Hour)})
	th := take(t, c, start(t, program.Exe), capture.Options{})
	for _, name := range names(&th) {
		if name == "inner" || name == "middle" || name == "outer" {
			t.Errorf("named by another build: %s", name)
		}
	}
}

// TestDebuginfodPostgres checks that a stripped server gets all its names from a debuginfod server.
func TestDebuginfodPostgres(t *testing.T) {
	pgtest.One(t, func(t *testing.T, binDir string) {
		full := filepath.Join(binDir, "postgres")
		if out, err := exec.CommandContext(t.Context(), "readelf", "-SW", full).Output(); err != nil {
			t.Fatal(err)
		} else if !strings.Contains(string(out), " .symtab ") {
			t.Skipf("%s has no symbols that could be taken out of it", full)
		}
		// The tree is copied, since a server finds its files from its program's place.
		tree := t.TempDir()
		if err := os.Chmod(filepath.Dir(tree), 0o755); err != nil {
			t.Fatal(err)
		}
		cp := exec.CommandContext(t.Context(), "cp", "-rL", filepath.Dir(binDir), tree+"/pg")
		if out, err := cp.CombinedOutput(); err != nil {
			t.Fatalf("cp: %v\n%s", err, out)
		}
		program := imagetest.Split(t, full)
		stripped := filepath.Join(tree, "pg", "bin", "postgres")
		if err := os.Rename(program.Exe, stripped); err != nil {
			t.Fatal(err)
		}
		debuginfod := imagetest.StartDebuginfod(t, filepath.Dir(program.Debug), program.BuildID)
		server := pgtest.Start(t, filepath.Join(tree, "pg", "bin"), pgtest.Options{})
		remote := announce(t, debuginfod.URL)
		c := remoteCapturer(t, remote)
		// Not the postmaster: it is a child of this process, where Wait would take its stops.
		pid := child(t, server.PostmasterPID())
		watch := capturer(t) // it has no Remote
		pgtest.Wait(t, "it to have nothing to do", func() bool {
			tr, err := watch.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{Deadline: pgtest.Patience})
			return err == nil && tr.Wait.Class == "Activity"
		})
		before := postgresFrames(t, c, pid)
		remote.arrival(t)
		after := postgresFrames(t, c, pid)
		if len(before) != len(after) || len(after) < 3 {
			t.Fatalf("%d frames, then %d", len(before), len(after))
		}
		gained := 0
		for i := range after {
			if after[i].Function == "" {
				t.Errorf("no name for %s", after[i].Name())
			}
			if before[i].Function == "" {
				gained++
			}
		}
		figure.Printf(t, "%d of %d frames got a name", gained, len(after))
		if gained == 0 {
			t.Error("nothing was gained: ServerLoop at least is static")
		}
	})
}

// child returns a child of a process.
func child(t *testing.T, pid int) int {
	t.Helper()
	pids, err := process.Children(pid)
	if err != nil || len(pids) == 0 {
		t.Fatalf("children of %d: %v, %v", pid, pids, err)
	}
	return pids[0]
}

// postgresFrames captures a process and returns its frames in postgres. The process must have nothing to do: it looks round from
// time to time.
func postgresFrames(t *testing.T, c *capture.Capturer, pid int) []backtrace.Frame {
	t.Helper()
	var tr *backtrace.Trace
	pgtest.Wait(t, "it to have nothing to do", func() bool {
		var err error
		tr, err = c.Capture(t.Context(), process.Target{PID: pid, UID: -1}, capture.Options{Deadline: pgtest.Patience})
		if err != nil {
			t.Fatal(err)
		}
		return tr.Wait.Class == "Activity"
	})
	var out []backtrace.Frame
	for _, f := range tr.Threads[0].Frames {
		if f.Module == "postgres" && f.Function != "_start" {
			out = append(out, f)
		}
	}
	return out
}
