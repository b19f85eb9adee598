package disktest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const variable = "PGSB_TEST_JAIL"

// Tree is the content of the root directory, by path. An empty text is a directory, "-> x" is a symbolic link to x,
// "listen" is a unix socket on which the process listens. Any other text is the content of a file.
type Tree map[string]string

type plan struct {
	Dir  string `json:"dir"`
	Tree Tree   `json:"tree"`
}

// Jail starts a process in a new mount namespace whose root directory has the content tree, and returns its id. The process ends
// with the test. Jail skips the test unless root runs it.
//
// It runs the test program again with an environment variable. The function init then turns that process into the
// process of the separate namespace.
func Jail(t testing.TB, tree Tree) int {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a mount namespace and change the root directory")
	}
	text, err := json.Marshal(plan{Dir: t.TempDir(), Tree: tree})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), variable+"="+string(text))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Unshareflags: syscall.CLONE_NEWNS}
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
	line := make([]byte, len(ready))
	if _, err := io.ReadFull(stdout, line); err != nil || string(line) != ready {
		t.Fatalf("%q: %v", line, err)
	}
	return cmd.Process.Pid
}

const ready = "ready\n"

//nolint:gochecknoinits // before the tests of the program that imports it
func init() {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	var p plan
	err := json.Unmarshal([]byte(text), &p)
	if err == nil {
		err = p.enter()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprint(os.Stdout, ready)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	os.Exit(0)
}

// enter makes the root directory and changes to it.
func (p *plan) enter() error {
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := syscall.Mount("none", p.Dir, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	if err := syscall.Chroot(p.Dir); err != nil {
		return fmt.Errorf("changing the root directory: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	for path, what := range p.Tree {
		if err := grow(path, what); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// grow makes one entry of a Tree.
func grow(path, what string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	to, link := strings.CutPrefix(what, "-> ")
	switch {
	case link:
		return os.Symlink(to, path)
	case what == "":
		return os.MkdirAll(path, 0o750)
	case what == "listen":
		var config net.ListenConfig
		_, err := config.Listen(context.Background(), "unix", path) // never closed
		return err
	}
	return os.WriteFile(path, []byte(what), 0o600)
}
