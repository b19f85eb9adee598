package locks

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/pg/layout"
	"pg_stat_backtrace/worker/pg/levels"
)

// fake is the shared memory of a server that does not exist.
type fake struct {
	base  uint64
	data  []byte
	calls int
	after func() // called after each read
}

func (f *fake) read(pieces []piece) ([][]byte, error) {
	f.calls++
	out := make([][]byte, len(pieces))
	for i, p := range pieces {
		if p.addr >= f.base && p.addr-f.base <= uint64(len(f.data)) && uint64(len(f.data))-(p.addr-f.base) >= uint64(p.size) {
			out[i] = slices.Clone(f.data[p.addr-f.base:][:p.size])
		}
	}
	if f.after != nil {
		f.after()
	}
	return out, nil
}

func (f *fake) put64(addr, value uint64) { binary.NativeEndian.PutUint64(f.data[addr-f.base:], value) }
func (f *fake) put32(addr uint64, value uint32) {
	binary.NativeEndian.PutUint32(f.data[addr-f.base:], value)
}

// Offsets in version 15, as its headers have them.
const (
	procXid          = 52
	procWaitLock     = 112
	procWaitProcLock = 120
	procWaitLockMode = 128

	lockProcLocks  = 24
	lockWaitProcs  = 40
	lockQueueSize  = 56
	lockRequested  = 64
	lockNRequested = 104
	lockGranted    = 108
	lockNGranted   = 148

	procLockMyLock      = 0
	procLockMyProc      = 8
	procLockGroupLeader = 16
	procLockHoldMask    = 24
	procLockLink        = 32
	procLockSize        = 64
	nodeNext            = 8
)

// Addresses of the fake.
const (
	fakeGlobal    = 0x1000
	fakePrepared  = 0x1008
	fakeHeader    = 0x1010
	fakeLock      = 0x1100
	fakeProcLocks = 0x1200
	fakeProcs     = 0x2000
	fakeCount     = 6
)

// newFake makes a server of version 15. Process 1 holds a relation in ShareLock, and 2 (of group 5) and a prepared
// transaction in AccessShareLock. Process 3 waits for RowExclusiveLock, then 4 for AccessExclusiveLock.
func newFake(t testing.TB) (*Reader, *fake) {
	t.Helper()
	names, err := levels.NewWaitNames(15)
	if err != nil {
		t.Fatal(err)
	}
	l, ok := layout.LocksOf(15)
	if !ok {
		t.Fatal("version 15 has no layout")
	}
	f := &fake{base: 0x1000, data: make([]byte, 0x4000)}
	r := &Reader{
		names: names, layout: l, mem: f, major: 15, procGlobal: fakeGlobal, maxPrepared: fakePrepared,
		segment: func() uint64 { return 0 },
	}
	f.put64(fakeGlobal, fakeHeader)
	f.put32(fakePrepared, 2)
	f.put64(fakeHeader, fakeProcs)
	f.put32(fakeHeader+32, fakeCount)
	proc := func(i int) uint64 { return fakeProcs + uint64(i)*880 }
	for i := range fakeCount {
		f.put32(proc(i)+64, uint32(100+i))
	}
	f.put32(proc(6)+procXid, 777)
	f.put64(proc(2)+840, proc(5))
	f.put64(proc(5)+840, proc(5))
	entry := func(n int) uint64 { return fakeProcLocks + uint64(n)*procLockSize }
	owners := []struct{ proc, leader, hold int }{{1, 1, 1 << 5}, {2, 5, 1 << 1}, {6, 6, 1 << 1}, {3, 3, 0}, {4, 4, 0}}
	ring(f, fakeLock+lockProcLocks, len(owners), func(n int) uint64 { return entry(n) + procLockLink })
	for n, o := range owners {
		f.put64(entry(n)+procLockMyLock, fakeLock)
		f.put64(entry(n)+procLockMyProc, proc(o.proc))
		f.put64(entry(n)+procLockGroupLeader, proc(o.leader))
		f.put32(entry(n)+procLockHoldMask, uint32(o.hold))
	}
	ring(f, fakeLock+lockWaitProcs, 2, func(n int) uint64 { return proc(3 + n) })
	f.put32(fakeLock+lockQueueSize, 2)
	for n, mode := range []uint32{3, 8} {
		p := proc(3 + n)
		f.put64(p+procWaitLock, fakeLock)
		f.put64(p+procWaitProcLock, entry(3+n))
		f.put32(p+procWaitLockMode, mode)
		f.put32(p+712, 0x03000000)
	}
	f.put32(fakeLock, 5)
	f.put32(fakeLock+4, 16384)
	f.data[fakeLock-f.base+15] = 1
	for mode, counts := range map[int][2]uint32{1: {2, 2}, 5: {1, 1}, 3: {1, 0}, 8: {1, 0}} {
		f.put32(uint64(fakeLock+lockRequested+4*mode), counts[0])
		f.put32(uint64(fakeLock+lockGranted+4*mode), counts[1])
	}
	f.put32(fakeLock+lockNRequested, 5)
	f.put32(fakeLock+lockNGranted, 3)
	return r, f
}

