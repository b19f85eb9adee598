package symbolize

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sync/atomic"
	"time"

	"pg_stat_backtrace/unwind/debugfile"
	"pg_stat_backtrace/unwind/elfimage"
)

// Remote is where debug files come from that are not installed on this host (package debuginfod). Neither method waits:
// an answer goes out with the names that are known now.
type Remote interface {
	// DebugFile returns the path of the debug file of a build if it has been fetched, else "".
	DebugFile(buildID string) string
	// RequestDebugFile has it fetched, beside, and calls done when that has ended: with true if it is there, else
	// with the time before which asking again is of no use.
	RequestDebugFile(buildID string, done func(arrived bool, again time.Time))
}

// remote is what a module has to do with a Remote.
type remote struct {
	source Remote
	// next is the module that takes this one's place since the debug file has arrived.
	next atomic.Pointer[Module]
	// again is when to ask for the file next, in Unix nanoseconds; 0: not at all, or a request is on its way.
	again atomic.Int64
	// wanted is the build-id of the file that was asked for last: the module's own, or that of its supplementary file.
	wanted atomic.Pointer[string]
	// arrived are the builds whose files have arrived once already: should one be gone, it is not asked for at once.
	arrived []string
}

// renewPause is after what time a file that was fetched and is gone is asked for once more.
const renewPause = time.Minute

// fetched opens the module's debug file if it has been fetched, and has it fetched if not. The caller closes it.
func (m *Module) fetched() (Fetched, bool) {
	r, id := &m.remote, m.Image.BuildID()
	if r.source == nil || id == "" || m.Image.HasSection(".debug_info") {
		return Fetched{}, false
	}
	if f, err := OpenFetched(r.source.DebugFile(id), m.Image); err == nil {
		return f, true
	}
	m.want(id)
	return Fetched{}, false
}

// want has a file fetched: now, or later if it had arrived before and is gone.
func (m *Module) want(id string) {
	m.remote.wanted.Store(&id)
	if slices.Contains(m.remote.arrived, id) {
		m.remote.again.Store(time.Now().Add(renewPause).UnixNano())
	} else {
		m.request(id)
	}
}

// supplement opens the file that dwz has moved parts of a debug file to: as it is installed, else as it was fetched. It
// is asked for if it is neither, and a later answer may have it.
func (m *Module) supplement(debug *elfimage.Image, path string, o debugfile.Options) (debugfile.Result, error) {
	r, err := debugfile.FindSupplement(debug, path, o)
	link, _ := debugfile.SupplementLink(debug)
	if err == nil || m.remote.source == nil {
		return r, err
	}
	if file := m.remote.source.DebugFile(link.ID); file != "" {
		fetched, e := debugfile.OpenSupplement(debug, file, debugfile.Options{Open: openDebugFile})
		if e == nil {
			return fetched, nil
		}
		err = e
	}
	m.want(link.ID)
	return r, err
}

// request has a file fetched. When it has arrived, the module's successor is made, by the goroutine that brings the
// news: no answer waits for its symbols to be read.
func (m *Module) request(id string) {
	if m.Sources.Wanted != nil {
		m.Sources.Wanted(m.Name, id)
	}
	m.remote.source.RequestDebugFile(id, func(arrived bool, again time.Time) {
		if !arrived {
			m.remote.again.Store(again.UnixNano())
			return
		}
		next := &Module{
			Image: m.Image, Name: m.Name, Arch: m.Arch, Path: m.Path, Root: m.Root, Sources: m.Sources,
			remote: remote{source: m.remote.source, arrived: append(slices.Clone(m.remote.arrived), id)},
		}
		table, _ := m.Table(nil)
		next.cfi.set(table)
		_, _ = next.SymbolTable(nil)
		m.remote.next.Store(next)
	})
}

// Latest returns the module, or what has taken its place since its debug file arrived. It also asks once more for a
// file that could not be had before, when the time for that has come.
func (m *Module) Latest() *Module {
	for next := m.remote.next.Load(); next != nil; next = m.remote.next.Load() {
		m = next
	}
	if at := m.remote.again.Load(); at != 0 && time.Now().UnixNano() >= at && m.remote.again.CompareAndSwap(at, 0) {
		m.request(*m.remote.wanted.Load())
	}
	return m
}

// Fetched is a debug file that a Remote has fetched.
type Fetched struct {
	// Image stays usable until Close.
	Image *elfimage.Image
	Path  string
	file  io.Closer
}

// Close closes the file.
func (f *Fetched) Close() error { return f.file.Close() }

// errOtherBuild means that a fetched file does not belong to the image.
var errOtherBuild = errors.New("file is of another build")

// OpenFetched opens a debug file that was fetched for an image, and makes sure that it is of the same build: whoever
// shares the cache may have put it there.
func OpenFetched(file string, m *elfimage.Image) (Fetched, error) {
	f, _, err := Candidate(file).File()
	if err != nil {
		return Fetched{}, err
	}
	debug, err := elfimage.Open(f, path.Base(file))
	if err == nil && (debug.BuildID() != m.BuildID() || debug.Machine() != m.Machine()) {
		err = fmt.Errorf("%s: %w: build-id %q, not %q", file, errOtherBuild, debug.BuildID(), m.BuildID())
	}
	if err != nil {
		_ = f.Close()
		return Fetched{}, err
	}
	return Fetched{Image: debug, Path: file, file: f}, nil
}
