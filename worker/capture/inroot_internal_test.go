package capture

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

const jailVariable = "CAPTURE_TEST_JAIL"

// TestJailed is no test, but the process of one: in another root directory, until its standard input ends.
func TestJailed(t *testing.T) {
	dir := os.Getenv(jailVariable)
	if dir == "" {
		t.Skip("only TestInRoot runs this")
	}
	if err := syscall.Chroot(dir); err != nil {
		fmt.Fprintln(os.Stdout, err)
		return
	}
	fmt.Fprintln(os.Stdout, "jailed")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// TestInRoot: files of a process in another root directory are those that the process itself would open; links there,
// whether absolute or with as many ".." as one likes, lead to nothing outside.
func TestInRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can chroot")
	}
	top := t.TempDir()
	jail := filepath.Join(top, "jail")
	for name, text := range map[string]string{"secret": "outside", "jail/inside": "inside", "jail/etc/passwd": "its own"} {
		path := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	up := "../../../../../../../../../../../.."
	for name, to := range map[string]string{
		"absolute": "/inside", "relative": "etc/../inside", "up": "../secret", "outside": filepath.Join(top, "secret"),
		"passwd": up + "/etc/passwd", "folder": up + "/etc", "loop": "loop",
	} {
		if err := os.Symlink(to, filepath.Join(jail, name)); err != nil {
			t.Fatal(err)
		}
	}
	pid := jailed(t, jail)
	for _, test := range []struct{ path, want string }{
		{"inside", "inside"}, {"absolute", "inside"}, {"relative", "inside"}, {"passwd", "its own"},
		{"folder/passwd", "its own"}, {"../../" + top + "/secret", ""}, {"up", ""}, {"outside", ""}, {"loop", ""},
		{"etc", ""},
	} {
		for how, open := range map[string]func(candidate) (*os.File, error){
			"openat2": candidate.open, "an old kernel": candidate.openOld,
		} {
			f, err := open(candidate(fmt.Sprintf("/proc/%d/root/%s", pid, test.path)))
			var text []byte
			if err == nil {
				text, _ = io.ReadAll(f) // of a directory, nothing
				_ = f.Close()
			}
			got := string(text)
			// An old kernel finds less, but nothing else.
			if got != test.want && (how == "openat2" || got != "") {
				t.Errorf("%s by %s: %q, %v, want %q", test.path, how, got, err, test.want)
			}
		}
	}
}

// jailed starts a process with another root directory.
func jailed(t *testing.T, dir string) int {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestJailed$")
	cmd.Env = append(os.Environ(), jailVariable+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line := make([]byte, len("jailed\n"))
	if _, err := io.ReadFull(stdout, line); err != nil || string(line) != "jailed\n" {
		t.Fatalf("%q: %v", line, err)
	}
	return cmd.Process.Pid
}

func TestSplit(t *testing.T) {
	for path, want := range map[candidate][2]string{
		"/proc/12/root/usr/lib/x": {"/proc/12/root", "usr/lib/x"}, "/proc/12/root/": {}, "/proc/12/exe": {},
		"/proc/12/root": {}, "/proc/self/root/x": {}, "/proc//root/x": {}, "/usr/proc/12/root/x": {}, "": {},
	} {
		root, inside, ok := path.split()
		if ok != (want != [2]string{}) || ok && [2]string{root, inside} != want {
			t.Errorf("%s: %q, %q, %v", path, root, inside, ok)
		}
	}
}