// ring links nodes behind a head.
func ring(f *fake, head uint64, n int, node func(int) uint64) {
	last := head
	for i := range n {
		f.put64(last+nodeNext, node(i))
		f.put64(node(i), last)
		last = node(i)
	}
	f.put64(last+nodeNext, head)
	f.put64(head, last)
}

// edges returns the edges of a moment as text.
func edges(m *Moment) []string {
	var out []string
	for i := range m.Waits {
		for _, b := range m.Waits[i].Blockers {
			out = append(out, fmt.Sprintf("%d>%d/%d %v %v", m.Waits[i].PID, b.PID, b.Leader, b.Hard, b.Held))
		}
	}
	return out
}

// byLeader removes the process ids of blockers, and keeps those of their leaders.
func byLeader(edges []string) []string {
	out := make([]string, len(edges))
	for i, e := range edges {
		waiter, blocker, _ := strings.Cut(e, ">")
		_, leader, _ := strings.Cut(blocker, "/")
		out[i] = waiter + ">" + leader
	}
	return out
}

func TestEdges(t *testing.T) {
	r, _ := newFake(t)
	m, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"103>101/101 true ShareLock", "104>101/101 true ShareLock", "104>102/105 true AccessShareLock",
		"104>0/0 true AccessShareLock", "104>103/103 false ",
	}
	if got := edges(m); !slices.Equal(got, want) {
		t.Fatalf("edges %q", got)
	}
	const text = `101
  103 waits for RowExclusiveLock on relation 16384 of database 5
  104 waits for AccessExclusiveLock on relation 16384 of database 5
105
  104 waits for AccessExclusiveLock on relation 16384 of database 5 (see above)
prepared transaction 777
  104 waits for AccessExclusiveLock on relation 16384 of database 5 (see above)
`
	if got := Text(m.Forest()); got != text {
		t.Errorf("forest:\n%s", got)
	}
	if _, err := json.Marshal(m.Forest()); err != nil {
		t.Error(err)
	}
}

// TestCorruptWords overwrites each word of the lock's structures. The result is the same edges, or none and a reason.
func TestCorruptWords(t *testing.T) {
	r, f := newFake(t)
	m, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	truth := edges(m)
	clean := slices.Clone(f.data)
	var places []uint64
	for a := uint64(fakeLock); a < fakeProcLocks+5*procLockSize; a += 4 {
		places = append(places, a)
	}
	for _, i := range []int{3, 4} {
		p := fakeProcs + uint64(i)*880
		places = append(places, p, p+4, p+8, p+12)
		for a := p + procWaitLock; a < p+procWaitLockMode+4; a += 4 {
			places = append(places, a)
		}
		places = append(places, p+840, p+844)
	}
	values := []uint32{
		0, 1, 2, 3, 5, 8, 9, 0x7fffffff, 0x80000000, 0xffffffff, fakeLock, fakeLock + lockProcLocks, fakeProcLocks,
		fakeProcLocks + procLockLink, fakeProcs, fakeProcs + 880, fakeProcs + 5*880, fakeProcs + 7*880,
	}
	refused := 0
	for _, at := range places {
		for _, v := range values {
			copy(f.data, clean)
			f.put32(at, v)
			m, err := r.Read()
			if err != nil {
				continue
			}
			if at >= fakeProcs && m.Refused+m.Changed == 0 && len(m.Waits) < 2 {
				continue // this process waits no more
			}
			// An entry may name another process of the same group: the server has the leader's locks and its workers' alike.
			if got := edges(m); len(got) > 0 && !slices.Equal(byLeader(got), byLeader(truth)) {
				t.Errorf("%d at %#x: edges %q", v, at, got)
			}
			refused += m.Refused + m.Changed
		}
	}
	if refused == 0 {
		t.Error("nothing was refused")
	}
}

// TestEndless has lists that never end and memory that changes with each read.
func TestEndless(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 300 {
		r, f := newFake(t)
		f.after = func() {
			for range 1 + n%4 {
				at := f.base + 0x100 + random.Uint64N(0x1600)&^7
				f.put64(at, f.base+random.Uint64N(uint64(len(f.data)))&^7)
			}
		}
		began := time.Now()
		m, err := r.Read()
		if err == nil && len(m.Waits) > fakeCount {
			t.Errorf("%d waits of %d processes", len(m.Waits), fakeCount)
		}
		if f.calls > 1000 || time.Since(began) > timeout {
			t.Fatalf("%d calls in %v", f.calls, time.Since(began))
		}
	}
}

// FuzzMemory reads memory with random words.
func FuzzMemory(f *testing.F) {
	f.Add(uint64(1), []byte("\x10\x20\x00\x00"))
	f.Fuzz(func(t *testing.T, seed uint64, data []byte) {
		r, m := newFake(t)
		random := rand.New(rand.NewPCG(seed, 1))
		for len(data) >= 4 {
			m.put32(m.base+random.Uint64N(uint64(len(m.data)-8))&^3, binary.NativeEndian.Uint32(data))
			data = data[4:]
		}
		began := time.Now()
		moment, err := r.Read()
		if err == nil {
			_ = Text(moment.Forest())
		}
		if time.Since(began) > 2*timeout {
			t.Fatal("the read takes too long")
		}
	})
}

