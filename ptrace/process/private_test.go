package process

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReadPrivate compares the figure before and after private and shared memory are written to.
func TestReadPrivate(t *testing.T) {
	const size, slack = 64 << 20, 16 << 20
	grow := func(flags int) uint64 {
		before, err := ReadPrivate(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_ANONYMOUS)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Munmap(memory) }()
		for i := 0; i < size; i += os.Getpagesize() {
			memory[i] = 1
		}
		after, err := ReadPrivate(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return after - min(after, before)
	}
	if got := grow(unix.MAP_PRIVATE); got < size-slack || got > size+slack {
		t.Errorf("private memory: %d bytes more, want about %d", got, size)
	}
	if got := grow(unix.MAP_SHARED); got > slack {
		t.Errorf("shared memory counts: %d bytes more", got)
	}
	if _, err := ReadPrivate(1 << 30); err == nil {
		t.Error("a process that does not exist has memory")
	}
}

// TestMemoryLimit expects the lowest limit of the host and of the groups of both versions.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	const (
		host   = "MemTotal:        8000000 kB\nMemFree: 1 kB\n"
		second = "30 22 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		first  = "31 30 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
		all    = 8000000 << 10
	)
	for _, c := range []struct {
		name, groups, mounts string
		files                map[string]string
		want                 uint64
	}{
		{"no group", "", "", nil, all},
		{"no limit", "0::/a/b\n", second, map[string]string{"/sys/fs/cgroup/a/b/memory.max": "max\n"}, all},
		{"own", "0::/a/b\n", second, map[string]string{"/sys/fs/cgroup/a/b/memory.max": "1073741824\n"}, 1 << 30},
		{"of an ancestor", "0::/a/b\n", second, map[string]string{
			"/sys/fs/cgroup/a/b/memory.max": "2147483648\n", "/sys/fs/cgroup/a/memory.max": "1073741824\n",
		}, 1 << 30},
		{"above the host", "0::/a\n", second, map[string]string{"/sys/fs/cgroup/a/memory.max": "1099511627776\n"}, all},
		{"version 1", "4:memory:/a\n5:cpu:/c\n", first, map[string]string{
			"/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1073741824\n",
			"/sys/fs/cgroup/memory/memory.limit_in_bytes":   "9223372036854771712\n",
		}, 1 << 30},
		{"of another namespace", "0::/../../x\n", second, map[string]string{"/sys/x/memory.max": "4096\n", "/x/memory.max": "4096\n"}, all},
	} {
		if got := memoryLimit(host, c.groups, c.mounts, func(name string) string { return c.files[name] }); got != c.want {
			t.Errorf("%s: %d, not %d", c.name, got, c.want)
		}
	}
	if got := memoryLimit("", "0::/a\n", second, func(string) string { return "4096\n" }); got != 0 {
		t.Errorf("without MemTotal: %d", got)
	}
	if got := MemoryLimit(os.Getpid()); got < 1<<20 {
		t.Errorf("this process: %d", got)
	}
}
