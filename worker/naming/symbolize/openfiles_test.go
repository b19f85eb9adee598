package symbolize

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/arch"
)

// TestImagesOfAnEndedProcess checks that a cached file serves an ended process, unless the file has changed. It also
// checks that a file that was never cached serves if it has not changed for long.
func TestImagesOfAnEndedProcess(t *testing.T) {
	host := arch.Host()
	if host == nil {
		t.Skip(ErrArchitecture)
	}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sleep")
	if err := pgtest.WriteProgram(file, program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), file, "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	maps, code := mapped(t, pid, file)
	known, fresh := NewCache(host, &Sources{}), NewCache(host, &Sources{})
	alive := known.find(pid, maps, code)
	if alive == nil {
		t.Fatal("no image of a live process")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if dead := known.find(pid, maps, code); dead != alive {
		t.Errorf("of the ended process: %v", dead)
	}
	if dead := fresh.find(pid, maps, code); dead != nil {
		t.Errorf("of a process of whose file, which is new, nothing is known: %v", dead)
	}
	other := slices.Clone(maps)
	for i := range other {
		other[i].Inode++
	}
	if dead := known.find(pid, other, code); dead != nil {
		t.Errorf("of another file: %v", dead)
	}
	older := NewCache(host, &Sources{})
	older.minUnchanged = 0
	if dead := older.find(pid, other, code); dead != nil {
		t.Errorf("of another file, however old: %v", dead)
	}
	dead := older.find(pid, maps, code)
	if dead == nil || dead.Image.BuildID() != alive.Image.BuildID() {
		t.Errorf("of a file that has not changed for long: %v", dead)
	}
	if err := os.Chtimes(file, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if dead := known.find(pid, maps, code); dead != nil {
		t.Errorf("of a file that was written to: %v", dead)
	}
}

// mapped waits until a process has mapped a file's code. It returns the process's mappings and the index of the code.
func mapped(t *testing.T, pid int, file string) (maps []process.Mapping, code int) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); {
		var err error
		if maps, err = process.Maps(pid); err != nil {
			t.Fatal(err)
		}
		for i := range maps {
			if maps[i].Path == file && maps[i].Perms&process.Exec != 0 {
				return maps, i
			}
		}
	}
	t.Fatalf("%s is not mapped: %+v", file, maps)
	return nil, 0
}
