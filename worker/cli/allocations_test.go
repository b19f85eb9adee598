package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	pprof "github.com/google/pprof/profile"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/allocs"
)

// startWriter is a standard error that does something when a trace has begun.
type startWriter struct {
	mu    sync.Mutex
	text  bytes.Buffer
	begun func()
}

func (w *startWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun != nil && bytes.Contains(p, []byte("tracing the allocations")) {
		go w.begun()
		w.begun = nil
	}
	return w.text.Write(p)
}

// runInterrupted runs a command, and work when its trace has begun. Then it interrupts the command.
func runInterrupted(t *testing.T, work func(), args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out bytes.Buffer
	errs := &startWriter{begun: func() {
		work()
		_ = unix.Kill(os.Getpid(), unix.SIGINT)
	}}
	status = Main("1.2.3", args, &out, errs)
	return status, out.String(), errs.text.String()
}

func needAllocations(t *testing.T) {
	t.Helper()
	err := allocs.Check()
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, allocs.ErrUnsupported) && !errors.Is(err, unix.EACCES):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
}

// TestAllocations prints the leak of a backend in every format, each ended by an interrupt.
func TestAllocations(t *testing.T) {
	needAllocations(t)
	server := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	conn := server.Connect(t, server.User, "postgres")
	pid := strconv.Itoa(int(conn.PgConn().PID()))
	number := 0
	leak := func() {
		for range 60 {
			number++
			if _, err := conn.Exec(t.Context(), fmt.Sprintf("PREPARE p%d AS SELECT relname FROM pg_class", number)); err != nil {
				t.Error(err)
				return
			}
		}
	}
	leak()
	live := regexp.MustCompile(`live since start: (\d+) blocks with (\d+) bytes`)
	trace := func(format string, more ...string) (stdout string, blocks, bytes int64) {
		t.Helper()
		args := append([]string{"memory", "--allocations", "--duration", "10m", "--max-overhead", "100%", "-f", format, pid},
			more...)
		status, stdout, stderr := runInterrupted(t, leak, args...)
		found := live.FindStringSubmatch(stdout + stderr)
		if status != 0 || found == nil || !strings.Contains(stderr, "malloc of libc.so.6") {
			t.Fatalf("%s: status %d, %q\n%.3000s", format, status, stderr, stdout)
		}
		blocks, _ = strconv.ParseInt(found[1], 10, 64)
		bytes, _ = strconv.ParseInt(found[2], 10, 64)
		if blocks < 60 || bytes < 60*4096 {
			t.Errorf("%s: %s", format, found[0])
		}
		return stdout, blocks, bytes
	}

	// The time begins when the functions are probed: it is never shorter than --duration.
	_, out, _ := run(t, "memory", "--allocations", "--duration", "300ms", "--max-overhead", "100%", pid)
	took := regexp.MustCompile(`allocations during (\d+\.\d) s`).FindStringSubmatch(out)
	if took == nil {
		t.Errorf("%.1000s", out)
	} else if seconds, err := strconv.ParseFloat(took[1], 64); err != nil || seconds < 0.3 {
		t.Errorf("measured for %s s instead of 0.3 s", took[1])
	}

	const hint = "slow growth needs a longer --duration"
	if !strings.Contains(out, hint) {
		t.Errorf("no hint for a trace without allocations: %.1000s", out)
	}

	text, _, _ := trace("text")
	if strings.Contains(text, hint) {
		t.Errorf("%.1000s", text)
	}
	if !strings.Contains(text, "freed from before the start: ") || !strings.Contains(text, " in PrepareQuery+0x") ||
		!regexp.MustCompile(`(?m)^live \d+ bytes in \d+ blocks? \(\d+\.\d %\); allocated \d+ bytes`).MatchString(text) {
		t.Errorf("%.3000s", text)
	}

	folded, _, bytes := trace("folded")
	checkHeapFolded(t, folded, bytes)

	raw, blocks, bytes := trace("pprof")
	checkHeapProfile(t, raw, blocks, bytes)

	page, _, _ := trace("html", "--sample-type", "alloc_space")
	if !strings.Contains(page, "<html") || !strings.Contains(page, "PrepareQuery") {
		t.Errorf("%.1000s", page)
	}

	list, blocks, bytes := trace("compressed")
	checkHeapMap(t, pid, list, blocks, bytes)
	short, _, _ := trace("compressed", "--pre", "3", "--post", "2")
	if len(short) == 0 || strings.Contains(short, "exact=") {
		t.Errorf("--pre has not left out the innermost frame\n%.500s", short)
	}
}

