package symbolize

import (
	"debug/elf"
	"os"
	"testing"

	"pg_stat_backtrace/internal/imagetest"
	"pg_stat_backtrace/unwind/golang"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// TestLateGoTable checks that a frame gets its name from Go's table in a later capture if the table was not read in time
// for the first one.
func TestLateGoTable(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := &Module{Image: imagetest.OpenedImage(t, exe), Sources: &Sources{}}
	m.cfi.set(nil)
	m.Symbols.set(nil)
	table, err := golang.NewTable(m.Image)
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan struct{})
	m.golang.start(func(errs ...error) { t.Error(errs) }, func() *golang.Table {
		<-answer
		return table
	})
	var addr uint64
	for _, s := range m.Image.Segments() {
		if s.Flags&elf.PF_X != 0 {
			addr = s.Vaddr + s.Memsz/2
		}
	}
	f, err := table.Find(addr)
	if err != nil || f.Name == "" {
		t.Fatalf("%+v, %v", f, err)
	}
	name := func(late *Deadline) string {
		frames := m.AppendFrames(nil, &backtrace.Frame{}, f.Entry, nil, late)
		return frames[len(frames)-1].Function
	}
	if got := name(&Deadline{}); got != "" {
		t.Errorf("%q before the table was read", got)
	}
	close(answer)
	if got := name(nil); got != f.Name {
		t.Errorf("%q, not %q", got, f.Name)
	}
}
