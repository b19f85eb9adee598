// Package state reads what every process of a server does now: the entries of pg_stat_activity and the wait events. It
// reads them through the postmaster, where the shared memory has the same addresses, in a few large reads. It needs no
// query and stops no process, so it works while the server accepts no connections. ActivityReader returns the part that
// metrics need. Package clusterprofile reads the entry of a process at the moment of a sample, by a BPF program in the
// kernel. It uses only the names of types and states of this package.
//
// PendingBarriers finds the processes for which a ProcSignalBarrier waits. DROP DATABASE and other commands send such a
// barrier to all processes, and wait until each of them has absorbed it (procsignal.c). No lock shows which processes
// are late, so the function reads the slots in the server's shared memory.
//
// The package must not know what the figures are for.
package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/locks"
	"pg_stat_backtrace/worker/report/units"
)

// Bounds of one read.
const (
	tries      = 4       // attempts to read an entry without a change
	pointers   = 8       // processes whose pointer to their entry is read, before the entries are read again
	maxProcs   = 1 << 19 // more than PostgreSQL's limit of max_connections and other processes
	moreSlots  = 64      // entries in addition to one for each PGPROC
	maxText    = 1 << 20 // the limit of track_activity_query_size
	maxName    = 64
	maxPieces  = 1024 // in one read of texts
	maxUnknown = 64   // maxProcs/maxUnknown bounds the types of background workers that are kept
	maxStuck   = 8    // after so many reads of children with a timeout, a Read reads no more children
)

// Reader reads the processes of one run of a server. It must not be used by several goroutines at a time.
type Reader struct {
	server *waitevent.Server
	// memory is the postmaster's memory, and stuck counts the reads of child processes that reached their timeout. Each
	// call of Read sets memory again, and stuck to 0.
	memory        *process.Memory
	stuck         int
	locks         *locks.Reader     // nil before the first Blocking
	relations     *locks.NameReader // for RelationName; nil: not opened yet
	offsets       offsets
	size          int
	types, states []string
	textSize      int // track_activity_query_size, with the final zero
	port, entryOf uint64
	low, high     uint64 // the known part of the array of entries: [low, high), a multiple of size
	firstProc     uint64
	procs, span   []byte
	doubles       map[int][]int // by process id, further PGPROCs with this id: until 16, the PGPROC of an ended process keeps it
	again         []byte
	workers       map[identity]string // types of background workers (bgw_type)
	// databases and users are the names by oid, see addNames. shared reads them from the server's catalogs; nil: not opened,
	// or noShared is set. logins has the names of the logins that were read.
	databases, users names
	shared           *locks.SharedNames
	noShared         bool
	logins           map[identity]login
}

// identity identifies a process: its id in the server's PID namespace, and its start time.
type identity struct {
	pid   int
	start uint64
}

// Options are the options of Reader.Read.
type Options struct {
	// Texts adds application names, query texts and names of databases and users. The names are those of the catalogs, as in
	// pg_stat_activity. If the pages of the catalogs cannot be read, they are the names of the newest logins.
	Texts bool
	// Logins, with Texts, reads the names of all logins, for RolesNamed.
	Logins bool
}

// Open finds the variables of a running server. The error wraps waits.ErrUnsupported if its version is not known.
func Open(c cluster.Cluster) (*Reader, error) {
	v, ok := offsetsOf(c.Version)
	if !ok {
		return nil, fmt.Errorf("%w: PostgreSQL %d is not known to this release", waits.ErrUnsupported, c.Version)
	}
	server, err := waitevent.Locate(c)
	if err != nil {
		return nil, err
	}
	variables, err := server.Program.Variables("MyProcPort", "MyBgworkerEntry", "pgstat_track_activity_query_size")
	if err != nil {
		return nil, err
	}
	r := &Reader{
		server: server, offsets: v, size: v.size, types: BackendTypes(c.Version), states: States(c.Version),
		port: variables["MyProcPort"], entryOf: variables["MyBgworkerEntry"], workers: map[identity]string{},
		databases: newNames(), users: newNames(), logins: map[identity]login{}, memory: process.NewMemory(server.Target.Postmaster),
	}
	if at := variables["pgstat_track_activity_query_size"]; at != 0 {
		var n [4]byte
		if err := r.full(at, n[:]); err != nil {
			return nil, fmt.Errorf("read track_activity_query_size: %w", err)
		}
		r.textSize = int(int32(binary.NativeEndian.Uint32(n[:])))
	}
	if r.textSize < 1 || r.textSize > maxText {
		r.textSize = 0 // texts are missing
	}
	return r, nil
}

