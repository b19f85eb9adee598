package process

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// CPUQuota returns how many processors the control groups of this process allow it to use, such as 0.5. It returns 0 if there
// is no quota, or if it is unknown. Quotas above the root of a container cannot be seen. The quota is read at the first call
// only.
func CPUQuota() float64 { return ownQuota() }

//nolint:gochecknoglobals // the quota is the process's
var ownQuota = sync.OnceValue(func() float64 {
	groups, err1 := os.ReadFile("/proc/self/cgroup")
	mounts, err2 := os.ReadFile("/proc/self/mountinfo")
	if err1 != nil || err2 != nil {
		return 0
	}
	return quota(string(groups), string(mounts), func(name string) string {
		text, _ := os.ReadFile(name) // the root has none
		return string(text)
	})
})

// Throttled returns for how long the kernel has throttled a control group of this process, or a group above, because its quota
// was used up. It is the largest time of one group, since the group was created; 0 if it is unknown. The kernel throttles a
// group on each processor separately and adds up these times, so the result may grow faster than time.
func Throttled() (most time.Duration) {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	ownGroups.Lock()
	defer ownGroups.Unlock()
	if text := string(groups); text != ownGroups.text {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return 0
		}
		ownGroups.text, ownGroups.files = text, nil
		eachGroup(text, string(mounts), controllerCPU, func(dir string, _ bool) {
			ownGroups.files = append(ownGroups.files, dir+"/cpu.stat")
		})
	}
	for _, name := range ownGroups.files {
		text, _ := os.ReadFile(name) // the root has none
		most = max(most, throttledOf(string(text)))
	}
	return most
}

//nolint:gochecknoglobals // the groups are the process's
var ownGroups struct {
	sync.Mutex

	text  string   // of /proc/self/cgroup, when it was last read
	files []string // the files cpu.stat of the groups in text
}

// throttledOf returns the throttled time in the text of a file cpu.stat, of either version of control groups.
func throttledOf(text string) time.Duration {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		n, err := strconv.ParseInt(value, 10, 64)
		switch {
		case err != nil || n < 0:
		case key == "throttled_time":
			return time.Duration(n)
		case key == "throttled_usec":
			return time.Duration(n) * time.Microsecond
		}
	}
	return 0
}

// quota returns the smallest quota of this process's groups and their ancestors. groups and mounts are the texts of
// /proc/self/cgroup and /proc/self/mountinfo.
func quota(groups, mounts string, read func(name string) string) (least float64) {
	eachGroup(groups, mounts, controllerCPU, func(dir string, second bool) {
		if q := quotaOf(dir, second, read); q > 0 && (least == 0 || q < least) {
			least = q
		}
	})
	return least
}

// The controllers of control groups of version 1.
const (
	controllerCPU    = "cpu"
	controllerMemory = "memory"
)

// eachGroup calls f with the directory of each group that the text groups has for the controller, and of its ancestors. The
// argument second of f is true for control groups of version 2.
func eachGroup(groups, mounts, controller string, f func(dir string, second bool)) {
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		controllers, group := fields[1], fields[2]
		second := controllers == ""
		if !second && !slices.Contains(strings.Split(controllers, ","), controller) {
			continue
		}
		root, point := mountPoint(mounts, controller, second)
		if point == "" {
			continue
		}
		below, ok := strings.CutPrefix(group, strings.TrimSuffix(root, "/"))
		if !ok || below != "" && below[0] != '/' || strings.HasPrefix(below, "/..") {
			below = "" // group is the path in another cgroup namespace
		}
		for dir := path.Join(point, below); ; dir = path.Dir(dir) {
			f(dir, second)
			if len(dir) <= len(point) {
				break
			}
		}
	}
}

// mountPoint returns the directory where the hierarchy with the controller is mounted (point), and the group that is the root
// of this mount (root); "" if it is not mounted. The parameter second is true for control groups of version 2.
func mountPoint(mounts, controller string, second bool) (root, point string) {
	const (
		rootField, pointField           = 3, 4
		typeField, superField, minAfter = 0, 2, 3
	)
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if len(f) <= pointField || len(g) < minAfter {
			continue
		}
		if second && g[typeField] == "cgroup2" ||
			!second && g[typeField] == "cgroup" && slices.Contains(strings.Split(g[superField], ","), controller) {
			return f[rootField], f[pointField]
		}
	}
	return "", ""
}

// quotaOf returns the quota of one group; 0: none.
func quotaOf(dir string, second bool, read func(name string) string) float64 {
	var f []string
	if second {
		f = strings.Fields(read(dir + "/cpu.max"))
	} else {
		f = strings.Fields(read(dir+"/cpu.cfs_quota_us") + " " + read(dir+"/cpu.cfs_period_us"))
	}
	if len(f) != 2 {
		return 0
	}
	most, err1 := strconv.ParseUint(f[0], 10, 63) // "max" or -1: no quota
	period, err2 := strconv.ParseUint(f[1], 10, 63)
	if err1 != nil || err2 != nil || period == 0 {
		return 0
	}
	return float64(most) / float64(period)
}
