package locks

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"pg_stat_backtrace/worker/report/units"
)

// lockCopy is one LOCK with its PROCLOCKs and its queue, all of one moment.
type lockCopy struct {
	tag     Tag
	entries []entry
	queue   []proc       // in the order of the queue
	procs   map[int]proc // of all entries and their group leaders
}

// entry is a PROCLOCK.
type entry struct {
	proc, leader int
	hold         uint32
	owner        proc
	leaderPID    int
	position     int // in the queue; -1: the process does not wait for this lock
}

// heavyweight adds to m the waits of those waiting processes that wait for a heavyweight lock.
func (r *Reader) heavyweight(m *Moment, waiting []proc) error {
	var order []uint64
	byLock := make(map[uint64][]*proc)
	for i := range waiting {
		p := &waiting[i]
		if p.waitLock == 0 {
			continue
		}
		if byLock[p.waitLock] == nil {
			order = append(order, p.waitLock)
		}
		byLock[p.waitLock] = append(byLock[p.waitLock], p)
	}
	if len(order) == 0 {
		return nil
	}
	ahead, err := r.prefetch(order, byLock)
	if err != nil {
		return err
	}
	listed := make(map[int]bool)
	var gone []*proc
	for _, addr := range order {
		c, err := r.readLock(addr, byLock[addr], ahead)
		if err != nil && !isReason(err) {
			return err
		}
		if err != nil {
			gone = append(gone, byLock[addr]...)
			r.markAll(m, byLock[addr], err, listed)
			continue
		}
		for i := range c.queue {
			if p := &c.queue[i]; !listed[p.index] {
				listed[p.index] = true
				m.Waits = append(m.Waits, r.wait(c, i))
			}
		}
		for _, p := range byLock[addr] {
			if !listed[p.index] {
				gone = append(gone, p)
			}
		}
	}
	return r.recheck(m, gone, listed)
}

func isReason(err error) bool {
	return errors.Is(err, errChanged) || errors.Is(err, errRefused) || errors.Is(err, errTooLong)
}

// markAll adds the waits for a lock that could not be read, except for processes in listed. They get the reason, and no
// blockers.
func (r *Reader) markAll(m *Moment, waiters []*proc, reason error, listed map[int]bool) {
	for _, p := range waiters {
		if listed[p.index] {
			continue
		}
		listed[p.index] = true
		m.Waits = append(m.Waits, Wait{
			PID: p.pid, Proc: p.index, Kind: Lock, Event: p.event, Mode: p.mode, Since: since(p.waitStart),
			Reason: reason.Error(), Changed: errors.Is(reason, errChanged),
		})
	}
}

// recheck reads processes again that waited when the array was read, but are in no lock's queue. If a process waits no
// more, recheck removes its wait. Otherwise it marks the wait as changed (errChanged).
func (r *Reader) recheck(m *Moment, gone []*proc, listed map[int]bool) error {
	if len(gone) == 0 {
		return nil
	}
	indexes := make([]int, len(gone))
	for i, p := range gone {
		indexes[i] = p.index
	}
	now, err := r.readProcs(indexes)
	if err != nil {
		return err
	}
	over := make(map[int]bool)
	for _, p := range gone {
		n := now[p.index]
		if n.waitLock == 0 || n.pid != p.pid {
			over[p.index] = true
		} else if !listed[p.index] {
			r.markAll(m, []*proc{p}, errChanged, listed)
		}
	}
	m.Waits = slices.DeleteFunc(m.Waits, func(w Wait) bool { return over[w.Proc] && w.Reason != "" })
	return nil
}

// prefetch reads all LOCKs and the waiters' own PROCLOCKs with one call. The result has them by address, without
// unreadable ones.
func (r *Reader) prefetch(order []uint64, byLock map[uint64][]*proc) (map[uint64][]byte, error) {
	var pieces []piece
	for _, lock := range order {
		pieces = append(pieces, piece{lock, r.layout.LockSize})
		for _, p := range byLock[lock] {
			pieces = append(pieces, piece{p.waitProcLock, r.layout.ProcLockSize})
		}
	}
	b, err := r.mem.read(pieces)
	if err != nil {
		return nil, err
	}
	ahead := make(map[uint64][]byte, len(pieces))
	for i, p := range pieces {
		if len(b[i]) == p.size {
			ahead[p.addr] = b[i]
		}
	}
	return ahead, nil
}