// Cluster returns the run of the server that the reader is for.
func (r *Reader) Cluster() cluster.Cluster { return r.server.Cluster }

// entry is the entry of a process in pg_stat_activity (PgBackendStatus), at the address at. name and query are the
// application name and the query text; "": not read. cut: see text.
type entry struct {
	pid, serverPID int
	at             uint64
	bytes          []byte
	name, query    string
	cut            bool
}

// Read returns what all processes do that have an entry in pg_stat_activity. The error wraps waits.ErrServerGone if the
// server has ended.
func (r *Reader) Read(o Options) (*moment.Moment, error) {
	_, err := r.server.Cluster.Rights()
	if errors.Is(err, process.ErrExited) {
		return nil, waits.ErrServerGone
	}
	if err != nil {
		return nil, err
	}
	r.memory, r.stuck = process.NewMemory(r.server.Target.Postmaster), 0
	m := &moment.Moment{Sessions: []moment.Session{}}
	if err := r.read(m, o); err != nil {
		return nil, err
	}
	return m, nil
}

func (r *Reader) read(m *moment.Moment, o Options) error {
	c := r.server.Cluster
	m.Time, m.Cluster, m.Version, m.Method = time.Now(), c.DataDir, c.Version, "memory of the postmaster"
	defer func() { m.DelayMicroseconds = time.Since(m.Time).Microseconds() }()
	slots, err := r.readProcs()
	if err != nil {
		return err
	}
	children, err := process.Children(r.server.Target.Postmaster)
	if err != nil {
		return fmt.Errorf("list the server's processes: %w", err)
	}
	entries, denied := r.find(children)
	if len(entries) == 0 && denied != nil {
		return denied
	}
	torn, err := r.settle(entries, o)
	if err != nil {
		return err
	}
	if r.stuck > 0 {
		m.Missing = append(m.Missing, "memory of processes: "+units.Count(r.stuck, "read")+" did not end in time")
	}
	for i := range entries {
		e := &entries[i]
		if torn[i] {
			m.Missing = append(m.Missing, fmt.Sprintf("process %d changed while it was read", e.serverPID))
			continue
		}
		if s, ok := r.session(e, slots, o); ok {
			m.Sessions = append(m.Sessions, s)
		}
	}
	if o.Texts { // after the texts, so that no text is newer than the names
		r.addNames(m.Sessions, o.Logins)
	}
	if o.Texts && r.textSize == 0 {
		m.Missing = append(m.Missing, "query texts: the server's track_activity_query_size was not found")
	}
	sort.Slice(m.Sessions, func(i, j int) bool {
		a, b := m.Sessions[i], m.Sessions[j]
		return a.PID-b.PID < 0
	})
	return nil
}

