package bpf

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"pg_stat_backtrace/ptrace/procfs"
)

// sleeper is a process of testdata/stacks.c.
type sleeper struct {
	pid     int
	sp, end uint64
}

// sleepIn starts one that sleeps in memory of a kind, on the processor that the test is bound to.
func sleepIn(t *testing.T, program, kind string) sleeper {
	t.Helper()
	const pause = 34 // pause(2) of x86_64, as the program is
	c := exec.Command(program, kind)
	var s sleeper
	startTold(t, c, &s.sp, &s.end)
	s.pid = c.Process.Pid
	for deadline := time.Now().Add(10 * time.Second); ; {
		call, err := procfs.ReadSyscall(s.pid, s.pid)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", call, err)
		}
		if !call.Running && call.Number == pause {
			return s
		}
	}
}

// openWalk makes a reader with a clock that can copy memory of others, or says why there is none; and what
// testdata/stacks.c makes.
func openWalk(t *testing.T) (r *Reader, c *Clock, program string) {
	t.Helper()
	r, c = openClock(t, 0)
	needDirect(t, c)
	return r, c, compile(t, "stacks")
}

// needDirect says so if the kernel's mapping of all memory was not found. On a machine that is known to have one that
// can be found (PGSB_TEST_DIRECT=1) it must be.
func needDirect(t *testing.T, c *Clock) {
	t.Helper()
	const problem = "where this kernel has mapped all memory was not found"
	switch {
	case c.notes.direct != 0:
	case os.Getenv("PGSB_TEST_DIRECT") == "1":
		t.Fatal(problem)
	default:
		t.Skip(problem)
	}
}

// look lets the clock go until it has noted the thread of the first slot, or wants it.
func look(t *testing.T, r *Reader, c *Clock, want Slot) (note *Slot, data []byte) {
	t.Helper()
	c.Empty()
	*r.Slot(0) = want
	r.Aim(1, 0)
	if err := c.Start(200*time.Microsecond, time.Hour); err != nil {
		t.Fatal(err)
	}
	var noted, missed int
	for deadline := time.Now().Add(time.Minute); ; {
		if noted, missed = c.Noted(); noted > 0 || r.Slot(0).Wanted != 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a minute %d noted, %d missed", noted, missed)
		}
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if c.Seen(); noted == 0 {
		return nil, nil
	}
	note = c.Note(0)
	return note, c.Stacks()[note.At:][:note.Length]
}

// TestWalk: what is copied of a process that sleeps is what its memory has, whatever that is of; and what cannot be
// had in an interrupt, or is not the process's, is not copied.
func TestWalk(t *testing.T) {
	r, c, program := openWalk(t)
	for _, kind := range []string{"anonymous", "huge", "hugetlb", "gigantic", "shared", "file", "zero"} {
		t.Run(kind, func(t *testing.T) {
			pin(t, 0)
			s := sleepIn(t, program, kind)
			if kind == "huge" && !hasHuge(t, s.pid) {
				t.Skip("the kernel gives no huge pages")
			}
			memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", s.pid))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = memory.Close() }()
			for below := uint32(0); below < 10_000; below += 97 {
				most := 1 + below*4%50_000
				note, data := look(t, r, c, Slot{PID: uint32(s.pid), End: s.end, Most: most, RedZone: below})
				if note == nil || note.Outcome != Read || note.Start != s.sp-uint64(below) ||
					note.Length != min(uint64(most), s.end-note.Start) || r.Slot(0).Wanted != 0 {
					t.Fatalf("%d bytes below, at most %d: %+v, %+v", below, most, note, r.Slot(0))
				}
				want := make([]byte, note.Length)
				if _, err := memory.ReadAt(want, int64(note.Start)); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(data, want) {
					t.Fatalf("%d bytes below, at most %d: another content", below, most)
				}
			}
		})
	}
	kernels := strconv.FormatUint(c.notes.direct+1<<20, 10)
	for _, kind := range []string{
		"untouched", "forbidden", "hole", "secret", kernels, "0", "0x7ffffffff000", "0x800000000000",
		"0xff00000000000000", "0xffffffffff600000", "0xfffffffffffff000",
	} {
		t.Run(kind, func(t *testing.T) {
			pin(t, 0)
			s := sleepIn(t, program, kind)
			if note, _ := look(t, r, c, Slot{PID: uint32(s.pid), End: s.end, Most: MaxStack}); note != nil {
				t.Errorf("%+v", note)
			}
		})
	}
}

// hasHuge reports whether the kernel has given a process huge pages.
func hasHuge(t *testing.T, pid int) bool {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	return !bytes.Contains(text, []byte("AnonHugePages:         0 kB"))
}

// TestWalkTooLong: a stack that is longer than what is copied in an interrupt is read by a call.
func TestWalkTooLong(t *testing.T) {
	r, c, program := openWalk(t)
	s := sleepIn(t, program, "anonymous")
	const below = maxPages << pageShift
	if note, _ := look(t, r, c, Slot{PID: uint32(s.pid), End: s.end, Most: MaxStack, RedZone: below}); note != nil {
		t.Errorf("%+v", note)
	}
	if errno := r.Read(1, 0); errno != 0 || r.Slot(0).Outcome != Read || r.Slot(0).Length < below {
		t.Errorf("%v: %+v", errno, r.Slot(0))
	}
}

// TestDirect: the kernel's mapping of all memory is where it says, if it does, whenever one looks.
func TestDirect(t *testing.T) {
	_, c, _ := openWalk(t)
	first := c.notes.direct
	if again := c.findDirect(); again != first || again%directUnit != 0 {
		t.Errorf("found at %#x, and at %#x", first, again)
	}
}
