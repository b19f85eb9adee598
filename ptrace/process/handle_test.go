package process

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestHoldersShareHandle checks that all holders of a process share one handle, that the handle notices the end of
// the process, and that no descriptor is leaked.
func TestHoldersShareHandle(t *testing.T) {
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	first, err := Hold(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Hold(c.Process.Pid)
	if err != nil || second != first {
		t.Fatalf("%p and %p, %v", first, second, err)
	}
	first.Release()
	if !second.Lives() {
		t.Error("it has not ended")
	}
	if second.EndsWithin(time.Millisecond) || (*Handle)(nil).EndsWithin(time.Hour) {
		t.Error("it has ended within a millisecond")
	}
	_ = c.Process.Kill()
	if !second.EndsWithin(time.Minute) { // and not only when it is waited for
		t.Error("it has not ended within a minute")
	}
	_ = c.Wait()
	if second.Lives() {
		t.Error("it has ended")
	}
	if _, err := Hold(c.Process.Pid); !errors.Is(err, ErrExited) {
		t.Errorf("of one that has ended: %v", err)
	}
	second.Release()
	(*Handle)(nil).Release()
	if _, err := unix.FcntlInt(uintptr(first.fd), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("its descriptor is open: %v", err)
	}
	for _, pid := range []int{-1, 0} {
		if h, err := Hold(pid); err == nil {
			t.Errorf("%d is held: %+v", pid, h)
		}
	}
}
