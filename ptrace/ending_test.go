package ptrace

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/observe"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/ptrace/snapshot"
)

// TestEndingProcessHasExited checks a killed process whose memory the kernel is freeing. It looks alive, but the
// kernel shows none of its data. The result must be ErrExited for every caller, not a permission error.
func TestEndingProcessHasExited(t *testing.T) {
	var as *syscall.SysProcAttr
	if unix.Getuid() == 0 {
		// With all capabilities nothing is refused.
		as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	for _, engine := range []string{"stop", "nonstop"} {
		for range full(20, 200) {
			if targetProgram == "" {
				t.Skip("no gcc to compile testdata/target.c with")
			}
			cmd := exec.Command(targetProgram, "heavy", "32")
			cmd.SysProcAttr = as
			c := startChild(t, cmd)
			killer := actor("ending", engine, strconv.Itoa(c.pid))
			if as != nil {
				killer.SysProcAttr = &syscall.SysProcAttr{Credential: as.Credential}
			}
			if out, err := killer.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", engine, err, out)
			}
			_ = c.Wait()
		}
	}
}

// endingRole captures a process repeatedly, kills it at a random moment, and continues until it has exited.
func endingRole(args []string) int {
	pid, _ := strconv.Atoi(args[1])
	capture := Capture
	if args[0] == "nonstop" {
		capture = observe.Observe
	}
	after := time.Duration(rand.IntN(2_000_000))
	time.AfterFunc(after, func() { _ = unix.Kill(pid, unix.SIGKILL) })
	for {
		switch _, err := capture(context.Background(), anyTarget(pid), snapshot.Options{Deadline: patience}); {
		case errors.Is(err, process.ErrExited):
			return 0
		case err != nil:
			fmt.Fprintln(os.Stdout, err)
			return 1
		}
	}
}
