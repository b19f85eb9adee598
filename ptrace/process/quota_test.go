package process

import (
	"testing"
	"time"
)

// TestQuota finds the smallest quota of the groups of both versions, in and outside of containers.
func TestQuota(t *testing.T) {
	t.Parallel()
	const (
		second    = "30 22 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		container = "30 22 0:27 /kubepods/pod1/c1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
		first     = "31 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n" +
			"32 30 0:29 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
	)
	for _, c := range []struct {
		name, groups, mounts string
		files                map[string]string
		want                 float64
	}{
		{"none", "0::/system.slice/a.service\n", second, map[string]string{
			"/sys/fs/cgroup/system.slice/a.service/cpu.max": "max 100000\n",
		}, 0},
		{"own", "0::/system.slice/a.service\n", second, map[string]string{
			"/sys/fs/cgroup/system.slice/a.service/cpu.max": "20000 100000\n", "/sys/fs/cgroup/system.slice/cpu.max": "max 1\n",
		}, 0.2},
		{"of an ancestor", "0::/system.slice/a.service\n", second, map[string]string{
			"/sys/fs/cgroup/system.slice/a.service/cpu.max": "20000 100000\n",
			"/sys/fs/cgroup/system.slice/cpu.max":           "5000 50000\n", "/sys/fs/cpu.max": "1 100000\n",
		}, 0.1},
		{"container with a namespace", "0::/\n", second, map[string]string{"/sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5},
		{"container without one", "0::/kubepods/pod1/c1\n", container, map[string]string{
			"/sys/fs/cgroup/cpu.max": "50000 100000",
		}, 0.5},
		{"group of another namespace", "0::/../other\n", container, map[string]string{
			"/sys/fs/cgroup/cpu.max": "50000 100000",
		}, 0.5},
		{"version 1", "5:cpuset:/x\n4:cpu,cpuacct:/docker/c\n1:name=systemd:/\n0::/\n", first + second, map[string]string{
			"/sys/fs/cgroup/cpu,cpuacct/docker/c/cpu.cfs_quota_us":  "25000\n",
			"/sys/fs/cgroup/cpu,cpuacct/docker/c/cpu.cfs_period_us": "100000\n",
			"/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us":    "-1\n",
			"/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us":   "100000\n",
		}, 0.25},
		{"not mounted", "0::/a\n4:cpu:/b\n", "", nil, 0},
		{"not in the expected form", "0\n\n0::/a\n", "- cgroup2\n - cgroup2 x y\n" + second, map[string]string{
			"/sys/fs/cgroup/a/cpu.max": "1 0\n", "/sys/fs/cgroup/cpu.max": "x\n",
		}, 0},
	} {
		if got := quota(c.groups, c.mounts, func(name string) string { return c.files[name] }); got != c.want {
			t.Errorf("%s: %v, not %v", c.name, got, c.want)
		}
	}
	t.Logf("this process: %v", CPUQuota())
}

func TestThrottledOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": 0, "nr_periods 5\nnr_throttled 3\nthrottled_time 2500000000\n": 2500 * time.Millisecond,
		"usage_usec 7\nnr_throttled 3\nthrottled_usec 1500\nnr_bursts 0\n": 1500 * time.Microsecond,
		"throttled_usec -1\n": 0, "throttled_time x\n": 0, "throttled_time 99999999999999999999\n": 0,
	} {
		if got := throttledOf(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if got := Throttled(); got < 0 {
		t.Error(got)
	}
}
