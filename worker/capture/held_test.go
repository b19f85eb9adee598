package capture

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/unwind/arch"
)

// TestImagesOfAnEndedProcess: what was read for one process serves for another one that has ended, and for none whose
// file has changed since.
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
	if err := os.WriteFile(file, program, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), file, "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	var maps []procfs.Mapping
	code := -1
	for deadline := time.Now().Add(time.Minute); code < 0 && time.Now().Before(deadline); {
		if maps, err = procfs.Maps(pid); err != nil {
			t.Fatal(err)
		}
		for i := range maps {
			if maps[i].Path == file && maps[i].Perms&procfs.Exec != 0 {
				code = i
			}
		}
	}
	if code < 0 {
		t.Fatalf("%s is not mapped: %+v", file, maps)
	}
	known, fresh := newImages(host, &shared{}), newImages(host, &shared{})
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
		t.Errorf("of a process that nothing is known of: %v", dead)
	}
	other := maps[code]
	other.Inode++
	if dead := known.held.mapped(pid, &other); dead != nil {
		t.Errorf("of another file: %v", dead)
	}
	if err := os.Chtimes(file, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if dead := known.find(pid, maps, code); dead != nil {
		t.Errorf("of a file that was written to: %v", dead)
	}
}
