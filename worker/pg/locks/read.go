package locks

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/layout"
	"pg_stat_backtrace/worker/pg/levels"
)

// Bounds of one read.
const (
	tries     = 4       // attempts to read one lock without a change
	maxProcs  = 1 << 19 // more than PostgreSQL's limit of max_connections and other processes
	maxActive = 3       // bound of Reader.active; if several besides startup are active, the blocker of replay is unknown
	maxEdges  = 1 << 20 // blockers in one moment
	maxWaits  = 1 << 16
	maxSteps  = 1 << 18 // reads of lists in one moment
	chunk     = 1 << 20 // bytes of the array of processes in one read
	timeout   = 3 * time.Second
	patience  = 300 * time.Millisecond // how long one read waits for locks that contradict themselves
)

// Reasons why the blockers of a wait are not known.
var (
	errChanged = errors.New("changed while it was read")
	errRefused = errors.New("the lock table is not consistent")
	errTooLong = errors.New("the lock table takes too long to read")
)

// Reader reads the lock waits of one run of a server. It must not be used by several goroutines at a time.
type Reader struct {
	// MaxSoft bounds the soft blockers of each wait for a heavyweight lock; 0: no bound. A soft blocker holds no conflicting
	// lock, but is ahead in the queue. If n processes wait for one lock, they have some n² soft blockers.
	MaxSoft int

	server *waitevent.Server
	names  *levels.WaitNames
	layout layout.Locks
	mem    memory
	major  int

	procGlobal, maxPrepared, maxSenders, syncConfig uint64
	fastCount                                       uint64 // the address of FastPathLockGroupsPerBackend; 0: the version has none
	// segment returns the start of the shared memory that has the array of PGPROCs; 0 if it is not known.
	segment func() uint64

	first           uint64      // address of the array of PGPROCs
	count, prepared int         // PGPROCs of processes, and after them of prepared transactions
	groups          map[int]int // leaders of lock groups, by process id
	active          []proc      // processes with a virtual transaction, at most maxActive
	steps, edges    int
	rows            int            // calls of row in this read
	pins            int            // waits for buffer pins in this read
	queued          map[int]int    // see syncQueues; nil: not read yet
	gids            map[int]string // names of prepared transactions, by position of the PGPROC
	deadline        time.Time
	patience        time.Duration // how long this read may still wait; 0 in tests of corrupt memory
	regions         map[string]uint64
	relations       *NameReader // nil: the names of this server's relations cannot be found
}

// Open finds the variables of a running server. The error wraps waits.ErrUnsupported if its version is not known.
func Open(c cluster.Cluster) (*Reader, error) {
	s, err := waitevent.Locate(c)
	if err != nil {
		return nil, err
	}
	l, ok := layout.LocksOf(c.Version)
	if !ok {
		return nil, fmt.Errorf("%w: locks of PostgreSQL %d are not known to this release", waits.ErrUnsupported, c.Version)
	}
	names := []string{"max_prepared_xacts", "max_wal_senders", "SyncRepConfig"}
	if l.FastGroups != "" {
		names = append(names, l.FastGroups)
	}
	found, err := s.Program.Variables(names...)
	if err != nil {
		return nil, err
	}
	r := &Reader{
		server: s, names: s.Names, layout: l, mem: &live{pid: s.Target.Postmaster}, major: c.Version,
		procGlobal: s.Target.ProcGlobal, maxPrepared: found["max_prepared_xacts"],
		maxSenders: found["max_wal_senders"], syncConfig: found["SyncRepConfig"], fastCount: found[l.FastGroups],
	}
	r.segment = r.mapped
	r.relations, _ = OpenNames(&s.Program, c.Version, c.PostmasterPID, c.DataDir)
	return r, nil
}

// mapped returns the start of the mapping that has the array of PGPROCs: the shared memory. 0: it was not found.
func (r *Reader) mapped() uint64 {
	pid := r.server.Target.Postmaster
	var maps []process.Mapping
	var err error
	if !process.WithTimeout(pid, func() { maps, err = process.Maps(pid) }, func() {}) || err != nil {
		return 0
	}
	i := process.IndexOf(maps, r.first)
	if i < 0 {
		return 0
	}
	return maps[i].Start
}

// Cluster returns the run of the server that the reader is for.
func (r *Reader) Cluster() cluster.Cluster { return r.server.Cluster }

