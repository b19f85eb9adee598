package process

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Piece is a range of a process's memory.
type Piece struct {
	Address uint64
	Length  int
}

// maxPieces is the largest number of ranges in one call of process_vm_readv(2), IOV_MAX.
const maxPieces = 1024

// readPieces copies the pieces of a process's memory, one after the other, into p. It may never return: see ProbeReadable.
// The error is the kernel's, or EFAULT if a piece cannot be read completely.
func readPieces(pid int, p []byte, pieces []Piece) error {
	remote := make([]unix.RemoteIovec, 0, min(len(pieces), maxPieces))
	for len(pieces) > 0 {
		some := pieces[:min(len(pieces), maxPieces)]
		pieces = pieces[len(some):]
		remote = remote[:0]
		length := 0
		for _, piece := range some {
			remote = append(remote, unix.RemoteIovec{Base: uintptr(piece.Address), Len: piece.Length})
			length += piece.Length
		}
		local := unix.Iovec{Base: &p[0]}
		local.SetLen(length)
		n, err := unix.ProcessVMReadv(pid, []unix.Iovec{local}, remote, 0)
		if err == nil && n < length {
			err = unix.EFAULT
		}
		if err != nil {
			return err
		}
		p = p[length:]
	}
	return nil
}

// Memory reads the memory of one process. Each read has the timeout ReadTimeout. After a read that does not end in
// time, all later reads of this Memory fail at once. Reads of several goroutines take turns.
//
// Do not use it in a function that runs in WithTimeout for the same process: such a function has the timeout already,
// and uses ReadMemory.
type Memory struct {
	pid int

	mu     sync.Mutex
	probed bool
	lost   bool
	room   []byte // memory into which reads copy; nil after a lost read, which may still write to it
}

// NewMemory returns a reader for a process.
func NewMemory(pid int) *Memory { return &Memory{pid: pid} }

// atOnce is the number of bytes to read with one timeout. The kernel copies them in well under a millisecond.
const atOnce = 1 << 20

// Read is ReadMemory with the timeout ReadTimeout for each MiB. After a timeout, the error is ErrUnreachable.
func (m *Memory) Read(addr uint64, p []byte) (n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n < len(p) && err == nil {
		part := p[n:min(n+atOnce, len(p))]
		var read int
		if read, err = m.readPart(addr+uint64(n), part); read == 0 && err == nil {
			return n, nil
		}
		n += read
		if err == nil && read < len(part) {
			return n, nil
		}
	}
	return n, err
}

// readPart reads at most atOnce bytes.
func (m *Memory) readPart(addr uint64, p []byte) (int, error) {
	own := m.space(len(p))
	var read int
	var failed error
	if !m.within(func() { read, failed = ReadMemory(m.pid, addr, own) }) {
		return 0, fmt.Errorf("process %d: %w", m.pid, ErrUnreachable)
	}
	return copy(p, own[:read]), failed
}

// ReadPieces copies pieces of memory, one after the other, into p, with one system call for each 1,024 pieces. The length of p
// must be the sum of the pieces' lengths. The error is the kernel's, EFAULT if a piece cannot be read completely, or
// ErrUnreachable after the timeout.
func (m *Memory) ReadPieces(p []byte, pieces []Piece) error {
	if len(p) == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	own := m.space(len(p))
	var failed error
	if !m.within(func() { failed = readPieces(m.pid, own, pieces) }) {
		return fmt.Errorf("process %d: %w", m.pid, ErrUnreachable)
	}
	copy(p, own)
	return failed
}

// space returns memory into which one read can copy size bytes.
func (m *Memory) space(size int) []byte {
	if len(m.room) < size {
		m.room = make([]byte, size)
	}
	return m.room[:size]
}

// within runs the function read with the timeout, and reports whether it ended in time. After a read that did not end
// in time, within returns false without a call of read.
func (m *Memory) within(read func()) bool {
	if m.lost {
		return false
	}
	probed := m.probed
	if !WithTimeout(m.pid, func() {
		if !probed {
			ProbeReadable(m.pid) // this process can be killed while it waits for this
		}
		read()
	}, func() {}) {
		m.lost, m.room = true, nil
		return false
	}
	m.probed = true
	return true
}

// MemoryOf reads the memory of the process with this id, without a timeout. It is for functions in WithTimeout, in Each, or in
// another goroutine with a timeout.
type MemoryOf int

// Read is ReadMemory.
func (pid MemoryOf) Read(addr uint64, p []byte) (int, error) { return ReadMemory(int(pid), addr, p) }

