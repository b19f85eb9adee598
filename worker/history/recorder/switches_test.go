package recorder

import (
	"bufio"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
)

// TestStatuses compares the kept status of a process that sleeps with /proc, also after it has run. No descriptor stays.
func TestStatuses(t *testing.T) {
	cat := exec.CommandContext(t.Context(), "cat")
	input, err := cat.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cat.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cat.Start(); err != nil {
		t.Fatal(err)
	}
	pid, lines := cat.Process.Pid, bufio.NewReader(output)
	id := identity{int32(pid), 1}
	var s statuses
	kept := 0
	for range 20 {
		if _, err := input.Write([]byte("x\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		// asleep again, and with the same figures before and after
		pgtest.Wait(t, "a process that sleeps", func() bool {
			before, err := process.ReadStatus(pid)
			if err != nil {
				t.Fatal(err)
			}
			got, ok := s.read(id, pid)
			again := s.known[id].slices
			same, _ := s.read(id, pid)
			after, err := process.ReadStatus(pid)
			if err != nil {
				t.Fatal(err)
			}
			switches := before.VoluntarySwitches + before.InvoluntarySwitches
			if before.State != 'S' || after.State != 'S' || switches != after.VoluntarySwitches+after.InvoluntarySwitches {
				return false
			}
			if !ok || got.Switches != switches || got.State != 'S' || same != got {
				t.Fatalf("%+v and %+v, not %d switches", got, same, switches)
			}
			if again != 0 {
				kept++
			}
			return true
		})
	}
	if _, err := os.Stat("/proc/self/schedstat"); err == nil && kept != 20 {
		t.Errorf("only %d of 20 statuses were kept", kept)
	}
	s.end()
	if len(s.known) != 1 || s.files > 1 {
		t.Errorf("%d processes, %d files", len(s.known), s.files)
	}
	if s.end(); len(s.known) != 0 || s.files != 0 {
		t.Errorf("a process that is absent stays: %d, %d files", len(s.known), s.files)
	}
	if err := input.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cat.Wait(); err != nil {
		t.Fatal(err)
	}
	if p, ok := s.read(id, pid); ok {
		t.Errorf("a process that has ended: %+v", p)
	}
	s.close()
	if s.files != 0 {
		t.Errorf("%d files stay", s.files)
	}
}

// TestStatusesLeaveDescriptors has a low limit of descriptors: statuses leaves most of them to the rest of the worker.
func TestStatusesLeaveDescriptors(t *testing.T) { // not parallel, because it lowers the limit of this process
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	low := before
	low.Cur = min(256, before.Max)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
	var s statuses
	defer s.close()
	for n := range int32(300) {
		if _, ok := s.read(identity{n, 1}, os.Getpid()); !ok {
			t.Fatalf("process %d could not be read", n)
		}
	}
	if s.files == 0 || s.files > int(low.Cur)/8 {
		t.Errorf("%d descriptors of %d", s.files, low.Cur)
	}
}