// proc is a PGPROC. index is its position in the array.
type proc struct {
	index        int
	pid          int
	next         uint64 // the link to the next process in the lock's queue
	xid, lxid    uint32
	waitLock     uint64
	waitProcLock uint64
	mode         Mode
	waitStart    uint64
	waitLSN      uint64
	syncState    uint32
	event        uint32
	leader       uint64 // address of the group leader's PGPROC; 0: no group
}

// Read reads all lock waits. The error wraps waits.ErrServerGone if the server has ended.
func (r *Reader) Read() (*Moment, error) {
	calls := 0
	if l, ok := r.mem.(*live); ok {
		calls, r.patience = l.calls, patience
	}
	m, err := r.read()
	if r.server != nil { // the postmaster may have ended, and another process may have its id
		if _, gone := r.server.Cluster.Postmaster(); gone != nil && !process.LacksResources(gone) {
			return nil, fmt.Errorf("%w: %w", waits.ErrServerGone, gone)
		}
	}
	if err != nil {
		return nil, err
	}
	if l, ok := r.mem.(*live); ok {
		m.Reads = l.calls - calls
	}
	r.nameRelations(m)
	for i := range m.Waits {
		if w := &m.Waits[i]; w.Kind == BufferPin {
			w.Reason = w.pinReason()
		}
	}
	return m, nil
}

// nameRelations adds the names of relations to the tags of all waits.
func (r *Reader) nameRelations(m *Moment) {
	if r.relations == nil {
		return
	}
	byDatabase := make(map[uint32][]*Tag)
	for i := range m.Waits {
		for _, t := range []*Tag{m.Waits[i].Tag, m.Waits[i].Row, m.Waits[i].Page} {
			if t.hasRelation() {
				byDatabase[t.Database] = append(byDatabase[t.Database], t)
			}
		}
	}
	for database, tags := range byDatabase {
		relations := make([]uint32, len(tags))
		for i, t := range tags {
			relations[i] = t.Relation
		}
		names := r.relations.Names(database, relations)
		for _, t := range tags {
			t.Name = names[t.Relation]
		}
	}
}

func (r *Reader) read() (*Moment, error) {
	r.rows, r.pins, r.queued = 0, 0, nil
	r.steps, r.edges, r.deadline, r.regions, r.gids = 0, 0, time.Now().Add(timeout), nil, make(map[int]string)
	if err := r.findArray(); err != nil {
		return nil, err
	}
	waiting, err := r.waiting()
	if err != nil {
		return nil, err
	}
	m := &Moment{Waits: []Wait{}, groups: r.groups}
	if err := r.heavyweight(m, waiting); err != nil {
		return nil, err
	}
	for i := range waiting {
		if waiting[i].waitLock == 0 {
			r.other(m, &waiting[i])
		}
	}
	sort.Slice(m.Waits, func(i, j int) bool {
		a, b := m.Waits[i], m.Waits[j]
		return a.Proc-b.Proc < 0
	})
	for i := range m.Waits {
		w := &m.Waits[i]
		if w.Changed {
			m.Changed++
		}
		if w.Reason == errRefused.Error() {
			m.Refused++
		}
	}
	return m, nil
}

// findArray reads the position and size of the array of PGPROCs.
func (r *Reader) findArray() error {
	b, err := r.mem.read([]piece{{r.procGlobal, 8}})
	if err != nil {
		return err
	}
	if b[0] == nil || u64(b[0], 0) == 0 {
		return fmt.Errorf("%w: the server has no array of processes", errRefused)
	}
	header := u64(b[0], 0)
	want := []piece{{at(header, r.layout.HdrAllProcs), 8}, {at(header, r.layout.HdrCount), 4}}
	if r.maxPrepared != 0 {
		want = append(want, piece{r.maxPrepared, 4})
	}
	if b, err = r.mem.read(want); err != nil {
		return err
	}
	if slices.ContainsFunc(b, func(b []byte) bool { return b == nil }) {
		return fmt.Errorf("%w: the array of processes cannot be read", errRefused)
	}
	r.first, r.count, r.prepared = u64(b[0], 0), i32(b[1], 0), 0
	if r.maxPrepared != 0 {
		r.prepared = i32(b[2], 0)
	}
	if r.first == 0 || r.first%8 != 0 || r.count <= 0 || r.count > maxProcs || r.prepared < 0 || r.prepared > maxProcs {
		return fmt.Errorf("%w: %d processes", errRefused, r.count)
	}
	return nil
}

