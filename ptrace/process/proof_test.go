package process

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// TestProof has a process that sleeps, runs for a moment, and then executes a setuid program.
func TestProof(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "proof") // file systems such as a tmpfs may ignore setuid bits
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	setuid := filepath.Join(dir, "setuid")
	if err := os.WriteFile(setuid, text, 0o755); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(setuid, nobody, -1), os.Chmod(setuid, 0o755|os.ModeSetuid)); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("sh", "-c", `read -r _; read -r _; exec "$0" 1000`, setuid)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	input, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // the end of this thread would end the process
	defer runtime.UnlockOSThread()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	pid := c.Process.Pid
	if p := Prove(pid); p != nil {
		t.Error("a proof of a process that is not kept")
	}
	k := NewKeeper(1)
	k.Begin([]int{pid})
	defer k.Close()
	before := proofWhen(t, pid, func(p *Proof) bool { // while it starts, it can also sleep until a page of its program is there
		call, err := ReadSyscall(pid, pid)
		return err == nil && !call.Running && call.Number == syscall.SYS_READ && call.Args[0] == 0 && p.Holds()
	})
	rights, err := before.Rights()
	if err != nil {
		t.Fatal(err)
	}
	if again := Prove(pid); again != before || !before.Holds() || rights.VerifyProof(before) != nil {
		t.Error("a process that sleeps has not kept its proof")
	}
	for range 2 {
		if _, err := io.WriteString(input, "\n"); err != nil {
			t.Fatal(err)
		}
		after := proofWhen(t, pid, func(p *Proof) bool { return p != before })
		if before.Holds() {
			t.Error("the process has run, and the proof holds")
		}
		before = after
	}
	last := proofWhen(t, pid, func(p *Proof) bool { return p.Status.Name == "setuid" })
	was, err := last.Program()
	if now, _ := os.Stat(setuid); err != nil || !os.SameFile(was, now) {
		t.Errorf("program %v, %v", was, err)
	}
	if os.Geteuid() == 0 {
		if err := rights.VerifyProof(last); !errors.Is(err, ErrNotPermitted) {
			t.Errorf("after a setuid program: %v", err)
		}
	}
	k.Close()
	if last.Holds() || Prove(pid) != nil {
		t.Error("a proof holds without the descriptors")
	}
}

// proofWhen waits for a proof.
func proofWhen(t *testing.T, pid int, want func(*Proof) bool) *Proof {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Millisecond) {
		if p := Prove(pid); p != nil && want(p) {
			return p
		}
		if time.Now().After(deadline) {
			t.Fatal("no such proof")
		}
	}
}

// TestNoProof has processes of which the kernel cannot say that nothing has run.
func TestNoProof(t *testing.T) {
	t.Parallel()
	busy := exec.Command("sh", "-c", "while :; do :; done")
	runtime.LockOSThread() // the end of this thread would end the process
	defer runtime.UnlockOSThread()
	busy.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = busy.Process.Kill(); _ = busy.Wait() })
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Millisecond) {
		// Before that, it waits for the pages of its program.
		if ran, ok := Ran(busy.Process.Pid); ok && ran > 200*time.Millisecond {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the process does not run")
		}
	}
	k := NewKeeper(2)
	k.Begin([]int{busy.Process.Pid, os.Getpid()})
	defer k.Close()
	for range 100 {
		if p := Prove(busy.Process.Pid); p.Holds() {
			t.Fatal("a busy process sleeps")
		}
		if Prove(os.Getpid()) != nil {
			t.Fatal("a process with several threads has a proof")
		}
	}
}
