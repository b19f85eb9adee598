package process

import (
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Proof has the Stat and Status of a process, read while it slept. As long as Holds returns true, the process has not run since
// that read. So everything that only the process itself can change is still the same: its identity, its program and its rights.
//
// The kernel counts how often a process gets a processor (the third number of /proc/PID/schedstat). If the process has run, for
// example to execute a setuid program, this count has changed. The state S in stat or status alone would not suffice: a process
// has this state already before it leaves its processor, and may continue without getting a processor anew. So Prove first
// reads the count and then /proc/PID/syscall, which shows a system call only if the process is off its processor. It reads Stat
// and Status after that.
//
// Other processes can change some of the values: the parent changes when the former parent ends, a tracer can attach, and the
// kernel swaps memory. Name and State may have changed too.
type Proof struct {
	Stat   Stat
	Status Status

	pid   int
	held  *Handle // the proof does not keep it open: Holds is false after its last Release
	turns uint64  // how often the process had got a processor at the time of the proof

	lock   sync.Mutex
	rights *Rights     // nil: not read yet
	file   os.FileInfo // of the program; nil: not read yet
}

// Prove returns a proof for a process that sleeps. As long as the process's last proof holds, Prove returns that one. The
// result is nil if the process is not kept (see Keeper), has several threads, or does not sleep. It is also nil if the kernel
// does not count how often the process gets a processor, or does not show its system call.
func Prove(pid int) *Proof {
	h, fd := lendKept(pid, keptTurns)
	if h == nil {
		return nil
	}
	defer h.Release()
	holds.Lock()
	p := h.proof
	holds.Unlock()
	if p.Holds() {
		return p
	}
	p = &Proof{pid: pid, held: h, turns: readTurns(fd)}
	if call, err := ReadSyscall(pid, pid); err != nil || call.Running || p.turns == 0 {
		return nil
	}
	var err error
	if p.Stat, err = ReadStat(pid); err != nil || p.Stat.Threads != 1 {
		return nil
	}
	if p.Status, err = ReadStatus(pid); err != nil || IsDead(p.Status.State) || !p.Holds() {
		return nil
	}
	holds.Lock()
	h.proof = p
	holds.Unlock()
	return p
}

// Holds reports whether the process has not run since the proof. It returns false if the process is not kept any more, and for
// nil.
func (p *Proof) Holds() bool {
	if p == nil {
		return false
	}
	holds.Lock()
	fd := p.held.files[keptTurns]
	if p.held.holders == 0 || p.held.keepers == 0 || fd == 0 {
		holds.Unlock()
		return false
	}
	p.held.holders++
	holds.Unlock()
	defer p.held.Release()
	return readTurns(fd) == p.turns
}

// Rights returns the rights of the process. The errors are those of ReadRights.
func (p *Proof) Rights() (Rights, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.rights != nil {
		return *p.rights, nil
	}
	r, err := rightsOf(p.pid, &p.Status)
	if err == nil && p.Holds() {
		p.rights = &r
	}
	return r, err
}

// Program returns the file that the process executes.
func (p *Proof) Program() (os.FileInfo, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.file != nil {
		return p.file, nil
	}
	info, err := os.Stat(procPath(p.pid, "exe"))
	if err == nil && p.Holds() {
		p.file = info
	}
	return info, err
}

// readTurns reads how often a process got a processor, from a descriptor of schedstat; 0: unknown.
func readTurns(fd int) uint64 {
	const column, most = 2, 128
	var b [most]byte
	n, err := unix.Pread(fd, b[:], 0)
	if err != nil || n <= 0 {
		return 0
	}
	var fields [column + 1]string
	if split(strings.TrimSuffix(string(b[:n]), "\n"), fields[:]) <= column {
		return 0
	}
	turns, err := strconv.ParseUint(fields[column], 10, 64)
	if err != nil {
		return 0
	}
	return turns
}
