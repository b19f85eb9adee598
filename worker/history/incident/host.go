package incident

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/measure/clusterbpf"
)

// Host is the state of the host.
type Host struct {
	Name       string  `json:"name,omitempty"`
	Kernel     string  `json:"kernel,omitempty"`
	Processors int     `json:"processors"`
	Uptime     float64 `json:"uptime_seconds,omitempty"`
	// Load has the first four fields of /proc/loadavg: three averages, and the numbers of running and of all threads.
	Load string `json:"load,omitempty"`
	// Memory has some values of /proc/meminfo by name, in kB.
	Memory map[string]int64 `json:"memory_kb,omitempty"`
	// Pressure has the lines of /proc/pressure/cpu, io and memory: the percentage of time in which some or all tasks waited.
	Pressure map[string][]string `json:"pressure,omitempty"`
	Disks    []Disk              `json:"disks,omitempty"`
}

// Disk has the free space of a file system.
type Disk struct {
	Path  string `json:"path"`
	Free  int64  `json:"free_bytes"`
	Size  int64  `json:"size_bytes"`
	Error string `json:"error,omitempty"`
}

// hostOf reads the state of this host.
func hostOf(ctx context.Context, paths []string) Host {
	h := Host{Processors: clusterbpf.Processors(), Memory: map[string]int64{}, Pressure: map[string][]string{}}
	h.Name, _ = os.Hostname()
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if f := strings.Fields(kernelFile("/proc/uptime")); len(f) > 0 {
		h.Uptime, _ = strconv.ParseFloat(f[0], 64)
	}
	const averages = 4
	if f := strings.Fields(kernelFile("/proc/loadavg")); len(f) >= averages {
		h.Load = strings.Join(f[:averages], " ")
	}
	for line := range strings.Lines(kernelFile("/proc/meminfo")) {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "MemTotal", "MemFree", "MemAvailable", "Cached", "SwapTotal", "SwapFree", "Dirty", "Writeback", "HugePages_Free":
			if f := strings.Fields(value); len(f) > 0 {
				h.Memory[name], _ = strconv.ParseInt(f[0], 10, 64)
			}
		}
	}
	for _, what := range []string{"cpu", "io", "memory"} {
		if text := strings.TrimSpace(kernelFile("/proc/pressure/" + what)); text != "" {
			h.Pressure[what] = strings.Split(text, "\n")
		}
	}
	for _, path := range paths {
		if path != "" {
			h.Disks = append(h.Disks, disk(ctx, path))
		}
	}
	return h
}

func kernelFile(name string) string {
	text, _ := os.ReadFile(name)
	return string(text)
}

// disk reads the free space of a file system, at most for a second: a network file system may not answer.
func disk(ctx context.Context, path string) Disk {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	done := make(chan Disk, 1)
	go func() {
		var s unix.Statfs_t
		d := Disk{Path: path}
		if err := unix.Statfs(path, &s); err != nil {
			d.Error = err.Error()
		} else {
			block := int64(s.Bsize) //nolint:unconvert // its type depends on the architecture
			d.Free, d.Size = int64(s.Bavail)*block, int64(s.Blocks)*block
		}
		done <- d
	}()
	select {
	case d := <-done:
		return d
	case <-ctx.Done():
		return Disk{Path: path, Error: "the file system does not answer"}
	}
}
