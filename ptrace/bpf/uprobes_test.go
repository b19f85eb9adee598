package bpf

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUprobeAnswers has the answers of kernels: bpf_uprobe_multi_link_attach in kernel/trace/bpf_trace.c, and
// link_create in kernel/bpf/syscall.c.
func TestUprobeAnswers(t *testing.T) {
	t.Parallel()
	unsupported := errors.New("unsupported")
	for _, c := range []struct {
		kernel         string
		all, negative  unix.Errno
		mainThreadOnly bool
		want           error // nil: the kernel can attach programs
	}{
		{"6.6.35, 6.9.5, 6.10 to 6.18", unix.EBADF, unix.EINVAL, false, nil},
		{"6.6.0 to 6.6.34, 6.7, 6.8, 6.9.0 to 6.9.4", unix.EBADF, unix.EBADF, true, nil},
		{"6.5 and older; before 6.13 for both entry and return", unix.EINVAL, unix.EINVAL, false, unsupported},
		{"without CONFIG_UPROBES", unix.EOPNOTSUPP, unix.EOPNOTSUPP, false, unsupported},
		{"without bpf()", unix.ENOSYS, unix.ENOSYS, false, unsupported},
		{"with a security module that forbids it", unix.EPERM, unix.EPERM, false, unix.EPERM},
		{"without memory", unix.ENOMEM, unix.ENOMEM, false, unix.ENOMEM},
		{"that attaches anything", 0, 0, false, unsupported},
	} {
		u, err := judgeUprobes(c.all, c.negative)
		if err != nil {
			err = LoadError(unsupported, "attach a program", "6.6", err)
		}
		if !errors.Is(err, c.want) || errors.Is(err, unsupported) != errors.Is(c.want, unsupported) {
			t.Errorf("a kernel %s answers %v: %v, not %v", c.kernel, c.all, err, c.want)
		}
		if u.MainThreadOnly != c.mainThreadOnly {
			t.Errorf("a kernel %s answers %v for process -1: %+v", c.kernel, c.negative, u)
		}
	}
}

// TestThreadsChecked: a test in Go has several threads, and cat has one.
func TestThreadsChecked(t *testing.T) {
	t.Parallel()
	cat := exec.Command("cat")
	in, err := cat.StdinPipe()
	if err == nil {
		err = cat.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = cat.Wait()
	}()
	old := Uprobes{MainThreadOnly: true}
	const none = 1 << 22 // the kernel's limit
	for _, pid := range []int{cat.Process.Pid, none} {
		if err := old.CheckThreads(pid); err != nil {
			t.Errorf("a process with one thread, or none: %v", err)
		}
	}
	if err := old.CheckThreads(os.Getpid()); err == nil || !strings.Contains(err.Error(), "threads") {
		t.Errorf("a process with several threads: %v", err)
	}
	if err := (Uprobes{}).CheckThreads(os.Getpid()); err != nil {
		t.Errorf("a process with several threads, and a kernel that counts all of them: %v", err)
	}
}
