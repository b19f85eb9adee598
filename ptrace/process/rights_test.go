package process

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	testUser  = 65534
	testGroup = 65533
)

// sleeping starts a program that sleeps, as the test's user. It returns when the process has executed it.
func sleeping(t *testing.T, program string, attributes syscall.SysProcAttr) int {
	t.Helper()
	c := exec.Command(program, "1000")
	attributes.Pdeathsig = syscall.SIGKILL
	if attributes.Credential == nil && attributes.Cloneflags == 0 {
		attributes.Credential = &syscall.Credential{Uid: testUser, Gid: testUser}
	}
	c.SysProcAttr = &attributes
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c.Process.Pid
}

// sleepCopy copies the program sleep, for a change of its mode or attributes.
func sleepCopy(t *testing.T, change func(path string) error) string {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip(err)
	}
	code, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "rights")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "program")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, code, 0o755), change(path)); err != nil {
		t.Fatal(err)
	}
	return path
}

// withCapability gives a file CAP_NET_RAW: struct vfs_cap_data of linux/capability.h, revision 2.
func withCapability(path string) error {
	value := make([]byte, 20)
	binary.LittleEndian.PutUint32(value, 0x02000000|1) // effective
	binary.LittleEndian.PutUint32(value[4:], 1<<unix.CAP_NET_RAW)
	return unix.Setxattr(path, "security.capability", value, 0)
}

// TestRightsOfOthers checks that a process with any other right than the reference is refused, and why.
func TestRightsOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to start programs of other users")
	}
	var mounted unix.Statfs_t
	if err := unix.Statfs(os.TempDir(), &mounted); err == nil && mounted.Flags&unix.ST_NOSUID != 0 {
		t.Skip("the temporary directory is mounted with nosuid")
	}
	plain := sleepCopy(t, func(string) error { return nil })
	rights, err := ReadRights(sleeping(t, plain, syscall.SysProcAttr{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := rights.Plain(1, testUser, testUser); err != nil {
		t.Errorf("the rights of an ordinary process: %v", err)
	}
	if err := rights.Verify(sleeping(t, plain, syscall.SysProcAttr{})); err != nil {
		t.Errorf("a process with the same rights: %v", err)
	}
	groups := &syscall.Credential{Uid: testUser, Gid: testUser, Groups: []uint32{testGroup}}
	if err := rights.Verify(sleeping(t, plain, syscall.SysProcAttr{Credential: groups})); err != nil {
		t.Errorf("a process with another supplementary group: %v", err)
	}
	mode := func(owner, group int, mode os.FileMode) func(string) error {
		return func(path string) error { return errors.Join(os.Chown(path, owner, group), os.Chmod(path, mode)) }
	}
	ids := []syscall.SysProcIDMap{{ContainerID: testUser, HostID: testUser, Size: 1}}
	for name, other := range map[string]func() int{
		"setgid": func() int {
			return sleeping(t, sleepCopy(t, mode(0, testGroup, 0o755|os.ModeSetgid)), syscall.SysProcAttr{})
		},
		"setuid": func() int { return sleeping(t, sleepCopy(t, mode(0, 0, 0o755|os.ModeSetuid)), syscall.SysProcAttr{}) },
		"setuid to another user": func() int {
			return sleeping(t, sleepCopy(t, mode(testGroup, 0, 0o755|os.ModeSetuid)), syscall.SysProcAttr{})
		},
		"file capability": func() int { return sleeping(t, sleepCopy(t, withCapability), syscall.SysProcAttr{}) },
		"unreadable":      func() int { return sleeping(t, sleepCopy(t, mode(0, 0, 0o711)), syscall.SysProcAttr{}) },
		"another group": func() int {
			return sleeping(t, plain, syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testUser, Gid: testGroup}})
		},
		"another user namespace": func() int {
			return sleeping(t, plain, syscall.SysProcAttr{
				Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
				Credential: &syscall.Credential{Uid: testUser, Gid: testUser, NoSetGroups: true},
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			pid := other()
			err := rights.Verify(pid)
			var denied *PermissionError
			if !errors.As(err, &denied) || denied.Reason != ReasonRights {
				t.Fatalf("got %v", err)
			}
			t.Log(err)
			stat, err := ReadStat(pid)
			if err != nil {
				t.Fatal(err)
			}
			target := Target{PID: pid, UID: -1, Rights: &rights}
			if err := target.Identify(&stat); !errors.As(err, &denied) {
				t.Errorf("the identity of a target: %v", err)
			}
			// A server that is such a program itself has no rights to compare with, except if only its file is secret.
			own, err := ReadRights(pid)
			if err != nil {
				t.Fatal(err)
			}
			if name == "unreadable" || name == "another user namespace" {
				return
			}
			if err := own.Plain(pid, testUser, testUser); !errors.As(err, &denied) {
				t.Errorf("a postmaster with such rights: %v", err)
			}
		})
	}
}

// TestRightsOfEnded checks that the end of a process is no other right.
func TestRightsOfEnded(t *testing.T) {
	rights, err := ReadRights(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("true")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, c.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if err := rights.Verify(c.Process.Pid); !errors.Is(err, ErrExited) {
		t.Errorf("a zombie: %v", err)
	}
	_ = c.Wait()
	if err := rights.Verify(c.Process.Pid); !errors.Is(err, ErrExited) {
		t.Errorf("a process that is gone: %v", err)
	}
}