// readLock copies a lock until two copies agree. If they never do, the error is errChanged, errRefused or errTooLong.
func (r *Reader) readLock(addr uint64, waiters []*proc, ahead map[uint64][]byte) (c *lockCopy, err error) {
	known := make(map[int]uint64, len(waiters)) // the waiters' links to the next process in the queue, from the read of the array
	for _, p := range waiters {
		known[p.index] = p.next
	}
	for n := 1; ; n++ {
		w := &walk{Reader: r, addr: addr, ahead: ahead, links: known}
		if c, err = w.copy(); err == nil || !isReason(err) || errors.Is(err, errTooLong) {
			return c, err
		}
		ahead, known = nil, nil
		if n >= tries && (!errors.Is(err, errRefused) || !r.pause()) {
			break
		}
	}
	// If the LOCK stays the same and is inconsistent each time, the table has an unknown format or is corrupt.
	// Otherwise the lock only changed.
	if errors.Is(err, errRefused) && !r.still(addr) {
		return nil, errChanged
	}
	return nil, err
}

// pause waits 5 ms. It returns false at once if this read has used up its patience. A process of the server may have lost
// its processor in the middle of a change to a lock: until it continues, the lock table is inconsistent.
func (r *Reader) pause() bool {
	const pause = 5 * time.Millisecond
	if r.patience < pause {
		return false
	}
	r.patience -= pause
	time.Sleep(pause)
	return true
}

// still reports whether a LOCK stays the same in two reads.
func (r *Reader) still(addr uint64) bool {
	b, err := r.mem.read([]piece{{addr, r.layout.LockSize}, {addr, r.layout.LockSize}})
	return err == nil && b[0] != nil && b[1] != nil && bytes.Equal(b[0], b[1])
}

// walk is one attempt to copy a lock.
type walk struct {
	*Reader

	addr  uint64
	ahead map[uint64][]byte
	links map[int]uint64

	read   []piece // what was read, for the second read
	copies [][]byte
}

// get returns a piece of memory and keeps it for the second read.
func (w *walk) get(addr uint64, size int) ([]byte, error) {
	b := w.ahead[addr]
	if len(b) != size {
		if w.steps++; w.steps > maxSteps || w.steps%256 == 0 && time.Now().After(w.deadline) {
			return nil, errTooLong
		}
		read, err := w.mem.read([]piece{{addr, size}})
		if err != nil {
			return nil, err
		}
		if b = read[0]; b == nil {
			return nil, errRefused
		}
	}
	w.read, w.copies = append(w.read, piece{addr, size}), append(w.copies, b)
	return b, nil
}

func (w *walk) copy() (*lockCopy, error) {
	if w.addr%8 != 0 {
		return nil, errRefused
	}
	lock, err := w.get(w.addr, w.layout.LockSize)
	if err != nil {
		return nil, err
	}
	tag, kind, ok := readTag(lock, &w.layout)
	if !ok || !w.sums(lock) {
		return nil, errRefused
	}
	c := &lockCopy{tag: tag, procs: make(map[int]proc)}
	byLink := make(map[uint64]int) // the position of the process, by the address of its PROCLOCK
	if err := w.entries(c, lock, byLink); err != nil {
		return nil, err
	}
	order, err := w.queue(lock)
	if err != nil {
		return nil, err
	}
	involved := make(map[int]bool)
	for _, e := range c.entries {
		involved[e.proc], involved[e.leader] = true, true
	}
	for _, i := range order {
		if !involved[i] { // each process in the queue must have a PROCLOCK
			return nil, errRefused
		}
	}
	if c.procs, err = w.secondRead(involved); err != nil {
		return nil, err
	}
	for _, i := range order {
		c.queue = append(c.queue, c.procs[i])
	}
	if err := w.prove(c, lock, kind, byLink, order); err != nil {
		return nil, err
	}
	positions := make(map[int]int, len(order))
	for position, i := range order {
		positions[i] = position
	}
	for n := range c.entries {
		e := &c.entries[n]
		e.owner, e.leaderPID, e.position = c.procs[e.proc], c.procs[e.leader].pid, -1
		if position, ok := positions[e.proc]; ok {
			e.position = position
		}
	}
	return c, nil
}

