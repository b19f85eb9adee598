package locks

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/pg/layout"
	"pg_stat_backtrace/worker/pg/levels"
)

const (
	oldestMajor = 14
	newestMajor = 19
)

// TestKindOfBufferWaits: only the wait for a page without pins is a wait for a buffer pin. The locks of buffers, which have events of
// their own from version 19 on, are lightweight locks.
func TestKindOfBufferWaits(t *testing.T) {
	t.Parallel()
	for major := oldestMajor; major <= newestMajor; major++ {
		names, err := levels.NewWaitNames(major)
		if err != nil {
			t.Fatal(err)
		}
		r, pins := &Reader{names: names}, 0
		const class = 4 << 24
		for event := uint32(class); ; event++ {
			_, name, known := names.Name(event)
			if !known {
				break
			}
			want := LWLock
			if name == "BufferPin" || name == "BufferCleanup" {
				want, pins = BufferPin, pins+1
			}
			if got := r.kind(event); got != want {
				t.Errorf("version %d, %s: %q, want %q", major, name, got, want)
			}
		}
		if pins != 1 {
			t.Errorf("version %d has %d waits for buffer pins", major, pins)
		}
	}
}

// TestManyCandidates: the reason counts all candidates for a buffer pin, also the ones beyond the end of the list. Process 0 is the
// startup process, and the others have transactions.
func TestManyCandidates(t *testing.T) {
	t.Parallel()
	for major := oldestMajor; major <= newestMajor; major++ {
		l, ok := layout.LocksOf(major)
		if !ok {
			t.Fatalf("version %d", major)
		}
		const base, count = 0x1000, 41
		f := &fake{base: base, data: make([]byte, (count+1)*l.ProcSize)}
		r := &Reader{layout: l, mem: f, first: base, count: count}
		for i := range count {
			f.put32(at(r.address(i), l.ProcPID), uint32(100+i))
			f.put32(at(r.address(i), l.ProcLxid), uint32(min(i, 1)))
		}
		p := r.parse(f.data[:l.ProcSize], 0)
		var w Wait
		r.pin(&w, &p)
		if len(w.Candidates) != maxCandidates || w.MoreCandidates != count-1-maxCandidates {
			t.Errorf("version %d: %d candidates, and %d more", major, len(w.Candidates), w.MoreCandidates)
		}
		if got := w.pinReason(); !strings.Contains(got, "one of 101, 102, 103, 104, 105 and 35 others may hold it") {
			t.Errorf("version %d: %q", major, got)
		}
	}
}

// TestSendersWithoutFlush: a receiver that has not reported a flush position, such as pg_receivewal, is no synchronous standby.
func TestSendersWithoutFlush(t *testing.T) {
	t.Parallel()
	for major := oldestMajor; major <= newestMajor; major++ {
		l, ok := layout.LocksOf(major)
		if !ok {
			t.Fatalf("version %d", major)
		}
		const base, table, lsn = 0x1000, 0x1100, 500
		f := &fake{base: base, data: make([]byte, 4096)}
		r := &Reader{layout: l, mem: f, maxSenders: base, count: 10}
		f.put32(base, 2)
		for i, flush := range []uint64{0, 400} {
			s := at(table, l.WalSnds+i*l.WalSndSize)
			f.put32(at(s, l.WalSndPID), uint32(11+i))
			f.put32(at(s, l.WalSndState), stateStreaming)
			f.put32(at(s, l.WalSndPriority), 1)
			f.put64(at(s, l.WalSndWrite), 450)
			f.put64(at(s, l.WalSndFlush), flush)
		}
		got, ok := r.senders(table, l.WalSndWrite, lsn)
		if want := []sender{{pid: 12, priority: 1, lag: 50}}; !ok || !slices.Equal(got, want) {
			t.Errorf("version %d: %v %t, want %v", major, got, ok, want)
		}
	}
}

// TestQueueThatChanges: a commit that leaves the queue while it is followed does not hide the commits behind it.
func TestQueueThatChanges(t *testing.T) {
	t.Parallel()
	for major := oldestMajor; major <= newestMajor; major++ {
		l, ok := layout.LocksOf(major)
		if !ok {
			t.Fatalf("version %d", major)
		}
		const base, head, first = 0x1000, 0x1100, 0x2000
		f := &fake{base: base, data: make([]byte, first+8*l.ProcSize)}
		r := &Reader{layout: l, mem: f, first: first, count: 3, deadline: time.Now().Add(time.Minute)}
		link := func(i int) uint64 { return at(r.address(i), l.ProcSyncRepLinks) }
		join := func(from, to uint64) { f.put64(at(from, l.NodeNext), to) }
		join(head, link(0))
		join(link(0), link(1))
		join(link(1), link(2))
		join(link(2), head)
		f.after = func() {
			if f.calls == 1 { // the reader has the address of the first commit, which leaves the queue now
				join(head, link(1))
				join(link(0), 0)
			}
		}
		queued := map[int]int{}
		if r.followQueue(head, 7, queued) || len(queued) != 1 {
			t.Errorf("version %d: %v of a queue that has changed", major, queued)
		}
		if !r.followQueue(head, 7, queued) || queued[1] != 7 || queued[2] != 7 {
			t.Errorf("version %d: %v", major, queued)
		}
	}
}
