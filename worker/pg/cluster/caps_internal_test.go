package cluster

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestUseful(t *testing.T) {
	t.Parallel()
	const trace, sample = uint64(1) << unix.CAP_SYS_PTRACE, uint64(1) << unix.CAP_PERFMON
	for level, want := range map[string]uint64{
		"-1\n": trace, "0\n": trace, "1\n": trace, "2\n": trace, "3\n": trace | sample, "4\n": trace | sample,
		"": trace | sample, "odd\n": trace | sample,
	} {
		if got := useful(level); got != want {
			t.Errorf("level %q: %#x, want %#x", level, got, want)
		}
	}
}
