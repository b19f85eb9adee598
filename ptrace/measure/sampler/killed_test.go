package sampler

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

// killedVariable has the test's program load a sampler, and wait for its end.
const killedVariable = "PGSB_TEST_KILLED"

// TestKilled: after kill -9 of a program that samples, its programs and tables are gone from the kernel, and its timers
// with them.
func TestKilled(t *testing.T) {
	if os.Getenv(killedVariable) != "" {
		sampleUntilKilled(t)
	}
	open(t, 0) // or skips the test
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, "-test.run", "^TestKilled$")
	c.Env = append(os.Environ(), killedVariable+"=1")
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var program ebpf.ProgramID
	var table ebpf.MapID
	if _, err := fmt.Fscan(bufio.NewReader(out), &program, &table); err != nil {
		t.Fatal(err)
	}
	if !inKernel(t, program, table) {
		t.Error("the kernel does not have what was loaded")
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	for deadline := time.Now().Add(3 * time.Minute); inKernel(t, program, table); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the kernel still has a program or table a minute after kill -9")
		}
	}
}

// sampleUntilKilled starts a timer, and prints the numbers of a program and a table.
func sampleUntilKilled(t *testing.T) {
	t.Helper()
	s, err := loadKernel([]int{0})
	if err != nil {
		t.Fatal(err)
	}
	pin(t, 0)
	p := s.Processors[0]
	*p.Target(0) = whole(t, os.Getpid())
	p.Aim(1)
	if err := p.Start(quick, time.Hour); err != nil {
		t.Fatal(err)
	}
	program, err := s.Programs["read_wanted"].Info()
	if err != nil {
		t.Fatal(err)
	}
	table, err := s.Maps["processors"].Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := program.ID()
	tableID, _ := table.ID()
	fmt.Println(id, tableID) //nolint:forbidigo // to the test
	time.Sleep(time.Hour)
}

// inKernel reports whether the kernel has a program or a table.
func inKernel(t *testing.T, program ebpf.ProgramID, table ebpf.MapID) bool {
	t.Helper()
	p, err1 := ebpf.NewProgramFromID(program)
	m, err2 := ebpf.NewMapFromID(table)
	defer func() { _, _ = p.Close(), m.Close() }() // nil has nothing to close
	for _, err := range []error{err1, err2} {
		if errors.Is(err, fs.ErrPermission) {
			t.Skip("what the kernel has is not to be seen: ", err)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return err1 == nil || err2 == nil
}