// sums verifies that the counts of a LOCK are the sums of its counts by mode.
func (r *Reader) sums(lock []byte) bool {
	requested, granted := 0, 0
	for i := range r.layout.LockModeCounts {
		q, g := i32(lock, r.layout.LockRequested+4*i), i32(lock, r.layout.LockGranted+4*i)
		if q < 0 || g < 0 || g > q || (i == 0 || i >= len(modeNames)) && q != 0 {
			return false
		}
		requested, granted = requested+q, granted+g
	}
	return requested > 0 && requested == i32(lock, r.layout.LockNRequested) && granted == i32(lock, r.layout.LockNGranted)
}

// entries walks the ring of a lock's PROCLOCKs, and adds them to c.entries. byLink gets the position of the process of
// each PROCLOCK.
func (w *walk) entries(c *lockCopy, lock []byte, byLink map[uint64]int) error {
	head := at(w.addr, w.layout.LockProcLocks)
	for link := u64(lock, w.layout.LockProcLocks+w.layout.NodeNext); link != head; {
		addr := link - uint64(w.layout.ProcLockLink)
		if link%8 != 0 || len(c.entries) >= w.count+w.prepared {
			return errRefused
		}
		b, err := w.get(addr, w.layout.ProcLockSize)
		if err != nil {
			return err
		}
		p, ok1 := w.index(u64(b, w.layout.ProcLockMyProc))
		leader, ok2 := w.index(u64(b, w.layout.ProcLockLeader))
		hold := u32(b, w.layout.ProcLockHoldMask)
		_, twice := byLink[addr]
		if twice || !ok1 || !ok2 || u64(b, w.layout.ProcLockMyLock) != w.addr || hold&1 != 0 || hold>>len(modeNames) != 0 {
			return errRefused
		}
		byLink[addr] = p
		c.entries = append(c.entries, entry{proc: p, leader: leader, hold: hold})
		link = u64(b, w.layout.ProcLockLink+w.layout.NodeNext)
	}
	return nil
}

// queue walks the ring of processes that wait for a lock, and returns their positions in the array. Their number must
// be the one in the LOCK.
func (w *walk) queue(lock []byte) (order []int, err error) {
	size := i32(lock, w.layout.LockQueueSize)
	if size < 0 || size > w.count {
		return nil, errRefused
	}
	head := at(w.addr, w.layout.LockWaitProcs)
	for link := u64(lock, w.layout.LockWaitProcs+w.layout.NodeNext); link != head && (link != 0 || size > 0); {
		i, ok := w.index(link - uint64(w.layout.ProcWaitLink))
		if !ok || i >= w.count || len(order) >= size {
			return nil, errRefused
		}
		order = append(order, i)
		if next, known := w.links[i]; known {
			link = next
			continue
		}
		b, err := w.get(link, w.layout.NodeSize)
		if err != nil {
			return nil, err
		}
		link = u64(b, w.layout.NodeNext)
	}
	if len(order) != size {
		return nil, errRefused
	}
	return order, nil
}

// secondRead reads the involved processes, and again all memory that this walk has read. If any of this memory differs, the
// error is errChanged.
func (w *walk) secondRead(involved map[int]bool) (map[int]proc, error) {
	indexes := make([]int, 0, len(involved))
	for i := range involved {
		indexes = append(indexes, i)
	}
	slices.Sort(indexes)
	pieces := make([]piece, 0, len(indexes)+len(w.read))
	for _, i := range indexes {
		pieces = append(pieces, piece{w.address(i), w.layout.ProcSize})
	}
	b, err := w.mem.read(append(pieces, w.read...))
	if err != nil {
		return nil, err
	}
	procs := make(map[int]proc, len(indexes))
	for n, i := range indexes {
		if b[n] == nil {
			return nil, errRefused
		}
		procs[i] = w.parse(b[n], i)
	}
	for n, first := range w.copies {
		if !bytes.Equal(first, b[len(indexes)+n]) {
			return nil, errChanged
		}
	}
	return procs, nil
}

