package clusterbpf

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// killedVariable has the test's program attach the programs, and wait for its end.
const killedVariable = "PGSB_TEST_KILLED"

// TestKilledLeavesNothing expects that after kill -9 the kernel has none of the programs any more.
func TestKilledLeavesNothing(t *testing.T) {
	if os.Getenv(killedVariable) != "" {
		sampleUntilKilled(t)
	}
	check(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, "-test.run", "^TestKilledLeavesNothing$")
	c.Env = append(os.Environ(), killedVariable+"=1")
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]ebpf.ProgramID, 4)
	in := bufio.NewReader(out)
	for i := range ids {
		if _, err := fmt.Fscan(in, &ids[i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids {
		if !inKernel(t, id) {
			t.Errorf("the kernel does not have program %d", id)
		}
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	deadline := time.Now().Add(3 * time.Minute)
	for _, id := range ids {
		for inKernel(t, id) {
			if time.Now().After(deadline) {
				t.Fatalf("the kernel still has program %d a minute after kill -9", id)
			}
			time.Sleep(10 * time.Millisecond) // the kernel frees it in the background
		}
	}
}

// sampleUntilKilled attaches all programs, and prints their numbers.
func sampleUntilKilled(t *testing.T) {
	t.Helper()
	s, err := Load(Server{Postmaster: os.Getpid()}, Options{
		Clock: true, Switches: true, Period: time.Millisecond, Processes: 100, RingSize: 1 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(time.Hour); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.kernel.Programs {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		fmt.Println(id)
	}
	time.Sleep(time.Hour)
}

// inKernel reports whether the kernel has a program.
func inKernel(t *testing.T, id ebpf.ProgramID) bool {
	t.Helper()
	p, err := ebpf.NewProgramFromID(id)
	switch {
	case errors.Is(err, fs.ErrPermission):
		t.Skip("the programs in the kernel cannot be listed: ", err)
	case errors.Is(err, fs.ErrNotExist):
		return false
	case err != nil:
		t.Fatal(err)
	}
	_ = p.Close()
	return true
}
