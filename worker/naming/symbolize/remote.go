package symbolize

import (
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sync/atomic"
	"time"

	"pg_stat_backtrace/unwind/elfimage"
)

// Remote provides debug files that are not installed on this host (package debuginfod). Its methods do not wait for
// downloads: a capture returns the names that are known now.
type Remote interface {
	// DebugFile returns the path of the debug file of a build, or "" if it has not been downloaded.
	DebugFile(buildID string) string
	// RequestDebugFile downloads the file in the background and calls the callback done at the end. The argument
	// arrived is true if the file has arrived. Otherwise further requests also fail until the time in the argument
	// again.
	RequestDebugFile(buildID string, done func(arrived bool, again time.Time))
}

// remote is the state of a module's requests to a Remote.
type remote struct {
	source Remote
	// next is the module that replaces this one after the debug file has arrived.
	next atomic.Pointer[Module]
	// retryAt is the time of the next request, in Unix nanoseconds. It is 0 if none is planned or a request is active.
	retryAt atomic.Int64
	// wanted is the build-id of the last requested file: the module's debug file or its supplementary file.
	wanted atomic.Pointer[string]
	// arrived lists the builds whose files have already arrived. If such a file disappears, the next request waits
	// for renewPause.
	arrived []string
}

// renewPause is the delay before a downloaded file that has disappeared is requested again.
const renewPause = time.Minute

// fetched opens the module's debug file if it has been downloaded. Otherwise it requests the file and returns false.
// The caller closes the file.
func (m *Module) fetched() (Fetched, bool) {
	r, id := &m.remote, m.Image.BuildID()
	if r.source == nil || id == "" || m.Image.HasSection(".debug_info") {
		return Fetched{}, false
	}
	if f, err := OpenFetched(r.source.DebugFile(id), m.Image); err == nil {
		return f, true
	}
	m.requestOrDelay(id)
	return Fetched{}, false
}

// requestOrDelay requests a file: now, or after renewPause if it arrived before and has disappeared.
func (m *Module) requestOrDelay(id string) {
	m.remote.wanted.Store(&id)
	if slices.Contains(m.remote.arrived, id) {
		m.remote.retryAt.Store(time.Now().Add(renewPause).UnixNano())
	} else {
		m.request(id)
	}
}

// supplement opens the supplementary file, to which dwz has moved parts of a debug file. It opens the installed file,
// or else the downloaded file. If there is neither, supplement requests the file for later captures and returns an
// error.
func (m *Module) supplement(debug *elfimage.Image, path string, o elfimage.SearchOptions) (elfimage.FoundFile, error) {
	r, err := elfimage.FindSupplement(debug, path, o)
	link, _ := elfimage.SupplementLink(debug)
	if err == nil || m.remote.source == nil {
		return r, err
	}
	if file := m.remote.source.DebugFile(link.ID); file != "" {
		fetched, e := elfimage.OpenSupplement(debug, file, elfimage.SearchOptions{Open: OpenOwn})
		if e == nil {
			return fetched, nil
		}
		err = e
	}
	m.requestOrDelay(link.ID)
	return r, err
}

// request downloads a file. When the file has arrived, the download's goroutine makes the module's successor and reads
// its symbols, so that no capture waits for them.
func (m *Module) request(id string) {
	if m.Sources.Wanted != nil {
		m.Sources.Wanted(m.Name, id)
	}
	m.remote.source.RequestDebugFile(id, func(arrived bool, again time.Time) {
		if !arrived {
			m.remote.retryAt.Store(again.UnixNano())
			return
		}
		next := &Module{
			Image: m.Image, Name: m.Name, Arch: m.Arch, Path: m.Path, Root: m.Root, User: m.User, Sources: m.Sources,
			remote: remote{source: m.remote.source, arrived: append(slices.Clone(m.remote.arrived), id)},
		}
		table, _ := m.Table(nil)
		next.cfi.set(table)
		_, _ = next.SymbolTable(nil)
		m.remote.next.Store(next)
	})
}

// Latest returns the module, or its successor after the debug file has arrived. If a failed request may be repeated now
// (retryAt), Latest requests the file again.
func (m *Module) Latest() *Module {
	for next := m.remote.next.Load(); next != nil; next = m.remote.next.Load() {
		m = next
	}
	if at := m.remote.retryAt.Load(); at != 0 && time.Now().UnixNano() >= at && m.remote.retryAt.CompareAndSwap(at, 0) {
		m.request(*m.remote.wanted.Load())
	}
	return m
}

// Fetched is a debug file that a Remote has downloaded.
type Fetched struct {
	// Image is usable until Close.
	Image *elfimage.Image
	Path  string
	file  io.Closer
}

// Close closes the file.
func (f *Fetched) Close() error { return f.file.Close() }

// errOtherBuild means that a file does not belong to the image.
var errOtherBuild = errors.New("file is of another build")

// OpenFetched opens a downloaded debug file and verifies that it belongs to the same build as the image. Other users
// of the cache may have put another file there.
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