// ReadPieces is Memory.ReadPieces without a timeout.
func (pid MemoryOf) ReadPieces(p []byte, pieces []Piece) error {
	return readPieces(int(pid), p, pieces)
}

// patienceForAll is how long one call of Each waits for processes whose memory does not arrive, in all.
const patienceForAll = 8 * ReadTimeout

// Each calls the function read for each process, one after the other, and passes its result to the function take. read
// runs in another goroutine and gets a reader of the process's memory. If read does not end in time, Each does not wait for
// it any longer, and does not call take for this process. It continues with the next process in a new goroutine. So
// read must share nothing with other calls of read or with the caller, except the values that it returns.
//
// Each returns the processes for which it did not call take: read did not end in time, an earlier read of the process still
// blocks, or Each had already waited for other processes for patienceForAll. If all processes respond, a call of Each starts
// only one goroutine.
func Each[T any](pids []int, read func(pid int, memory MemoryOf) T, take func(pid int, value T)) (unreachable []int) {
	waited := time.Duration(0)
	for len(pids) > 0 {
		run := startRun(pids, read)
		done, took := run.follow(take)
		pids = pids[done:]
		unreachable = append(unreachable, run.skipped...)
		if len(pids) == 0 {
			break
		}
		unreachable = append(unreachable, pids[0]) // the read of this process hangs
		pids = pids[1:]
		if waited += took; waited >= patienceForAll {
			return append(unreachable, pids...)
		}
	}
	return unreachable
}

// run is a goroutine that reads processes one after the other.
type run[T any] struct {
	pids    []int
	values  chan result[T]
	left    chan struct{} // closed when the caller does not wait for the goroutine any longer
	skipped []int
	thread  readingThread
}

// result is the value of one process. If reading panicked, problem is the value of the panic.
type result[T any] struct {
	value   T
	skipped bool
	problem any
}

func startRun[T any](pids []int, read func(pid int, memory MemoryOf) T) *run[T] {
	r := &run[T]{pids: pids, values: make(chan result[T], 32), left: make(chan struct{})}
	go func() {
		for _, pid := range pids {
			var one result[T]
			turn := Guard.begin(pid)
			if one.skipped = turn == nil; !one.skipped {
				turn.thread.isCaller()
				r.thread.isCaller()
				one.value, one.problem = readOne(pid, read)
			}
			select {
			case <-r.left:
				return
			default:
			}
			select {
			case r.values <- one:
			case <-r.left:
				return
			}
		}
	}()
	return r
}

// readOne calls read for one process, after Guard.begin, and then Guard.End. problem is the value of a panic in read.
func readOne[T any](pid int, read func(pid int, memory MemoryOf) T) (value T, problem any) {
	defer func() {
		problem = recover()
		Guard.End(pid)
	}()
	ProbeReadable(pid)
	return read(pid, MemoryOf(pid)), nil
}

// follow passes the values of the processes to the function take until all have arrived, or a value does not arrive in time.
// done is the number of values that arrived, and waited is how long follow has waited for the missing value.
func (r *run[T]) follow(take func(pid int, value T)) (done int, waited time.Duration) {
	const most = 2 * ReadTimeout // the goroutine may first have to wait for another caller's read of the process
	timer := time.NewTimer(most)
	defer timer.Stop()
	for i, pid := range r.pids {
		began := time.Now()
		timer.Reset(most)
		select {
		case one := <-r.values:
			r.use(pid, one, take)
			continue
		case <-timer.C:
		}
		if r.thread.blocked(nil) || !r.useLate(pid, began, take) {
			close(r.left)
			return i, time.Since(began)
		}
	}
	return len(r.pids), 0
}

// useLate waits longer for a value, up to busyTimeout, as long as the reading thread is not blocked. It reports whether the
// value has arrived.
func (r *run[T]) useLate(pid int, began time.Time, take func(pid int, value T)) bool {
	for time.Since(began) < busyTimeout {
		select {
		case one := <-r.values:
			r.use(pid, one, take)
			return true
		case <-time.After(ReadTimeout):
			if r.thread.blocked(nil) {
				return false
			}
		}
	}
	return false
}

// use passes the value of one process to take. It records a skipped process, and repeats a panic of the reading
// goroutine.
func (r *run[T]) use(pid int, one result[T], take func(pid int, value T)) {
	switch {
	case one.problem != nil:
		close(r.left)
		panic(one.problem)
	case one.skipped:
		r.skipped = append(r.skipped, pid)
	default:
		take(pid, one.value)
	}
}