// waiting returns the processes that wait for a lock or for another process. It reads the array in chunks and keeps
// only these processes.
func (r *Reader) waiting() ([]proc, error) {
	size := r.layout.ProcSize
	per := max(1, chunk/size)
	var found []proc
	r.active = nil
	pids, leaders := make([]int32, r.count), make(map[int]int)
	for at := 0; at < r.count; at += per {
		n := min(per, r.count-at)
		b, err := r.mem.read([]piece{{r.first + uint64(at*size), n * size}})
		if err != nil {
			return nil, err
		}
		if b[0] == nil {
			return nil, fmt.Errorf("%w: the array of processes cannot be read", errRefused)
		}
		for i := range n {
			p := r.parse(b[0][i*size:][:size], at+i)
			if p.pid > 0 && (p.waitLock != 0 || r.kind(p.event) != "") {
				found = append(found, p)
			}
			pids[at+i] = int32(p.pid)
			if leader, ok := r.index(p.leader); ok && p.pid > 0 && leader < r.count {
				leaders[p.pid] = leader
			}
			if p.pid > 0 && p.lxid != 0 && len(r.active) < maxActive {
				r.active = append(r.active, p)
			}
		}
	}
	if len(found) > maxWaits {
		return nil, fmt.Errorf("%w: %d processes wait", errRefused, len(found))
	}
	r.groups = make(map[int]int, len(leaders))
	for pid, leader := range leaders {
		r.groups[pid] = int(pids[leader])
	}
	return found, nil
}

func (r *Reader) parse(b []byte, index int) proc {
	return proc{
		index: index, pid: i32(b, r.layout.ProcPID), next: u64(b, r.layout.ProcWaitLink+r.layout.NodeNext),
		xid: u32(b, r.layout.ProcXid), lxid: u32(b, r.layout.ProcLxid),
		waitLock: u64(b, r.layout.ProcWaitLock), waitProcLock: u64(b, r.layout.ProcWaitProcLock), mode: modeOf(u32(b, r.layout.ProcWaitLockMode)),
		waitStart: u64(b, r.layout.ProcWaitStart), waitLSN: u64(b, r.layout.ProcWaitLSN), syncState: u32(b, r.layout.ProcSyncRepState),
		event: u32(b, r.layout.ProcWaitEvent), leader: u64(b, r.layout.ProcLeader),
	}
}

// modeOf returns the lock mode with a number; 0: the number is no mode.
func modeOf(number uint32) Mode {
	if number >= uint32(len(modeNames)) {
		return 0
	}
	return Mode(number)
}

// index returns the position of the PGPROC at an address; false if no PGPROC of the array begins there.
func (r *Reader) index(addr uint64) (int, bool) {
	if addr < r.first {
		return 0, false
	}
	o, size := addr-r.first, uint64(r.layout.ProcSize)
	if o%size != 0 || o/size >= uint64(r.count+r.prepared) {
		return 0, false
	}
	return int(o / size), true
}

func (r *Reader) address(index int) uint64 { return r.first + uint64(index*r.layout.ProcSize) }

// readProcs reads PGPROCs by position, with one call.
func (r *Reader) readProcs(indexes []int) (map[int]proc, error) {
	pieces := make([]piece, len(indexes))
	for i, index := range indexes {
		pieces[i] = piece{r.address(index), r.layout.ProcSize}
	}
	b, err := r.mem.read(pieces)
	if err != nil {
		return nil, err
	}
	procs := make(map[int]proc, len(indexes))
	for i, index := range indexes {
		if b[i] == nil {
			return nil, errRefused
		}
		procs[index] = r.parse(b[i], index)
	}
	return procs, nil
}

// epoch is 2000-01-01, from which PostgreSQL's timestamps count, in microseconds since 1970.
const epoch = 946684800 * 1000000

func since(stamp uint64) time.Time {
	const last = 1 << 55 // beyond the year 3000
	if stamp == 0 || stamp > last {
		return time.Time{}
	}
	return time.UnixMicro(int64(stamp) + epoch)
}
