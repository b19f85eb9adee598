package process

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Handle refers to a process by a descriptor (pidfd_open(2)). After the process has ended, its id may pass to
// another process. /proc cannot distinguish two processes with the same id that started in the same hundredth of a
// second. But a Handle always refers to the same process. Callers that have a Handle of the same process at the same time
// share it.
type Handle struct {
	pid, fd int
	holders int            // calls of Release to come; guarded by holds
	keepers int            // Keepers of the process; guarded by holds
	files   [keptFiles]int // guarded by holds: descriptors of kept files; 0: not open
	proof   *Proof         // guarded by holds: the last proof; nil: none
}

//nolint:gochecknoglobals // a process is the same for all users of this package
var holds = struct {
	sync.Mutex

	byPID map[int]*Handle
	kept  int // number of Handles of Keepers, to which maxHolds does not apply
}{byPID: map[int]*Handle{}}

// maxHolds limits the number of Handles at a time, because the program needs descriptors for other purposes too.
const maxHolds = 512

var errTooMany = errors.New("too many processes are held already")

// Hold returns a handle for the process that has the id now. The error is ErrExited if there is no such process. After other
// errors, the process can still be captured without a handle. Their causes are: the id belongs to a thread, the kernel is
// older than Linux 5.3, there are maxHolds handles, or no descriptor is left.
func Hold(pid int) (*Handle, error) { return holdOrKeep(pid, false) }

// holdOrKeep does the work of Hold. keep is set for a Keeper: it is counted in Handle.keepers, and maxHolds does not apply.
func holdOrKeep(pid int, keep bool) (*Handle, error) {
	holds.Lock()
	defer holds.Unlock()
	keepers := 0
	if keep {
		keepers = 1
	}
	if h := holds.byPID[pid]; h != nil && h.Lives() {
		h.holders++
		h.keepers += keepers
		holds.kept += keepers
		return h, nil
	}
	if !keep && len(holds.byPID)-holds.kept >= maxHolds {
		return nil, Failed(pid, "hold", errTooMany)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil, Exited(pid)
	case err != nil:
		return nil, Failed(pid, "pidfd_open", err)
	}
	h := &Handle{pid: pid, fd: fd, holders: 1, keepers: keepers}
	holds.kept += keepers
	holds.byPID[pid] = h
	return h, nil
}

// Lives reports whether the process has not ended yet. Until it has ended, no other process can get its id.
func (h *Handle) Lives() bool { return !h.EndsWithin(0) }

// EndsWithin waits until the process has ended, for at most the given time, and reports whether it has. It is false
// for a nil Handle.
func (h *Handle) EndsWithin(wait time.Duration) bool {
	if h == nil {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
	for until := time.Now().Add(wait); ; {
		n, err := unix.Poll(fds, int(max(time.Until(until), 0).Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0 // a kernel before 5.3 cannot poll, but has no such descriptors either
		}
	}
}

// Release must be called once for each call of Hold. The last Release closes the Handle. For nil, it does nothing.
func (h *Handle) Release() {
	if h == nil {
		return
	}
	holds.Lock()
	defer holds.Unlock()
	if h.holders--; h.holders > 0 {
		return
	}
	_ = unix.Close(h.fd)
	for _, fd := range h.files {
		if fd != 0 {
			_ = unix.Close(fd)
		}
	}
	if holds.byPID[h.pid] == h {
		delete(holds.byPID, h.pid)
	}
}
