package dwarf_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pg_stat_backtrace/internal/figure"
)

// Limits on the processor time of the first and of a later use of a debug file. Processor time excludes the work of
// other processes. A compressed file is expanded up to the unit that contains the address. An answer that cannot wait
// for that has no lines.
const (
	firstTime       = 200 * time.Millisecond
	firstCompressed = time.Second
	firstMemory     = 100 << 20
	laterTime       = 500 * time.Microsecond // machines differ by a factor of three
)

// envFirst makes the test program look up addresses in a file and print the cost.
const envFirst = "DWARF_TEST_FIRST"

// cost is the measurement of one separate process.
type cost struct {
	first, later time.Duration
	firstCPU     time.Duration
	laterCPU     time.Duration
	memory       int // bytes that the process has had at most, more than before
}

// TestFirstUse measures the first look-up in a debug file, in a separate process so that its memory can be measured.
// It measures PostgreSQL, if debugging information is available, and the files in PGSB_FIRST_FILES (make
// check-names). The limits apply only if these files are given: not with the race detector, or beside other tests.
func TestFirstUse(t *testing.T) {
	if file := os.Getenv(envFirst); file != "" {
		measureFirst(t, file)
		return
	}
	all := filepath.SplitList(os.Getenv("PGSB_FIRST_FILES"))
	if bin := os.Getenv("PGSB_DEBUG_BINDIR"); bin != "" {
		all = append(all, filepath.Join(bin, "postgres"))
	}
	if len(all) == 0 {
		t.Skip("neither PGSB_DEBUG_BINDIR (scripts/build-postgresql.sh) nor PGSB_FIRST_FILES is set: nothing to measure")
	}
	for _, file := range all {
		t.Run(filepath.Base(file), func(t *testing.T) {
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			best := cost{firstCPU: time.Hour}
			for range 3 { // the first time the file may have to come from the disk
				if c := askFirst(t, file); c.firstCPU < best.firstCPU {
					best = c
				}
			}
			limit, what := firstTime, ""
			if _, r, err := openImage(t, file).SectionReader(".debug_info"); err == nil && r == nil {
				limit, what = firstCompressed, ", compressed"
			}
			figure.Printf(t, "%d MB%s: first look-up %v (%v of processor time), %d MB of memory; then %v each (%v)",
				info.Size()>>20, what, best.first.Round(time.Millisecond), best.firstCPU.Round(time.Millisecond),
				best.memory>>20, best.later, best.laterCPU)
			if os.Getenv("PGSB_FIRST_FILES") == "" {
				return
			}
			if best.firstCPU > limit || best.memory > firstMemory || best.laterCPU > laterTime {
				t.Errorf("more than %v, %d MB, %v", limit, firstMemory>>20, laterTime)
			}
		})
	}
}

// askFirst runs the measurement in a separate process.
func askFirst(t *testing.T, file string) cost {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestFirstUse$", "-test.v")
	cmd.Env = append(os.Environ(), envFirst+"="+file)
	out, err := cmd.CombinedOutput()
	_, said, ok := strings.Cut(string(out), "cost ")
	f := strings.Fields(said)
	if err != nil || !ok || len(f) < 5 {
		t.Fatalf("%v\n%s", err, out)
	}
	return cost{
		first: time.Duration(number(t, f[0])), later: time.Duration(number(t, f[1])), memory: number(t, f[2]),
		firstCPU: time.Duration(number(t, f[3])), laterCPU: time.Duration(number(t, f[4])),
	}
}

// processor is the processor time that this process has used.
func processor(t *testing.T) time.Duration {
	t.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// measureFirst looks up one address, then as many as a stack has. It repeats these when the units are listed.
func measureFirst(t *testing.T, file string) {
	const depth = 20
	all := randomAddresses(t, file, 100*depth)
	var addrs []uint64
	for i := range depth {
		addrs = append(addrs, all[i*100+50])
	}
	before, began, used := peak(t), time.Now(), processor(t)
	d := newData(t, file)
	if _, err := d.Frames(addrs[depth/2]); err != nil {
		t.Fatal(err)
	}
	first, firstCPU := time.Since(began), processor(t)-used
	later, laterCPU := time.Hour, time.Hour
	for range 5 { // the first time all of their units are decoded
		began, used = time.Now(), processor(t)
		for _, addr := range addrs {
			if _, err := d.Frames(addr); err != nil {
				t.Fatal(err)
			}
		}
		later, laterCPU = min(later, time.Since(began)/depth), min(laterCPU, (processor(t)-used)/depth)
		if err := d.Load(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("cost %d %d %d %d %d",
		first.Nanoseconds(), later.Nanoseconds(), peak(t)-before, firstCPU.Nanoseconds(), laterCPU.Nanoseconds())
}

// peak is the most memory that this process has had, in bytes (VmHWM).
func peak(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "VmHWM:")
	return number(t, strings.Fields(rest)[0]) << 10
}
