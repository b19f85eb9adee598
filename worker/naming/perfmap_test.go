package naming

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/host/rootfs"
)

// TestHostilePerfMap: root reads a perf map with the rights of the process's user, if it is a regular file.
func TestHostilePerfMap(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	const stranger = 47120
	dir, err := os.MkdirTemp("/tmp", "perfmap")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	pipe, secret, own := filepath.Join(dir, "pipe"), filepath.Join(dir, "secret"), filepath.Join(dir, "own")
	const text = "1000 10 function\n"
	err = errors.Join(os.Chmod(dir, 0o755), unix.Mkfifo(pipe, 0o666), os.Chmod(pipe, 0o666),
		os.WriteFile(secret, []byte(text), 0o600), os.WriteFile(own, []byte(text), 0o600), os.Chown(own, stranger, 0))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/bin/cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	}()
	file := fmt.Sprintf("/tmp/perf-%d.map", cmd.Process.Pid)
	defer func() { _ = os.Remove(file) }()
	for target, want := range map[string]error{
		"": nil, own: nil, pipe: rootfs.ErrNotRegular, "/dev/zero": rootfs.ErrNotRegular, secret: fs.ErrPermission,
		dir: rootfs.ErrNotRegular,
	} {
		if target != "" {
			if err := errors.Join(os.Symlink(target, file), os.Lchown(file, stranger, stranger)); err != nil {
				t.Fatal(err)
			}
		}
		var maps PerfMaps
		var warned error
		table := maps.Read(ProcessKey{PID: cmd.Process.Pid}, func(errs ...error) { warned = errors.Join(errs...) })
		if (table != nil) != (target == own) || !errors.Is(warned, want) {
			t.Errorf("%q: %v, %v", target, table, warned)
		}
		_ = os.Remove(file)
	}
}

// TestPerfMapOfEarlierProcess checks that a map is ignored, with a warning, if it was written before its process started. A process
// with the same id has left it.
func TestPerfMapOfEarlierProcess(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(cmd.Process.Kill(), cmd.Wait()) }()
	stat, err := process.ReadStat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	file := fmt.Sprintf("/tmp/perf-%d.map", stat.PID)
	defer func() { _ = os.Remove(file) }()
	if err := os.WriteFile(file, []byte("1000 10 function\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	var maps PerfMaps
	for _, age := range []time.Duration{0, time.Hour, 0, time.Hour} { // with and without a cached table
		if err := os.Chtimes(file, now, now.Add(-age)); err != nil {
			t.Fatal(err)
		}
		var warned []error
		table := maps.Read(ProcessKey{PID: stat.PID, StartTime: stat.StartTime}, func(errs ...error) { warned = append(warned, errs...) })
		if (table != nil) != (age == 0) || (len(warned) == 0) != (age == 0) {
			t.Errorf("written %v before now: %v, %v", age, table, warned)
		}
		if len(warned) > 0 && (len(warned) > 1 || !strings.Contains(warned[0].Error(), file+" is older than the process")) {
			t.Error(warned)
		}
	}
}
