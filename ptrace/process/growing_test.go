package process

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMapsWhileTheHeapGrows reads the mappings of a process whose heap constantly grows and shrinks. The kernel's
// output is then sometimes inconsistent.
func TestMapsWhileTheHeapGrows(t *testing.T) {
	var done atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		const step, steps = 32 << 10, 200
		heap, _, _ := unix.RawSyscall(unix.SYS_BRK, 0, 0, 0) // Go's runtime does not use it
		for !done.Load() {
			for i := uintptr(1); i <= steps; i++ {
				_, _, _ = unix.Syscall(unix.SYS_BRK, heap+i*step, 0, 0)
			}
			_, _, _ = unix.Syscall(unix.SYS_BRK, heap, 0, 0)
		}
	})
	torn := 0
	for range 3000 {
		if text, err := readLarge(procPath(os.Getpid(), "maps")); err != nil {
			t.Error(err)
		} else if _, err := parseMaps(text); errors.Is(err, errOrder) {
			torn++
		}
		if _, err := Maps(os.Getpid()); err != nil {
			t.Error(err)
			break
		}
	}
	done.Store(true)
	group.Wait()
	t.Logf("%d of 3000 readings did not fit together", torn)
}

// TestParseAgain checks that inconsistent mappings are read again, and reported if they stay inconsistent.
func TestParseAgain(t *testing.T) {
	const torn = "1000-3000 rw-p 00000000 00:00 0 [heap]\n1000-2000 rw-p 00000000 00:00 0 [heap]\n"
	const whole = "1000-3000 rw-p 00000000 00:00 0 [heap]\n"
	const most = 10
	for _, good := range []int{1, 2, most, most + 1} {
		reads := 0
		maps, err := parseAgain("maps", func() (string, error) {
			if reads++; reads < good {
				return torn, nil
			}
			return whole, nil
		})
		if want := min(good, most); reads != want {
			t.Errorf("whole at reading %d: %d readings instead of %d", good, reads, want)
		}
		if found := len(maps) == 1 && err == nil; found != (good <= most) || !found && !errors.Is(err, ErrFormat) {
			t.Errorf("whole at reading %d: %d mappings, %v", good, len(maps), err)
		}
	}
}
