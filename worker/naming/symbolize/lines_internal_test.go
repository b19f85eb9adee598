package symbolize

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/dwarf"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/host"
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
	p := imagetest.BuildSplit(t, "../debuginfod/testdata/program.c")
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
		if frames, certain := l.frames(addr); frames != nil || certain {
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

// TestPanicInDebugFile checks that a panic while a debug file is opened is reported once, and that every lookup ends
// without a result.
func TestPanicInDebugFile(t *testing.T) {
	reported := make(chan error, 10)
	l := lines{
		answers: map[uint64]*answer{}, make: func() *dwarf.Data { panic("broken") },
		warn: func(errs ...error) { reported <- errors.Join(errs...) },
	}
	for addr := range uint64(5) {
		if calls, final := l.at(addr, nil); calls != nil || !final {
			t.Errorf("%#x: %v, final %v", addr, calls, final)
		}
	}
	var failed *host.Panic
	if err := <-reported; !errors.As(err, &failed) || len(reported) != 0 {
		t.Errorf("got %v, and %d further reports", err, len(reported))
	}
}

// TestHungDebugFile checks that a debug file whose reads do not end costs each caller its time limit only, and the worker
// one goroutine and a bounded number of lookups. After the reads have ended, lookups have results again.
func TestHungDebugFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		l := lines{answers: map[uint64]*answer{}, make: func() *dwarf.Data { <-release; return nil }}
		ask := func(addr uint64) bool {
			late := Deadline{After: time.Second}
			defer late.Stop()
			_, final := l.at(addr, &late)
			return final
		}
		began := time.Now()
		if ask(0) {
			t.Error("an answer without a read")
		}
		before := runtime.NumGoroutine()
		for addr := range uint64(10) {
			if ask(addr) {
				t.Errorf("%#x: an answer without a read", addr)
			}
		}
		if took := time.Since(began); took != 11*time.Second {
			t.Errorf("11 lookups with a time limit of a second took %s", took)
		}
		for addr := range uint64(2 * maxAnswers) {
			l.request(addr)
		}
		if ask(3*maxAnswers) || len(l.answers) != maxAnswers || len(l.pending) > maxAnswers {
			t.Errorf("%d answers and %d pending lookups are kept", len(l.answers), len(l.pending))
		}
		if n := runtime.NumGoroutine() - before; n > 1 {
			t.Errorf("%d further goroutines", n)
		}
		close(release)
		synctest.Wait()
		if !ask(3 * maxAnswers) {
			t.Error("no answer after the reads have ended")
		}
	})
}
