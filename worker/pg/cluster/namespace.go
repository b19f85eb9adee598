package cluster

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/host/rootfs"
)

// A server in a container has its own process ids, which postmaster.pid and SQL use. The kernel lists the ids of a
// process in all namespaces from the reader's inwards, as NSpid in /proc/PID/status (proc_pid_status(5)). So the
// worker can translate ids without entering the namespace.

// translation caches the ids of the postmaster's children in the server's namespace. An entry is verified each time
// it is used.
type translation struct {
	depth int // how many levels the server's namespace is below this process's
	mu    sync.Mutex
	here  map[int]int // this process's ids, by the server's
}

// translate returns the translation for a server, or nil if none is needed. ids are the postmaster's ids (NSpid), from
// this process's namespace inwards.
func translate(ids []int) *translation {
	if len(ids) <= 1 {
		return nil
	}
	return &translation{depth: len(ids) - 1, here: map[int]int{}}
}

// inside returns the id of a process in the server's namespace, or 0 if it has none. The error is one of
// process.LacksResources.
func (t *translation) inside(pid int) (int, error) {
	status, err := process.ReadStatus(pid)
	if process.LacksResources(err) {
		return 0, fmt.Errorf("process %d: %w", pid, err)
	}
	if err != nil || len(status.NSPID) <= t.depth {
		return 0, nil
	}
	return status.NSPID[t.depth], nil
}

// Local returns this process's id for the server's process pid, or 0 if the postmaster has no such child. The result is
// pid itself unless the server is in another PID namespace. The kernel may soon give the id to another process; see
// Contains.
func (c Cluster) Local(pid int) int {
	switch {
	case c.ids == nil || pid <= 0:
		return pid
	case pid == c.ServerPID:
		return c.PostmasterPID
	}
	c.ids.mu.Lock()
	defer c.ids.mu.Unlock()
	if here, ok := c.ids.here[pid]; ok {
		if now, _ := c.ids.inside(here); now == pid {
			return here
		}
	}
	children, err := process.Children(c.PostmasterPID)
	if err != nil {
		return 0
	}
	clear(c.ids.here)
	for _, child := range children {
		if inside, _ := c.ids.inside(child); inside != 0 {
			c.ids.here[inside] = child
		}
	}
	return c.ids.here[pid]
}

// Children lists the ids of the postmaster's children in the server's PID namespace: the server's processes, and helper
// programs such as a shell for archive_command.
func (c Cluster) Children() ([]int, error) {
	children, err := process.Children(c.PostmasterPID)
	if err != nil {
		return nil, fmt.Errorf("the children of postmaster %d: %w", c.PostmasterPID, err)
	}
	if c.ids == nil {
		return children, nil
	}
	pids := make([]int, 0, len(children))
	for _, child := range children {
		pid, err := c.ids.inside(child)
		if err != nil {
			return nil, err
		}
		if pid != 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// ServerStart returns the postmaster's start time as the server's own processes read it from /proc. It differs from
// PostmasterStart if these processes are in another time namespace than this one. If the offset between the namespaces is not
// a whole number of ticks, the result may be wrong by one tick. If the offset cannot be read, the result is PostmasterStart.
func (c Cluster) ServerStart() uint64 {
	theirs, err1 := process.BootOffset(c.PostmasterPID)
	ours, err2 := process.BootOffset(os.Getpid())
	if errors.Join(err1, err2) != nil {
		return c.PostmasterStart
	}
	return c.PostmasterStart + uint64((theirs-ours)/(time.Second/ticksPerSecond))
}

// Outside reports whether the server is in a PID namespace in which this process does not exist.
func (c Cluster) Outside() bool { return c.ids != nil }

// namesakes lists the processes that have the id pid in a PID namespace below this process's. The result has their ids
// in this one.
func namesakes(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, entry := range entries {
		here, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if status, err := process.ReadStatus(here); err == nil && innermost(status) == pid && len(status.NSPID) > 1 {
			found = append(found, here)
		}
	}
	return found
}

// innermost returns the id of a process in its own namespace.
func innermost(status process.Status) int {
	if len(status.NSPID) == 0 {
		return status.PID
	}
	return status.NSPID[len(status.NSPID)-1]
}

// Prefix returns the prefix with which this process reaches a path of the server. It is Root if the server has another
// root directory. Otherwise it is empty, or /proc/PID/root if the server has other files mounted at this path.
func (c Cluster) Prefix(path string) string {
	if c.Root != "" {
		return c.Root
	}
	return rootfs.Prefix(procPath(c.PostmasterPID, "root"), path)
}

// rootOf returns the prefix for a process's paths in this process. It is empty if both have the same root directory,
// or if the root of the process cannot be read.
func rootOf(pid int) string {
	root := procPath(pid, "root")
	if _, err := os.Stat(root + "/"); err != nil || sameFile("/", root+"/") {
		return ""
	}
	return root
}

// hidden returns ErrNamespace if the server runs but has no process id in this PID namespace: a process listens on the socket
// that postmaster.pid names, and the kernel reports no id for it. Otherwise hidden returns nil.
func hidden(dir string, file pidFile) error {
	socket := socketDir(dir, file.socketDir)
	if socket == "" || file.port == 0 {
		return nil
	}
	if err := peerless(fmt.Sprintf("%s/.s.PGSQL.%d", socket, file.port)); errors.Is(err, ErrNamespace) {
		return err
	}
	return nil
}
