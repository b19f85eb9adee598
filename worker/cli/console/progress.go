package console

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"pg_stat_backtrace/worker/naming/debuginfod"
)

// Progress shows how downloads go: on a terminal a bar that is drawn over and over, else lines.
type Progress struct {
	w        io.Writer
	terminal bool

	mu       sync.Mutex
	name     string // of the image whose debug file is fetched
	last     debuginfod.Event
	arrived  debuginfod.Event // with the bytes and the time of all that came since begin
	failures int
}

// NewProgress returns what shows the progress of downloads on w: a bar on a terminal, else lines.
func NewProgress(w io.Writer) *Progress { return &Progress{w: w, terminal: Terminal(w)} }

// Begin says which image the events are about from now on.
func (p *Progress) Begin(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name, p.last, p.arrived = name, debuginfod.Event{}, debuginfod.Event{}
	if p.terminal {
		p.print("\r\x1b[K" + p.label() + " asking ...")
	}
}

// Event shows one step of a download.
func (p *Progress) Event(e debuginfod.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = e
	if e.Kind == debuginfod.Arrived {
		p.arrived.Bytes += e.Bytes
		p.arrived.Took += e.Took
	}
	switch {
	case e.Kind == debuginfod.Failed, e.Kind == debuginfod.Paused, e.Kind == debuginfod.Missing:
		return // end says it, with what every server said
	case p.terminal:
		p.print("\r\x1b[K" + p.label() + bar(e))
	case e.Kind == debuginfod.Started && e.Total > 0:
		p.print(fmt.Sprintf("%s fetching %s from %s\n", p.label(), size(e.Total), e.Server))
	case e.Kind == debuginfod.Started:
		p.print(fmt.Sprintf("%s fetching from %s\n", p.label(), e.Server))
	case e.Kind == debuginfod.Progress:
		p.print(fmt.Sprintf("%s %s\n", p.label(), amount(e)))
	}
}

// End says how it has ended.
func (p *Progress) End(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal {
		p.print("\r\x1b[K")
	}
	switch {
	case err == nil && p.last.Kind == debuginfod.Arrived:
		p.print(fmt.Sprintf("%s fetched %s in %.1f s\n", p.label(), size(p.arrived.Bytes), p.arrived.Took.Seconds()))
	case err == nil:
		p.print(p.label() + " fetched\n")
	case errors.Is(err, debuginfod.ErrNotFound):
		p.print(p.label() + " no server has its debug file\n")
	default:
		p.failures++
		p.print(fmt.Sprintf("%s %v\n", p.label(), err))
	}
	p.name = ""
}

// Failed reports whether something could not be fetched for another reason than that no server has it.
func (p *Progress) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failures > 0
}

func (p *Progress) label() string { return fmt.Sprintf("%-24s", p.name) }

// print writes. An error of the terminal does not end the download.
func (p *Progress) print(s string) { _, _ = io.WriteString(p.w, s) }

// bar draws a bar of a download.
func bar(e debuginfod.Event) string {
	const cells = 20
	if e.Total <= 0 {
		return " " + amount(e)
	}
	done := int(cells * min(e.Bytes, e.Total) / e.Total)
	return fmt.Sprintf(" [%s%s] %s", strings.Repeat("#", done), strings.Repeat("-", cells-done), amount(e))
}

// amount says how much is there, and how fast it comes.
func amount(e debuginfod.Event) string {
	s := size(max(e.Bytes, 1))
	if e.Total > 0 {
		s = fmt.Sprintf("%3d %%  %s of %s", 100*min(e.Bytes, e.Total)/e.Total, s, size(e.Total))
	}
	if seconds := e.Took.Seconds(); seconds > 0 && e.Bytes > 0 {
		s += fmt.Sprintf("  %s/s", size(int64(float64(e.Bytes)/seconds)))
	}
	return s
}
