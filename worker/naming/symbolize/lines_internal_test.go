package symbolize

import (
	"os"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/debuginfodtest"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/elfimage"
)

// breaking is a file whose reads panic once broken is set.
type breaking struct {
	*os.File
	broken bool
}

func (b *breaking) ReadAt(p []byte, off int64) (int, error) {
	if b.broken {
		panic("broken")
	}
	return b.File.ReadAt(p, off)
}

// TestLinesSurvive checks that a panic while a debug file is read is reported, and loses only that file's lines.
func TestLinesSurvive(t *testing.T) {
	p := debuginfodtest.Build(t, "../debuginfod/testdata/program.c")
	f, err := os.Open(p.Debug)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	r := &breaking{File: f}
	m, err := elfimage.Open(r, p.Debug)
	if err != nil {
		t.Fatal(err)
	}
	data, err := dwarf.New(m, dwarf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r.broken = true
	var told []string
	l := lines{
		data: data,
		warn: func(errs ...error) {
			for _, err := range errs {
				told = append(told, err.Error())
			}
		},
	}
	l.data = data
	for addr := range uint64(3) {
		if frames := l.frames(addr); frames != nil {
			t.Error(frames)
		}
	}
	if len(told) != 1 || !strings.Contains(told[0], "broken") {
		t.Errorf("%q", told)
	}
}

// TestLinesAreMadeOnce checks that an unusable debug file is opened only once.
func TestLinesAreMadeOnce(t *testing.T) {
	made := 0
	l := lines{answers: map[uint64]*answer{}, make: func() *dwarf.Data { made++; return nil }}
	for addr := range uint64(5) {
		if a := l.request(addr); a != nil {
			<-a.done
		}
		for busy := true; busy; { // until that goroutine has ended
			l.mu.Lock()
			busy = l.busy
			l.mu.Unlock()
		}
	}
	if made != 1 {
		t.Errorf("opened %d times", made)
	}
}
