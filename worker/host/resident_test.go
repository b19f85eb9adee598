package host

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const otherProgram = "PGSB_TEST_RESIDENT"

// lockMemory locks the code of this program. If the parameter how is a number, it is the limit of locked memory, and
// the program runs as a user without privileges.
func lockMemory(how string) error {
	if bytes, err := strconv.ParseUint(how, 10, 64); err == nil {
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: bytes}); err != nil {
			return err
		}
		if err := syscall.Setuid(65534); err != nil {
			return err
		}
	}
	n, err := LockMemory()
	status, statusErr := os.ReadFile("/proc/self/status")
	_, _ = os.Stdout.WriteString(strconv.Itoa(n) + "\n" + string(status))
	return errors.Join(err, statusErr)
}

// TestLock compares the reported size of locked memory with the kernel's figure and the limit.
func TestLock(t *testing.T) {
	code := sizeOf(t)
	for _, c := range []struct {
		how          string
		least, limit int
	}{{"all", code, 1 << 40}, {"8388608", 0, 8 << 20}, {"0", 0, 0}} {
		if c.how != "all" && os.Geteuid() != 0 {
			t.Log("not root: the limit is not tried")
			continue
		}
		command := exec.Command("/proc/self/exe")
		command.Env = append(os.Environ(), otherProgram+"="+c.how)
		out, err := command.Output()
		if (err != nil) != (c.how == "0") && c.how != "8388608" {
			t.Errorf("%s: %v", c.how, err)
		}
		said, status, _ := strings.Cut(string(out), "\n")
		locked := regexp.MustCompile(`VmLck:\s+(\d+) kB`).FindStringSubmatch(status)
		if locked == nil || said != kilobytes(t, locked[1]) {
			t.Errorf("%s: %s bytes are said to be locked; the kernel: %v kB", c.how, said, locked)
		}
		if n, _ := strconv.Atoi(said); n < c.least || n > c.limit {
			t.Errorf("%s: %d bytes locked, code is %d", c.how, n, code)
		}
	}
}

func kilobytes(t *testing.T, text string) string {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(n << 10)
}

// sizeOf returns the size of the test program's instructions.
func sizeOf(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		fields := strings.Fields(line)
		if len(fields) != 6 || fields[5] != self || fields[1] != "r-xp" {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		return int(end - start)
	}
	t.Fatal("no code")
	return 0
}

// TestAllowLockOnlyRaises checks that limits which are higher than needed stay.
func TestAllowLockOnlyRaises(t *testing.T) {
	const variable = "PGSB_TEST_ALLOW_LOCK"
	if os.Getenv(variable) == "" { // without root, a process cannot raise a hard limit again
		command := exec.Command("/proc/self/exe", "-test.run=^TestAllowLockOnlyRaises$")
		command.Env = append(os.Environ(), variable+"=1")
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
		t.Fatal(err)
	}
	needed := min(old.Max, lockLimit) / 2
	for _, soft := range []uint64{old.Max, needed, 0} { // RLIM_INFINITY is the highest number
		before := unix.Rlimit{Cur: soft, Max: old.Max}
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before); err != nil {
			t.Fatal(err) // a soft limit up to the hard limit is always allowed
		}
		err := allowLock(needed)
		var now unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &now); err != nil {
			t.Fatal(err)
		}
		if now.Cur < before.Cur || now.Max < before.Max || now.Cur < needed || err != nil {
			t.Errorf("%+v became %+v: %v", before, now, err)
		}
	}
}
