package console

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"pg_stat_backtrace/worker/naming/debuginfod"
	"pg_stat_backtrace/worker/report/render"
)

// Progress shows the progress of downloads: on a terminal as a bar that is drawn again and again, otherwise as lines. It is safe
// for concurrent use.
type Progress struct {
	w        io.Writer
	terminal bool

	mu       sync.Mutex
	name     string // of the image whose debug file is downloaded
	last     debuginfod.Event
	arrived  debuginfod.Event // sum of the bytes and times of all downloads since Begin
	failures int              // downloads that failed, without files that no server has
}

// NewProgress returns a Progress that writes to w.
func NewProgress(w io.Writer) *Progress { return &Progress{w: w, terminal: Terminal(w)} }

// Begin notes that the download for an image begins. Events until the call of End are about this image.
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
		return // End prints the result, with the answers of all servers
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

// End prints the result of the download for the image. err is the error of the download.
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
		p.print(fmt.Sprintf("%s %s\n", p.label(), render.VisibleLine(err.Error())))
	}
	p.name = ""
}

// Failed reports whether a download failed. A file that no server has is not a failure.
func (p *Progress) Failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failures > 0
}

// label returns the name of the image in a column. Another user may have chosen the name.
func (p *Progress) label() string { return fmt.Sprintf("%-24s", render.VisibleLine(p.name)) }

// print writes s, and ignores errors, so that an error of the terminal does not end the download.
func (p *Progress) print(s string) { _, _ = io.WriteString(p.w, s) }

// bar returns the bar of a download, and its figures as text. Without a known total size, it has no bar.
func bar(e debuginfod.Event) string {
	const cells = 20
	if e.Total <= 0 {
		return " " + amount(e)
	}
	done := int(cells * min(e.Bytes, e.Total) / e.Total)
	return fmt.Sprintf(" [%s%s] %s", strings.Repeat("#", done), strings.Repeat("-", cells-done), amount(e))
}

// amount says how much has been downloaded, and how fast.
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