// prove verifies that the queue, the entries and the processes of a lock agree.
func (w *walk) prove(c *lockCopy, lock []byte, kind int, byLink map[uint64]int, order []int) error {
	const lockClass = 0x03
	var held, wanted [len(modeNames)]int
	for n := range c.queue {
		p := &c.queue[n]
		next := at(w.addr, w.layout.LockWaitProcs)
		if n+1 < len(order) {
			next = at(w.address(order[n+1]), w.layout.ProcWaitLink)
		}
		owner, ok := byLink[p.waitProcLock]
		switch {
		case p.waitLock != w.addr || p.next != next:
			return errChanged // the process's links were of another moment
		case !ok || owner != p.index || !p.mode.valid() || p.pid <= 0:
			return errRefused
		case p.event>>24 == lockClass && int(p.event&0xff) != kind:
			return errRefused
		}
		wanted[p.mode]++
	}
	for _, e := range c.entries {
		p, leader := c.procs[e.proc], c.procs[e.leader]
		if (e.proc < w.count) != (p.pid > 0) || leader.pid < 0 || p.pid < 0 {
			return errRefused
		}
		if group, ok := w.index(p.leader); p.leader != 0 && (!ok || group != e.leader) || p.leader == 0 && e.leader != e.proc {
			return errRefused
		}
		for m := Mode(1); m.valid(); m++ {
			if e.hold&m.bit() != 0 {
				held[m]++
			}
		}
	}
	for m := Mode(1); m.valid(); m++ {
		q, g := i32(lock, w.layout.LockRequested+4*int(m)), i32(lock, w.layout.LockGranted+4*int(m))
		if held[m] != g || wanted[m] != q-g {
			return errRefused
		}
	}
	return nil
}

// row returns the lock of the row that a process wants to change or lock, and that another transaction has changed. The
// process holds this lock only while it waits for the transaction (heap_acquire_tuplock in heapam.c). row returns nil if
// there is no such lock, or more than one, if the process has too many locks, or after too many calls for one moment.
func (r *Reader) row(p *proc) (row *Tag) {
	const mostRows = 256 // in one moment
	if r.rows++; r.rows > mostRows {
		return nil
	}
	several := false
	ok := r.ownLocks(p, func(tag Tag, kind int, _ uint32, _ uint64) {
		if kind == tagTuple {
			several = row != nil
			row = &tag
		}
	})
	if !ok || several {
		return nil
	}
	return row
}

// wait returns the Wait of the process at a position in the lock's queue, with the blockers that pg_blocking_pids
// returns.
func (r *Reader) wait(c *lockCopy, position int) Wait {
	p := &c.queue[position]
	mask := conflicts[p.mode]
	w := Wait{
		PID: p.pid, Proc: p.index, Kind: Lock, Event: p.event, Tag: &c.tag, Mode: p.mode, Since: since(p.waitStart),
	}
	own := p.index
	if c.tag.Type == tagNames[tagTransaction] {
		w.Row = r.row(p)
	}
	if group, ok := r.index(p.leader); ok {
		own, w.Leader = group, c.procs[group].pid
	}
	softs := 0
	for n := range c.entries {
		e := &c.entries[n]
		if e.hold&mask == 0 && r.MaxSoft > 0 && softs >= r.MaxSoft {
			continue
		}
		if e.proc == p.index || e.leader == own {
			continue // members of a group never block each other
		}
		b := Blocker{
			PID: e.owner.pid, Proc: e.proc, Leader: e.leaderPID, Hard: e.hold&mask != 0, Held: ModeSet(e.hold),
		}
		soft := e.position >= 0 && e.position < position && mask&e.owner.mode.bit() != 0
		switch {
		case !b.Hard && !soft:
			continue
		case r.edges >= maxEdges:
			w.Omitted++
			continue
		}
		r.edges++
		if !b.Hard {
			softs++
		}
		if e.position >= 0 {
			b.Wanted = e.owner.mode
		}
		if b.PID == 0 {
			b.XID, b.GID = e.owner.xid, r.gid(e.proc, e.owner.xid)
		}
		w.Blockers = append(w.Blockers, b)
	}
	if w.Omitted > 0 {
		w.Reason = units.Plural(w.Omitted, "%d more {blocker is|blockers are} omitted")
	}
	return w
}
