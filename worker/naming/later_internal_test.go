package naming

import (
	"encoding/binary"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/arch"
)

const (
	framesAddr, codeAddr = 0x10000, 0x20000
	pageSize             = 0x1000
)

// compiler is a process that compiles a function at codeAddr.
type compiler struct {
	mu     sync.Mutex
	frames [pageSize]byte
	code   [pageSize]byte
	gone   bool
	reads  int
}

// compile makes a function with a frame of this size.
func (c *compiler) compile(size, marker byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	section := []byte{20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0, 0x80 | 16, 1, 0, 0, 0, 0, 0}
	section = append(section, 28, 0, 0, 0, 28, 0, 0, 0)
	section = binary.LittleEndian.AppendUint64(section, codeAddr+0x100)
	section = binary.LittleEndian.AppendUint64(section, 0x80)
	section = append(section, 0, 0x0c, 7, size, 0, 0, 0, 0) // DW_CFA_def_cfa rsp
	c.frames, c.gone = [pageSize]byte{}, false
	copy(c.frames[0x200:], section)
	c.code[0x120] = marker
}

func (c *compiler) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
}

func (c *compiler) read(addr uint64, p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	switch {
	case c.gone:
		return 0, os.ErrInvalid
	case addr >= framesAddr && addr < framesAddr+pageSize:
		return copy(p, c.frames[addr-framesAddr:]), nil
	case addr >= codeAddr && addr < codeAddr+pageSize:
		return copy(p, c.code[addr-codeAddr:]), nil
	}
	return 0, os.ErrInvalid
}

func (c *compiler) maps() ([]process.Mapping, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := []process.Mapping{{
		Start: 0x8000, End: 0x9000, Perms: process.Read | process.Exec, Inode: 1, Path: "/usr/lib/libLLVM-14.so.1",
	}}
	if !c.gone {
		list = append(list, process.Mapping{Start: framesAddr, End: framesAddr + pageSize, Perms: process.Read},
			process.Mapping{Start: codeAddr, End: codeAddr + pageSize, Perms: process.Read | process.Exec})
	}
	return list, nil
}

// later reads a compiler as if it were this process.
func later(t *testing.T, s *LaterStore, c *compiler) *Later {
	t.Helper()
	stat, err := process.ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	s.Arch = arch.AMD64
	l := s.Of(os.Getpid(), stat.StartTime)
	l.read, l.maps = c.read, c.maps
	return l
}

// longAgo makes all looks at the process be of a long time ago.
func (l *Later) longAgo() {
	l.searched = time.Time{}
	l.store.next.Store(0)
	if p := l.images.Load(); p != nil {
		for _, i := range *p {
			i.checked.Store(0)
		}
	}
}

// sizes returns the frame sizes that candidates have at an address.
func sizes(t *testing.T, l *Later, addr uint64, search bool) (list []int64) {
	t.Helper()
	for _, c := range l.At(addr, search) {
		row, err := c.CFI.Row(addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Code.Code(addr, 8); err != nil {
			t.Error(err)
		}
		list = append(list, row.CFA.Offset)
	}
	return list
}

// TestLater checks that code is found, and is kept when it is freed or when other code takes its place. A process that
// has not changed must be read rarely. The test is not parallel: other tests read the same process, and only reads in
// the bubble may wait for each other.
func TestLater(t *testing.T) {
	synctest.Test(t, testLater)
}

// testLater runs while no time passes.
func testLater(t *testing.T) {
	t.Helper()
	var c compiler
	l := later(t, new(LaterStore), &c)
	const addr = codeAddr + 0x110
	check := func(what string, search bool, want ...int64) {
		t.Helper()
		got := sizes(t, l, addr, search)
		if len(got) != len(want) {
			t.Fatalf("%s: %v, want %v", what, got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
	}
	c.compile(24, 1)
	check("without a search", false)
	check("the first code", true, 24)
	if start, ok := l.Start(addr); !ok || start != codeAddr+0x100 || len(sizes(t, l, addr+pageSize, true)) > 0 {
		t.Errorf("the code begins at %#x", start)
	}
	reads := c.reads
	l.store.next.Store(0)
	check("at once again", true, 24)
	if c.reads > reads {
		t.Errorf("%d reads of what was read a moment ago", c.reads-reads)
	}
	l.longAgo()
	check("the same code", true, 24)
	if c.reads > reads+2 {
		t.Errorf("%d reads to compare one image", c.reads-reads)
	}
	c.compile(40, 2)
	l.longAgo()
	check("other code", true, 40, 24)
	c.free()
	l.longAgo()
	check("freed code", true, 40, 24)
	c.compile(24, 1)
	l.longAgo()
	check("the first code again", true, 40, 24)
	c.compile(24, 3)
	l.longAgo()
	check("the same frames with other code", true, 24, 40, 24)
	l.store.Drop(l)
	if check("dropped", false); l.store.size != 0 || len(l.store.all) != 0 {
		t.Errorf("the store has %d bytes", l.store.size)
	}
	l.startTime++
	l.longAgo()
	check("another process with the same id", true)
}

// TestLaterBounds checks that the images of one process and of all are bounded.
func TestLaterBounds(t *testing.T) {
	t.Parallel()
	var c compiler
	s := new(LaterStore)
	l := later(t, s, &c)
	for n := range 3 * maxLaterImages {
		c.compile(24, byte(n))
		l.longAgo()
		l.search(time.Now())
	}
	if n := len(*l.images.Load()); n != maxLaterImages {
		t.Errorf("%d images, want %d", n, maxLaterImages)
	}
	large := func(size int) *laterImage { return &laterImage{data: make([]byte, size), start: 1, end: 2} }
	many := make([]*Later, 2*maxLaterAll/maxLaterProcess)
	now := time.Now()
	for n := range many {
		many[n] = later(t, s, &c)
		many[n].keep([]*laterImage{large(maxLaterProcess / 2), large(maxLaterProcess/2 - 1), large(2)}, now.Add(time.Duration(n)))
		if s.size > maxLaterAll {
			t.Fatalf("%d bytes", s.size)
		}
	}
	if many[0].images.Load() != nil || len(*many[len(many)-1].images.Load()) != 2 {
		t.Error("the process that was read first is still there, or the last one has other images")
	}
}

// TestLaterWatch checks that code is read while no stack is unwound, as long as stacks have needed it lately.
func TestLaterWatch(t *testing.T) {
	t.Parallel()
	var c compiler
	s := new(LaterStore)
	l := later(t, s, &c)
	end := s.Watch()
	defer end()
	c.compile(24, 1)
	const addr = codeAddr + 0x110
	deadline := time.Now().Add(3 * time.Minute)
	for len(l.At(addr, true)) == 0 || l.wanted.Load() == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the first code was not found")
		}
	}
	c.compile(40, 2)
	for len(l.At(addr, false)) < 2 {
		if time.Now().After(deadline) {
			t.Fatal("other code was not read")
		}
		time.Sleep(time.Millisecond) // a pause between two looks
	}
	end()
	end()
	if s.watcher.kick != nil {
		t.Error("the watcher runs without callers")
	}
}
