// Package debugfile finds the separate debug information of an ELF image: a file that a distribution's debug package,
// or objcopy, has put elsewhere.
//
// The places and their order are GDB's ("Separate Debug Files" in its manual). First comes the build-id under a list
// of folders. Then comes the name in .gnu_debuglink, beside the file and under those folders. Last comes the small
// symbol table in .gnu_debugdata of the file itself. A file is used only if it is proved to belong to the image: the
// build-id must be the image's, and a debug link's checksum must match. Files that do not match are reported.
//
// The package must not know of processes, DWARF or symbols. It does not use the network.
package debugfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"pg_stat_backtrace/unwind/elfimage"
)

// Errors that callers branch on. They are wrapped with the image's name. ErrMismatch is also wrapped with the files
// found.
var (
	// ErrNone means that no place has separate debug information that can be read.
	ErrNone = errors.New("no separate debug file")
	// ErrMismatch means that all debug information found is of another build.
	ErrMismatch = errors.New("debug file is of another build")
)

// How is the method by which debug information was found.
type How string

// The methods, in the order in which they are tried.
const (
	ByBuildID   How = "build-id"
	ByDebugLink How = "debuglink"
	ByDebugData How = "debugdata"
	// BySupplement is the link from a debug file to the file that dwz created for common data of several files.
	BySupplement How = "supplement"
	// BySplit is the name of a split file (.dwo).
	BySplit How = "split"
)

// DefaultFolder is where distributions install debug files.
const DefaultFolder = "/usr/lib/debug"

// File is an open file.
type File interface {
	io.ReaderAt
	io.Closer
}

// Options define where to search.
type Options struct {
	// Folders are searched in turn; nil means DefaultFolder.
	Folders []string
	// Root is prepended to every path, including the image's own: the root directory of another mount namespace. ""
	// is the caller's own root.
	Root string
	// Open opens a file by its path, which includes Root. The error fs.ErrNotExist means that the file does not exist.
	// All other errors are reported. The paths come from the image, from its debug file and from the layout of Folders.
	// If another user may have chosen the image, Open must allow for pipes, devices and files of others there.
	Open func(path string) (File, error)
}

// Result is debug information that belongs to the image.
type Result struct {
	// Image stays usable until Close.
	Image *elfimage.Image
	// Path is the file's path, below Root. For ByDebugData it is the path of the image itself.
	Path string
	// How it was found.
	How How
	// Skipped are the files at earlier places that were not used, because they are of another build or unreadable.
	Skipped []error

	file io.Closer
}

// Close closes the file that the image is read from.
func (r *Result) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// Find searches the separate debug information of an image. path is the image's path below Options.Root, or "" if it
// has none, like the vDSO. The error is ErrNone or ErrMismatch.
func Find(m *elfimage.Image, path string, o Options) (Result, error) {
	s := search{options: o, image: m, path: path}
	for _, c := range s.candidates() {
		if r, ok := s.try(c); ok {
			return r, nil
		}
	}
	if r, ok := s.debugData(); ok {
		return r, nil
	}
	return Result{}, s.failure()
}

// candidate is a place where debug information may be.
type candidate struct {
	path string
	how  How
	// check verifies that the file belongs to the image; nil means that equal build-ids are enough.
	check func(File, *elfimage.Image) error
}

// search is one call of Find.
type search struct {
	options    Options
	image      *elfimage.Image
	path       string
	mismatched bool
	skipped    []error
}

// candidates lists the files, best first and each once.
func (s *search) candidates() []candidate {
	folders := s.options.folders()
	all := make([]candidate, 0, 3*len(folders)+2)
	for _, folder := range folders {
		if p, ok := buildIDPath(folder, s.image.BuildID()); ok {
			all = append(all, candidate{path: p, how: ByBuildID})
		}
	}
	name, crc, ok := s.image.DebugLink()
	if !ok || !plainName(name) {
		return all
	}
	check := func(f File, _ *elfimage.Image) error { return checkCRC(f, crc) }
	for _, p := range linkPaths(s.path, name, folders) {
		all = append(all, candidate{path: p, how: ByDebugLink, check: check})
	}
	return all
}

// try opens a candidate and verifies that it belongs to the image.
func (s *search) try(c candidate) (Result, bool) {
	f, err := s.options.open(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return Result{}, false
	}
	if err != nil {
		return s.skip(c.path, err)
	}
	m, err := elfimage.Open(f, c.path)
	if err == nil {
		err = s.belongs(f, m, c)
	}
	if err != nil {
		_ = f.Close()
		return s.skip(c.path, err)
	}
	return Result{Image: m, Path: c.path, How: c.how, Skipped: s.skipped, file: f}, true
}

// belongs verifies that a candidate belongs to the image: first by its build-id, which is cheap.
func (s *search) belongs(f File, m *elfimage.Image, c candidate) error {
	if m.BuildID() != s.image.BuildID() {
		return fmt.Errorf("%w: build-id %q, not %q", ErrMismatch, m.BuildID(), s.image.BuildID())
	}
	if m.Machine() != s.image.Machine() {
		return fmt.Errorf("%w: for %v, not %v", ErrMismatch, m.Machine(), s.image.Machine())
	}
	if c.check != nil {
		return c.check(f, m)
	}
	return nil
}

// skip remembers why a candidate was not used.
func (s *search) skip(path string, err error) (Result, bool) {
	s.mismatched = s.mismatched || errors.Is(err, ErrMismatch)
	s.skipped = append(s.skipped, fmt.Errorf("%s: %w", path, err))
	return Result{}, false
}

// failure returns the error if nothing was found, with the unsuitable files.
func (s *search) failure() error {
	if s.mismatched {
		return fmt.Errorf("%s: %w", s.image.Name(), errors.Join(s.skipped...))
	}
	return fmt.Errorf("%s: %w", s.image.Name(), errors.Join(append([]error{ErrNone}, s.skipped...)...))
}

// folders returns the configured folders or the default.
func (o *Options) folders() []string {
	if o.Folders == nil {
		return []string{DefaultFolder}
	}
	return o.Folders
}

// open opens a file below the root.
func (o *Options) open(path string) (File, error) {
	if o.Root != "" {
		path = filepath.Join(o.Root, filepath.Join("/", path))
	}
	if o.Open == nil {
		return nil, errNoOpen
	}
	return o.Open(path)
}

// errNoOpen means that the caller did not set Options.Open.
var errNoOpen = errors.New("no function to open files")
