package bpf

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUprobeAnswers has the answers of kernels: bpf_uprobe_multi_link_attach in kernel/trace/bpf_trace.c, and
// link_create in kernel/bpf/syscall.c.
func TestUprobeAnswers(t *testing.T) {
	t.Parallel()
	unsupported := errors.New("unsupported")
	for _, c := range []struct {
		kernel string
		answer unix.Errno
		want   error // nil: the kernel can attach programs
	}{
		{"6.6 to 6.18", unix.EBADF, nil},
		{"6.5 and older; before 6.13 for both entry and return", unix.EINVAL, unsupported},
		{"without CONFIG_UPROBES", unix.EOPNOTSUPP, unsupported},
		{"without bpf()", unix.ENOSYS, unsupported},
		{"with a security module that forbids it", unix.EPERM, unix.EPERM},
		{"without memory", unix.ENOMEM, unix.ENOMEM},
		{"that attaches anything", 0, unsupported},
	} {
		err := judgeUprobes(c.answer)
		if err != nil {
			err = LoadError(unsupported, "attach a program", "6.6", err)
		}
		if !errors.Is(err, c.want) || errors.Is(err, unsupported) != errors.Is(c.want, unsupported) {
			t.Errorf("a kernel %s answers %v: %v, not %v", c.kernel, c.answer, err, c.want)
		}
	}
}