// full reads memory of the postmaster with a timeout. After a timeout all later calls of the same Read fail at once.
func (r *Reader) full(at uint64, into []byte) error {
	n, err := r.memory.Read(at, into)
	if errors.Is(err, process.ErrExited) {
		return waits.ErrServerGone
	}
	if err == nil && n < len(into) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// readProcs reads all PGPROC structures. It returns their indexes by process id, of several with the same id the first one.
func (r *Reader) readProcs() (map[int]int, error) {
	l := &r.server.Target.Layout
	var word [8]byte
	if err := r.full(r.server.Target.ProcGlobal, word[:]); err != nil {
		return nil, err
	}
	header := binary.NativeEndian.Uint64(word[:])
	if header == 0 {
		return nil, fmt.Errorf("%w: the server has no shared memory yet", waits.ErrServerGone)
	}
	if err := r.full(header, word[:]); err != nil {
		return nil, err
	}
	first := binary.NativeEndian.Uint64(word[:])
	if err := r.full(header+uint64(l.ProcCount), word[:4]); err != nil {
		return nil, err
	}
	count := int(binary.NativeEndian.Uint32(word[:]))
	if count < 1 || count > maxProcs {
		return nil, fmt.Errorf("%w: the server's memory is not laid out as expected (%d processes)", waits.ErrUnsupported, count)
	}
	if len(r.procs) != count*l.ProcSize {
		r.procs = make([]byte, count*l.ProcSize)
	}
	if err := r.full(first, r.procs); err != nil {
		return nil, err
	}
	slots, doubles := make(map[int]int), make(map[int][]int)
	for i := range count {
		pid := int(r.procNumber(i, l.PID))
		if pid == 0 {
			continue
		}
		if _, ok := slots[pid]; ok {
			doubles[pid] = append(doubles[pid], i)
		} else {
			slots[pid] = i
		}
	}
	r.doubles = doubles
	r.firstProc = first
	return slots, nil
}

func (r *Reader) procNumber(i, offset int) uint32 {
	return binary.NativeEndian.Uint32(r.procs[i*r.server.Target.Layout.ProcSize+offset:])
}

func (r *Reader) procWord(i, offset int) uint64 {
	return binary.NativeEndian.Uint64(r.procs[i*r.server.Target.Layout.ProcSize+offset:])
}

// find returns the entries of the children. The server does not export the address of the array of entries, but the pointer
// of each process to its own entry. The memory between two such pointers consists of entries too. So find reads only the
// pointers of those processes whose entries it has not found there. denied is the error if the kernel forbids find to read
// the pointer of a process.
func (r *Reader) find(children []int) (found []entry, denied error) {
	asked := make(map[int]bool)
	serverPIDs := make(map[int]int, len(children))
	for _, pid := range children {
		serverPIDs[pid] = r.serverPID(pid)
	}
	for {
		byPID := r.readSpan()
		found = found[:0]
		var missing []int
		for _, pid := range children {
			if at, ok := byPID[serverPIDs[pid]]; ok {
				found = append(found, entry{pid: pid, serverPID: serverPIDs[pid], at: at})
			} else if !asked[pid] {
				missing = append(missing, pid)
			}
		}
		if len(missing) == 0 {
			return found, denied
		}
		if len(missing) > pointers { // keep the first and the last, whose entries are probably at both ends of the array
			half := pointers / 2
			missing = append(slices.Clone(missing[:half]), missing[len(missing)-half:]...)
		}
		for _, pid := range missing {
			asked[pid] = true
			if err := r.extend(pid); errors.Is(err, process.ErrNotPermitted) {
				denied = err
			}
		}
	}
}

// readSpan reads the entries that are known, and returns their addresses by process id.
func (r *Reader) readSpan() map[int]uint64 {
	n := int(r.high - r.low)
	if n == 0 {
		return nil
	}
	if len(r.span) != n {
		r.span, r.again = make([]byte, n), make([]byte, n)
	}
	if r.full(r.low, r.span) != nil {
		r.low, r.high = 0, 0 // the server has new shared memory, as after a crash
		return nil
	}
	byPID := make(map[int]uint64, n/r.size)
	for at := 0; at < n; at += r.size {
		if pid := int(int32(binary.NativeEndian.Uint32(r.span[at+r.offsets.stProcpid:]))); pid > 0 {
			byPID[pid] = r.low + uint64(at)
		}
	}
	return byPID
}

// extend reads the pointer of a process to its entry, and adds the entry to the known entries.
func (r *Reader) extend(pid int) error {
	if rights := r.server.Target.Rights; rights != nil {
		if err := rights.Verify(pid); err != nil {
			return err
		}
	}
	at, err := r.childWord(pid, r.server.Target.Status)
	if err != nil || at == 0 {
		return err
	}
	// The pointer is valid only if the entry there has the id of the process.
	var n [4]byte
	if r.full(at+uint64(r.offsets.stProcpid), n[:]) != nil || int(binary.NativeEndian.Uint32(n[:])) != r.serverPID(pid) {
		return nil //nolint:nilerr // the process has no entry yet, or ends
	}
	size := uint64(r.size)
	low, high := min(r.low, at), max(r.high, at+size)
	if r.high == r.low {
		low, high = at, at+size
	}
	most := uint64(len(r.procs)/r.server.Target.Layout.ProcSize + moreSlots)
	if (high-low)%size != 0 || (high-low)/size > most {
		low, high = at, at+size // the entry is not in the same array as [r.low, r.high)
	}
	r.low, r.high = low, high
	return nil
}

// child reads memory of a child with a timeout. After several timeouts in one Read it reads no more children.
func (r *Reader) child(pid int, at uint64, into []byte) (int, error) {
	if r.stuck >= maxStuck {
		return 0, fmt.Errorf("process %d: %w", pid, process.ErrUnreachable)
	}
	n, err := process.ReadMemoryWithTimeout(pid, at, into)
	if errors.Is(err, process.ErrUnreachable) {
		r.stuck++
	}
	return n, err
}

func (r *Reader) childWord(pid int, at uint64) (uint64, error) {
	var w [8]byte
	n, err := r.child(pid, at, w[:])
	if err == nil && n < len(w) {
		err = io.ErrUnexpectedEOF
	}
	return binary.NativeEndian.Uint64(w[:]), err
}

func (r *Reader) serverPID(pid int) int {
	if r.server.Target.ServerPID == nil {
		return pid
	}
	return r.server.Target.ServerPID(pid)
}

// settle reads the texts, and then the entries again. An entry is accepted if its change count (st_changecount) is even
// and the same in both reads. Other entries are read again one by one. torn is set for an entry if it changed in each
// attempt.
func (r *Reader) settle(entries []entry, o Options) (torn []bool, err error) {
	torn = make([]bool, len(entries))
	for i := range entries {
		e := &entries[i]
		e.bytes = r.span[e.at-r.low:][:r.size]
	}
	if o.Texts {
		r.readTexts(entries)
	}
	err = r.full(r.low, r.again)
	if errors.Is(err, process.ErrUnreachable) || errors.Is(err, waits.ErrServerGone) {
		return nil, err
	}
	changed := err != nil
	for i := range entries {
		e := &entries[i]
		after := r.again[e.at-r.low:][:r.size]
		if !changed && r.consistent(e, after) {
			continue
		}
		torn[i] = !r.readOne(e, o)
	}
	return torn, nil
}

// consistent reports whether an entry did not change between two reads: its change count was even, and is the same in
// after, the bytes of the second read.
func (r *Reader) consistent(e *entry, after []byte) bool {
	before := binary.NativeEndian.Uint32(e.bytes[r.offsets.stChangecount:])
	return before%2 == 0 && before == binary.NativeEndian.Uint32(after[r.offsets.stChangecount:])
}

// readOne reads one entry until it does not change during the read; false: it changed in each attempt, or cannot be
// read.
func (r *Reader) readOne(e *entry, o Options) bool {
	own, after := make([]byte, r.size), make([]byte, r.size)
	for range tries {
		if r.full(e.at, own) != nil {
			return false
		}
		e.bytes = own
		if o.Texts {
			one := []entry{*e}
			r.readTexts(one)
			*e = one[0]
		}
		if r.full(e.at, after) != nil {
			return false
		}
		if r.consistent(e, after) {
			return true
		}
	}
	return false
}

// readTexts reads application names and query texts. The server's place for a query text may have 1 MB and is mostly empty: the
// entries get copies of the texts, and the places of all parts are read into one buffer.
func (r *Reader) readTexts(entries []entry) {
	stride := nameDataLen + r.textSize
	var buffer []byte
	for len(entries) > 0 {
		n := min(len(entries), maxPieces/2)
		if most := 16 << 20 / stride; n > most {
			n = max(1, most)
		}
		if buffer == nil { // no later part has more entries
			buffer = make([]byte, n*stride)
		}
		pieces := make([]process.Piece, 0, 2*n)
		for i := range n {
			e := &entries[i]
			pieces = append(pieces, process.Piece{Address: e.word(r.offsets.stAppname), Length: nameDataLen})
			if r.textSize > 0 {
				pieces = append(pieces, process.Piece{Address: e.word(r.offsets.stActivityRaw), Length: r.textSize})
			}
		}
		apart := r.memory.ReadPieces(buffer[:n*stride], pieces) != nil // a pointer is invalid: read the texts one by one
		for i := range n {
			e := &entries[i]
			name, query := buffer[i*stride:][:nameDataLen], buffer[i*stride+nameDataLen:][:r.textSize]
			if apart && r.full(e.word(r.offsets.stAppname), name) != nil {
				name = nil
			}
			if apart && r.textSize > 0 && r.full(e.word(r.offsets.stActivityRaw), query) != nil {
				query = nil
			}
			e.name, _ = text(name)
			e.query, e.cut = text(query)
		}
		entries = entries[n:]
	}
}

func (e *entry) number(at int) uint32 { return binary.NativeEndian.Uint32(e.bytes[at:]) }
func (e *entry) word(at int) uint64   { return binary.NativeEndian.Uint64(e.bytes[at:]) }

// session returns the session of an entry; false if the entry is unused, or belongs to another process by now.
func (r *Reader) session(e *entry, slots map[int]int, o Options) (s moment.Session, ok bool) {
	kind := int(e.number(r.offsets.stBackendType))
	if int(int32(e.number(r.offsets.stProcpid))) != e.serverPID || kind <= 0 || kind >= len(r.types) {
		return s, false
	}
	s = moment.Session{
		PID: e.pid, ServerPID: e.serverPID, Type: r.types[kind], Started: stamp(e.word(r.offsets.stProcStartTimestamp)),
		DatabaseOID: e.number(r.offsets.stDatabaseid), UserOID: e.number(r.offsets.stUserid), QueryID: int64(e.word(r.offsets.stQueryID)),
		XactStart: stamp(e.word(r.offsets.stXactStartTimestamp)), QueryStart: stamp(e.word(r.offsets.stActivityStartTimestamp)),
		StateStart: stamp(e.word(r.offsets.stStateStartTimestamp)),
	}
	if state := int(e.number(r.offsets.stState)); state > 0 && state < len(r.states) {
		s.State = r.states[state]
	}
	s.Client, s.ClientPort = client(e.bytes[r.offsets.stClientaddr:])
	if command := e.number(r.offsets.stProgressCommand); command != 0 {
		p := &moment.Progress{Command: int(command), TargetOID: e.number(r.offsets.stProgressCommandTarget)}
		for i := range progressParams {
			p.Params[i] = int64(e.word(r.offsets.stProgressParam + 8*i))
		}
		s.Progress = p
	}
	if i, ok := slots[e.serverPID]; ok {
		r.addProc(&s, r.ownProc(e, i))
	}
	if s.Type == BackgroundWorker {
		s.Type = r.workerType(e)
	}
	if o.Texts {
		s.Application, s.Query, s.QueryCut = e.name, e.query, e.cut
	}
	return s, true
}

// ownProc returns the index of a process's PGPROC: first, or, if several have its id, the one to which the process points.
func (r *Reader) ownProc(e *entry, first int) int {
	others := r.doubles[e.serverPID]
	if len(others) == 0 {
		return first
	}
	l := &r.server.Target.Layout
	own := r.childPointer(e.pid, r.server.Target.WaitPointer) - uint64(l.WaitEvent) - r.firstProc
	for _, i := range others {
		if own == uint64(i*l.ProcSize) {
			return i
		}
	}
	return first
}

// addProc adds the wait and the parallel leader of a process, from the PGPROC with the index i.
func (r *Reader) addProc(s *moment.Session, i int) {
	l, size := &r.server.Target.Layout, uint64(r.server.Target.Layout.ProcSize)
	if event := r.procNumber(i, l.WaitEvent); event != 0 {
		w := &moment.Wait{}
		w.Type, w.Event, _ = r.server.Names.Name(event)
		if at := r.offsets.waitStart; at >= 0 && w.Type == "Lock" {
			w.Since = stamp(r.procWord(i, at))
		}
		s.Wait = w
	}
	if at := r.offsets.lockGroupLeader; at >= 0 {
		leader := r.procWord(i, at) - r.firstProc
		if k := leader / size; leader%size == 0 && k < uint64(len(r.procs))/size && int(k) != i {
			s.Leader = int(r.procNumber(int(k), l.PID))
		}
	}
}

// workerType returns the type with which a background worker was registered; BackgroundWorker: not known.
func (r *Reader) workerType(e *entry) string {
	key := identity{e.serverPID, e.word(r.offsets.stProcStartTimestamp)}
	if kind, ok := r.workers[key]; ok {
		return kind
	}
	kind := BackgroundWorker
	if at := r.childPointer(e.pid, r.entryOf); at != 0 {
		var name [bgwTypeLen]byte
		if n, err := r.child(e.pid, at+uint64(r.offsets.bgwType), name[:]); err == nil && n == len(name) {
			if t, cut := text(name[:]); t != "" && !cut {
				kind = t
			}
		}
	}
	if len(r.workers) > maxProcs/maxUnknown {
		clear(r.workers)
	}
	r.workers[key] = kind
	return kind
}

// childPointer reads a pointer of a process that has the server's rights; 0: it cannot be read.
func (r *Reader) childPointer(pid int, variable uint64) uint64 {
	if rights := r.server.Target.Rights; variable == 0 || rights != nil && rights.Verify(pid) != nil {
		return 0
	}
	at, err := r.childWord(pid, variable)
	if err != nil {
		return 0
	}
	return at
}

// stamp returns a time of the server: microseconds since 2000. It returns nil for 0 and for times that no server has.
func stamp(microseconds uint64) *time.Time {
	const epoch, century = 946684800, 100 * 366 * 86400 * 1000000
	if microseconds == 0 || microseconds > century {
		return nil
	}
	t := time.Unix(epoch, 0).Add(time.Duration(microseconds) * time.Microsecond).UTC()
	return &t
}

// text returns the text before the first zero byte, as valid UTF-8. cut is set if the text fills its place, so that its
// end may be missing. Then text removes an incomplete last character.
func text(b []byte) (s string, cut bool) {
	end := slices.Index(b, 0)
	switch {
	case end < 0 && len(b) > 0:
		end, cut = len(b), true
	case end < 0:
		return "", false
	default:
		cut = end == len(b)-1
	}
	b = b[:end]
	if cut {
		for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
			if c := b[len(b)-i]; utf8.RuneStart(c) {
				if !utf8.FullRune(b[len(b)-i:]) {
					b = b[:len(b)-i]
				}
				break
			}
		}
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), cut
}

// client returns the address and the port of a client: "local" and 0 for a Unix socket, "" and 0 if there is no client.
func client(b []byte) (string, int) {
	const v4, v6, portAt = 4, 8, 2
	port := int(binary.BigEndian.Uint16(b[portAt:]))
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		return netip.AddrFrom4([4]byte(b[v4:])).String(), port
	case unix.AF_INET6:
		return netip.AddrFrom16([16]byte(b[v6:])).String(), port
	case unix.AF_UNIX:
		return "local", 0
	}
	return "", 0
}
