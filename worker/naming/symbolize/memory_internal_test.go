package symbolize

import (
	"os/exec"
	"path/filepath"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

// TestEndedImageIsNotKept has a process end while the image of its program is read from memory. The image, which lacks
// tables, does not serve later processes with the same program.
func TestEndedImageIsNotKept(t *testing.T) {
	host := arch.Host()
	if host == nil {
		t.Skip(ErrArchitecture)
	}
	program, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	if program, err = filepath.EvalSymlinks(program); err != nil {
		t.Fatal(err)
	}
	// read reads the image of a process that ends after so many reads of its memory, and returns the number of reads.
	read := func(c *Cache, end int) (m *Module, reads int) {
		cmd := exec.CommandContext(t.Context(), program, "600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stop := func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		defer stop()
		pid := cmd.Process.Pid
		maps, code := mapped(t, pid, program)
		base, ok := baseMapping(maps, code)
		if !ok {
			t.Fatalf("no header: %+v", maps)
		}
		memory := ProcessMemory(pid)
		m = c.fromMemory(func(addr uint64, p []byte) (int, error) {
			if reads == end {
				stop()
			}
			reads++
			return memory(addr, p)
		}, pid, base, "id")
		return m, reads
	}
	c := NewCache(host, &Sources{})
	_, all := read(NewCache(host, &Sources{}), -1)
	if all < 3 {
		t.Fatalf("%d reads", all)
	}
	for end := range all {
		if read(c, end); c.known("id") != nil {
			t.Fatalf("the image of a process that ended after %d of %d reads is kept", end, all)
		}
	}
	whole, _ := read(c, -1)
	if whole == nil || c.known("id") != whole {
		t.Fatal("the image of a live process is not kept")
	}
	if table, _ := whole.Table(nil); table == nil {
		t.Error("no table")
	}
}
