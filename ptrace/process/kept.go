package process

import (
	"errors"

	"golang.org/x/sys/unix"
)

// keptFile is a file of a process that is small, that the kernel writes in one piece, and that it makes anew for each read.
type keptFile int

const (
	keptStat keptFile = iota
	keptStatus
	keptSyscall
	keptTurns
	keptFiles
)

// keptNames are the files' names below /proc/PID. Those of the main thread have the same content, except for the sums in stat.
//
//nolint:gochecknoglobals // a table
var keptNames = [keptFiles]string{"stat", "status", "syscall", "schedstat"}

// DescriptorsOfKept is the number of descriptors that a Keeper needs for a process.
const DescriptorsOfKept = 1 + int(keptFiles)

// Keeper keeps descriptors of files of processes that are read again and again. Opening such a file costs as much as reading it.
// The kernel checks the right to read the file at each read, and a descriptor never shows another process. While a process is kept,
// ReadStat, ReadStatus, ReadTaskStatus and ReadSyscall use its descriptors.
//
// The zero value keeps no process. A Keeper must not be used by several goroutines at a time.
type Keeper struct {
	most  int
	round int
	kept  map[int]*keptProcess
}

type keptProcess struct {
	held  *Handle
	round int // in which it was used last
}

// NewKeeper returns a keeper for a number of processes, or fewer if the limit of descriptors is low: it uses a quarter of them at
// most.
func NewKeeper(most int) *Keeper {
	const share = 4
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		if n := limit.Cur / share / uint64(DescriptorsOfKept); n < uint64(most) {
			most = int(n)
		}
	}
	return &Keeper{most: most, kept: map[int]*keptProcess{}}
}

// keepRounds is how many rounds a process is kept in which it is not used.
const keepRounds = 10

// Begin begins a round with the processes that are going to be read. Processes that were not used for some rounds are released.
func (k *Keeper) Begin(pids []int) {
	k.round++
	for pid, p := range k.kept {
		if k.round-p.round > keepRounds {
			k.release(pid, p)
		}
	}
	for _, pid := range pids {
		p := k.kept[pid]
		if p != nil && !p.held.Lives() {
			k.release(pid, p)
			p = nil
		}
		if p == nil && len(k.kept) < k.most {
			if held := keepFiles(pid); held != nil {
				p = &keptProcess{held: held}
				k.kept[pid] = p
			}
		}
		if p != nil {
			p.round = k.round
		}
	}
}

// Len returns the number of processes that are kept.
func (k *Keeper) Len() int { return len(k.kept) }

// Close releases all processes.
func (k *Keeper) Close() {
	for pid, p := range k.kept {
		k.release(pid, p)
	}
}

func (k *Keeper) release(pid int, p *keptProcess) {
	holds.Lock()
	p.held.keepers--
	holds.kept--
	holds.Unlock()
	p.held.Release()
	delete(k.kept, pid)
}

// keepFiles holds a process and lets its files stay open; nil: it cannot be held.
func keepFiles(pid int) *Handle {
	h, err := holdOrKeep(pid, true)
	if err != nil {
		return nil
	}
	return h
}

// readKept reads a file of a process that is kept. ok is false if it is not kept, or the file must be read in another way.
func readKept(pid int, file keptFile) (text string, ok bool) {
	h, fd := lendKept(pid, file)
	if h == nil {
		return "", false
	}
	defer h.Release()
	b, ok := buffers.Get().(*[]byte)
	if !ok {
		return "", false
	}
	defer buffers.Put(b)
	for {
		n, err := unix.Pread(fd, (*b)[:cap(*b)], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 || n == cap(*b) {
			return "", false
		}
		return string((*b)[:n]), true
	}
}

// lendKept returns a descriptor of a process that is kept. The caller must release the handle after the read.
func lendKept(pid int, file keptFile) (*Handle, int) {
	holds.Lock()
	defer holds.Unlock()
	h := holds.byPID[pid]
	if h == nil || h.keepers == 0 {
		return nil, 0
	}
	if h.files[file] == 0 {
		fd, err := open(procPath(pid, keptNames[file]))
		if err != nil {
			return nil, 0
		}
		if !h.Lives() { // the file may be another process's
			_ = unix.Close(fd)
			return nil, 0
		}
		h.files[file] = fd
	}
	h.holders++
	return h, h.files[file]
}