// checkHeapFolded adds up the lines of folded stacks.
func checkHeapFolded(t *testing.T, folded string, bytes int64) {
	t.Helper()
	sum := int64(0)
	for line := range strings.Lines(folded) {
		at := strings.LastIndexByte(line, ' ')
		n, err := strconv.ParseInt(strings.TrimSpace(line[at+1:]), 10, 64)
		if err != nil || !strings.Contains(line, ";malloc ") && !strings.Contains(line, "alloc ") {
			t.Fatalf("%q: %v", line, err)
		}
		sum += n
	}
	if sum != bytes {
		t.Errorf("folded has %d bytes, the summary %d", sum, bytes)
	}
}

// checkHeapProfile compares a profile with the sums of the trace.
func checkHeapProfile(t *testing.T, raw string, blocks, bytes int64) {
	t.Helper()
	p, err := pprof.ParseData([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if objects, space := sumOf(p, "inuse_objects"), sumOf(p, "inuse_space"); objects != blocks || space != bytes {
		t.Errorf("pprof has %d objects with %d bytes, the summary %d with %d", objects, space, blocks, bytes)
	}
	if sumOf(p, "alloc_objects") < blocks || sumOf(p, "alloc_space") < bytes {
		t.Error("fewer blocks were allocated than are live")
	}
}

// checkHeapMap has decode add up the blocks of a trace, whose sums are given.
func checkHeapMap(t *testing.T, pid, list string, blocks, bytes int64) {
	t.Helper()
	file := t.TempDir() + "/heap.log"
	if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	status, heap, stderr := run(t, "decode", "--heapmap", "--pid", pid, file)
	if status != 0 || !strings.Contains(heap, fmt.Sprintf("# Total instrumented allocation %d\n", bytes)) ||
		!strings.Contains(heap, " in PrepareQuery+0x") {
		t.Errorf("status %d, %q, want %d bytes\n%.2000s", status, stderr, bytes, heap)
	}
	allocations := int64(0)
	for _, found := range regexp.MustCompile(`(?m)^\d+ bytes in (\d+) allocations?$`).FindAllStringSubmatch(heap, -1) {
		n, _ := strconv.ParseInt(found[1], 10, 64)
		allocations += n
	}
	if allocations != blocks || strings.Count(list, "~m#") != int(blocks) {
		t.Errorf("%d allocations in %d lines, want %d", allocations, strings.Count(list, "~m#"), blocks)
	}
}

// sumOf adds up the values of a sample type; -1 if there is none.
func sumOf(p *pprof.Profile, name string) int64 {
	for i, typ := range p.SampleType {
		if typ.Type != name {
			continue
		}
		sum := int64(0)
		for _, s := range p.Sample {
			sum += s.Value[i]
		}
		return sum
	}
	return -1
}

// TestAllocationsMisused: what cannot be traced is refused, with the reason.
func TestAllocationsMisused(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		status int
		want   string
	}{
		"two processes": {[]string{"1", "1"}, 2, "give one process id"},
		"budget":        {[]string{"--max-overhead", "120%", "1"}, 2, "--max-overhead must be"},
		"no budget":     {[]string{"--max-overhead", "0", "1"}, 2, "--max-overhead must be"},
		"tree":          {[]string{"--tree", "1"}, 2, "--tree does not go with --allocations"},
		"timeout":       {[]string{"--timeout", "1s", "1"}, 2, "--timeout does not go with --allocations"},
		"format":        {[]string{"-f", "csv", "1"}, 2, "--format must be one of text, json, folded"},
		"sample type":   {[]string{"-f", "folded", "--sample-type", "cpu", "1"}, 2, "--sample-type must be one of"},
		"snip":          {[]string{"--pre", "2", "1"}, 2, "require --format compressed"},
		"no process":    {[]string{"4194305"}, 1, "there is no process 4194305"},
	} {
		t.Run(name, func(t *testing.T) {
			status, stdout, stderr := run(t, append([]string{"memory", "--allocations"}, c.args...)...)
			if status != c.status || stdout != "" || !strings.Contains(stderr, c.want) {
				t.Errorf("status %d, %q, %q", status, stdout, stderr)
			}
		})
	}
	zombie := exec.Command("true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(zombie.Process.Pid)
	pgtest.Wait(t, "the process to end", func() bool {
		text, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || bytes.Contains(text, []byte(") Z "))
	})
	if status, _, stderr := run(t, "memory", "--allocations", pid); status != 1 || !strings.Contains(stderr, pid) {
		t.Errorf("a zombie: status %d, %q", status, stderr)
	}
	_ = zombie.Wait()
}