// TestDeadlock prints a cycle, and processes behind it, once.
func TestDeadlock(t *testing.T) {
	wait := func(pid int, blockers ...int) Wait {
		w := Wait{PID: pid, Kind: Lock, Mode: 8, Tag: &Tag{Type: "transactionid", XID: uint32(pid)}}
		for _, b := range blockers {
			w.Blockers = append(w.Blockers, Blocker{PID: b, Leader: b, Hard: true})
		}
		return w
	}
	m := &Moment{Waits: []Wait{wait(4, 1), wait(1, 2), wait(2, 3), wait(3, 1), wait(6, 5), wait(7, 6, 1)}}
	text := Text(m.Forest())
	for pid := 1; pid <= 7; pid++ {
		if !strings.Contains(text, strconv.Itoa(pid)) {
			t.Errorf("process %d is not in the forest", pid)
		}
	}
	if strings.Count(text, "(deadlock)") < 3 || strings.Contains(text, "4 (deadlock)") {
		t.Errorf("forest:\n%s", text)
	}
}

// TestManyWaiters bounds the number of blockers: each of 3,000 processes waits behind all others.
func TestManyWaiters(t *testing.T) {
	r, _ := newFake(t)
	r.first, r.count = fakeProcs, 4000
	c := &lockCopy{procs: map[int]proc{}}
	for i := range 3000 {
		p := proc{index: i, pid: 1 + i, mode: 8}
		c.queue = append(c.queue, p)
		c.entries = append(c.entries, entry{proc: i, leader: i, owner: p, leaderPID: p.pid, position: i})
	}
	m := &Moment{}
	total, omitted := 0, 0
	for i := range c.queue {
		w := r.wait(c, i)
		total, omitted = total+len(w.Blockers), omitted+w.Omitted
		m.Waits = append(m.Waits, w)
	}
	if total != maxEdges || total+omitted != 3000*2999/2 {
		t.Errorf("%d blockers, %d omitted", total, omitted)
	}
	if got := len(strings.Split(Text(m.Forest()), "\n")); got > 2*maxNodes {
		t.Errorf("%d lines", got)
	}
}

// TestContradictions has one contradiction in the lock's structures. Both waits have a reason then, and no blockers.
func TestContradictions(t *testing.T) {
	for name, place := range map[string]uint64{
		"nRequested": fakeLock + lockNRequested, "nGranted": fakeLock + lockNGranted,
		"requested": fakeLock + lockRequested + 4*2, "granted": fakeLock + lockGranted + 4*5,
		"myLock": fakeProcLocks + procLockMyLock, "myProc": fakeProcLocks + procLockMyProc,
		"groupLeader": fakeProcLocks + procLockGroupLeader, "holdMask": fakeProcLocks + procLockHoldMask,
		"queue size": fakeLock + lockQueueSize, "wait event": fakeProcs + 3*880 + 712, "mode": fakeProcs + 3*880 + procWaitLockMode,
		"method": fakeLock + 12,
	} {
		r, f := newFake(t)
		f.data[place-f.base] += 4
		if name == "method" {
			f.data[place-f.base+3] = 2
		}
		m, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		if m.Refused != 2 || len(edges(m)) != 0 {
			t.Errorf("%s: %d refused, edges %q", name, m.Refused, edges(m))
		}
	}
}

// TestChanging has a lock that belongs to another relation in each read.
func TestChanging(t *testing.T) {
	r, f := newFake(t)
	f.after = func() { f.data[fakeLock-f.base+4]++ }
	m, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	if m.Changed != 2 || m.Refused != 0 || len(edges(m)) != 0 {
		t.Errorf("%d changed, %d refused, edges %q", m.Changed, m.Refused, edges(m))
	}
}

// TestForestOrder: a process below two others has its waiters where people read of it first.
func TestForestOrder(t *testing.T) {
	by := func(pids ...int) (list []Blocker) {
		for _, pid := range pids {
			list = append(list, Blocker{PID: pid, Leader: pid, Hard: true})
		}
		return list
	}
	m := &Moment{Waits: []Wait{
		{PID: 2, Kind: Lock, Blockers: by(1)}, {PID: 3, Kind: Lock, Blockers: by(2, 1)}, {PID: 4, Kind: Lock, Blockers: by(3)},
		{PID: 2, Kind: Lock, Blockers: by(9)},
	}}
	var got []string
	seen := map[int]bool{}
	for line := range strings.Lines(Text(m.Forest())) {
		fields := strings.Fields(line)
		pid, _ := strconv.Atoi(fields[0])
		if repeated := strings.Contains(line, "(see above)"); repeated != seen[pid] {
			t.Errorf("%q: %v", line, seen)
		}
		seen[pid] = true
		got = append(got, strings.Repeat(" ", (len(line)-len(strings.TrimLeft(line, " ")))/2)+fields[0])
	}
	if want := []string{"1", " 2", "  3", "   4", " 3", "9", " 2"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
