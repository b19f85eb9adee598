package process

import (
	"errors"

	"golang.org/x/sys/unix"
)

// keptFile is a small file below /proc/PID. Each read from its beginning returns the present content, in one piece.
type keptFile int

const (
	keptStat keptFile = iota
	keptStatus
	keptSyscall
	keptTurns
	keptFiles
)

// keptNames are the names of the kept files below /proc/PID. The main thread's files below /proc/PID/task have the same
// content, except for the sums over all threads in stat.
//
//nolint:gochecknoglobals // a table
var keptNames = [keptFiles]string{"stat", "status", "syscall", "schedstat"}

// DescriptorsOfKept is the number of descriptors that a Keeper needs for each process: its Handle and its files.
const DescriptorsOfKept = 1 + int(keptFiles)

// Keeper keeps descriptors of files of processes that are read again and again. Opening such a file costs as much as reading it.
// The kernel checks the right to read the file at each read, and a descriptor never shows another process. While a process is kept,
// ReadStat, ReadStatus, ReadTaskStatus and ReadSyscall use its descriptors.
//
// The zero value keeps no process. A Keeper must not be used by several goroutines at a time.
type Keeper struct {
	most  int // largest number of kept processes
	round int // calls of Begin
	kept  map[int]*keptProcess
}

type keptProcess struct {
	held  *Handle
	round int // the last round whose Begin named the process
}

// NewKeeper returns a keeper of at most so many processes. If the limit of descriptors is low, it keeps fewer, because
// it uses at most a quarter of the descriptors.
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

// keepRounds is the number of rounds for which a process is kept after its last use.
const keepRounds = 10

// Begin begins a round, and keeps the processes that are going to be read (pids), if there is room. It releases processes that
// the last keepRounds calls did not name.
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

// keepFiles returns a Handle for a Keeper: the process's files stay open after they were read; nil: no Handle.
func keepFiles(pid int) *Handle {
	h, err := holdOrKeep(pid, true)
	if err != nil {
		return nil
	}
	return h
}

// readKept reads a file of a kept process. If ok is false, the caller must read the file itself.
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

// lendKept returns the handle of a kept process and a descriptor of its file; nil: the process is not kept. The caller
// must release the handle after the read.
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
		if !h.Lives() { // the descriptor may be of another process with the same id
			_ = unix.Close(fd)
			return nil, 0
		}
		h.files[file] = fd
	}
	h.holders++
	return h, h.files[file]
}
