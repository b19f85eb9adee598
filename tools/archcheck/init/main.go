// Command init is process 1 of the virtual machines of scripts/check-arch.sh. It mounts the usual file systems, and
// runs the script /check/run with the console as its output. Then it prints the exit status and resets the machine,
// which ends qemu. It does not depend on the script.
package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mounts are made in this order.
var mounts = []struct {
	kind, dir, data string
}{
	{"proc", "/proc", ""},
	{"sysfs", "/sys", ""},
	{"debugfs", "/sys/kernel/debug", ""}, // the kernel's preemption mode
	{"devtmpfs", "/dev", ""},
	{"tmpfs", "/dev/shm", "mode=1777"},
	{"tmpfs", "/tmp", "mode=1777"},
}

func main() {
	status, err := run()
	if err != nil {
		fmt.Println("init:", err)
	}
	fmt.Printf("\n@@exit %d\n", status)
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

// run returns the exit status of the script.
func run() (int, error) {
	for _, m := range mounts {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return 1, err
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, m.data); err != nil && !errors.Is(err, unix.EBUSY) {
			return 1, fmt.Errorf("mounting %s: %w", m.dir, err)
		}
	}
	_ = os.Symlink("/proc/self/fd", "/dev/fd") // initdb's shell
	if err := loopback(); err != nil {
		return 1, err
	}
	process, err := os.StartProcess("/bin/sh", []string{"sh", "/check/run"}, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{"PATH=/check:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "LC_ALL=C", "TZ=UTC"},
		Files: []*os.File{os.Stdin, os.Stdout, os.Stdout},
	})
	if err != nil {
		return 1, err
	}
	return reap(process.Pid)
}

// reap waits for a process, and for the orphans that end meanwhile: they are children of process 1.
func reap(pid int) (int, error) {
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1, fmt.Errorf("waiting: %w", err)
		case ended == pid && status.Exited():
			return status.ExitStatus(), nil
		case ended == pid:
			return 1, fmt.Errorf("/check/run ended by signal %d", status.Signal())
		}
	}
}

// loopback brings up the interface lo: tests look for free ports there.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return fmt.Errorf("a socket for lo: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("bringing up lo: %w", err)
	}
	return nil
}
