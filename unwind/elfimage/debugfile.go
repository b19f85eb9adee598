package elfimage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Errors that callers branch on. They are wrapped with the image's name. ErrMismatch is also wrapped with the names of
// the files that do not belong to the image.
var (
	// ErrNone means that no place has separate debug information that can be read.
	ErrNone = errors.New("no separate debug file")
	// ErrMismatch means that all debug information found is of another build.
	ErrMismatch = errors.New("debug file is of another build")
)

// FoundHow is the method by which debug information was found.
type FoundHow string

// The methods, in the order in which they are tried.
const (
	ByBuildID   FoundHow = "build-id"
	ByDebugLink FoundHow = "debuglink"
	ByDebugData FoundHow = "debugdata"
	// BySupplement is the link from a debug file to the file into which dwz moved the data that several files share.
	BySupplement FoundHow = "supplement"
	// BySplit is the name of a split file (.dwo).
	BySplit FoundHow = "split"
)

// DefaultFolder is where distributions install debug files.
const DefaultFolder = "/usr/lib/debug"

// File is an open file that can be read at any position.
type File interface {
	io.ReaderAt
	io.Closer
}

// SearchOptions define where to search.
type SearchOptions struct {
	// Folders are searched in turn; nil means DefaultFolder.
	Folders []string
	// Root is prepended to every path, including the image's own path. It is the root directory of another mount
	// namespace; "" is the caller's own root.
	Root string
	// Open opens a file by its path, which includes Root. If the file does not exist, the error must be fs.ErrNotExist.
	// All other errors are reported. The paths come from the image, from its debug file and from the layout of Folders.
	// If another user may have chosen the image, the paths may lead to pipes, devices and other users' files, and Open
	// must refuse these.
	Open func(path string) (File, error)
}

// FoundFile is debug information that belongs to the image.
type FoundFile struct {
	// Image can be used until Close.
	Image *Image
	// Path is the file's path, below Root. For ByDebugData it is the path of the image itself.
	Path string
	// How is the method by which the file was found.
	How FoundHow
	// Skipped has an error for each file that was tried before this one and not used, because the file is of another
	// build or unreadable.
	Skipped []error

	file io.Closer
}

// Close closes the file that the image is read from.
func (r *FoundFile) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// FindDebugFile searches for the separate debug information of an image. path is the image's path below
// SearchOptions.Root; "" if the image has no path, like the vDSO. The error is ErrNone or ErrMismatch.
func FindDebugFile(m *Image, path string, o SearchOptions) (FoundFile, error) {
	s := search{options: o, image: m, path: path}
	for _, c := range s.candidates() {
		if r, ok := s.try(c); ok {
			return r, nil
		}
	}
	if r, ok := s.debugData(); ok {
		return r, nil
	}
	return FoundFile{}, s.failure()
}

// candidate is a place where debug information may be.
type candidate struct {
	path string
	how  FoundHow
	// check verifies that the file belongs to the image; nil: equal build-ids are sufficient.
	check func(File, *Image) error
}

// search is one call of FindDebugFile.
type search struct {
	options    SearchOptions
	image      *Image
	path       string
	mismatched bool
	skipped    []error
}

// candidates returns the places where a debug file may be, the best first.
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
	check := func(f File, _ *Image) error { return checkCRC(f, crc) }
	for _, p := range linkPaths(s.path, name, folders) {
		all = append(all, candidate{path: p, how: ByDebugLink, check: check})
	}
	return all
}

// try opens a candidate and verifies that it belongs to the image.
func (s *search) try(c candidate) (FoundFile, bool) {
	f, err := s.options.open(c.path)
	if errors.Is(err, os.ErrNotExist) {
		return FoundFile{}, false
	}
	if err != nil {
		return s.skip(c.path, err)
	}
	m, err := Open(f, c.path)
	if err == nil {
		err = s.belongs(f, m, c)
	}
	if err != nil {
		_ = f.Close()
		return s.skip(c.path, err)
	}
	return FoundFile{Image: m, Path: c.path, How: c.how, Skipped: s.skipped, file: f}, true
}

// belongs verifies that a candidate belongs to the image. It compares the build-id first, because this takes little
// time.
func (s *search) belongs(f File, m *Image, c candidate) error {
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

// skip records why a candidate was not used.
func (s *search) skip(path string, err error) (FoundFile, bool) {
	s.mismatched = s.mismatched || errors.Is(err, ErrMismatch)
	s.skipped = append(s.skipped, fmt.Errorf("%s: %w", path, err))
	return FoundFile{}, false
}

// failure returns the error for a search that found no usable file. It wraps the reasons why candidates were not used.
func (s *search) failure() error {
	if s.mismatched {
		return fmt.Errorf("%s: %w", s.image.Name(), errors.Join(s.skipped...))
	}
	return fmt.Errorf("%s: %w", s.image.Name(), errors.Join(append([]error{ErrNone}, s.skipped...)...))
}

// folders returns the configured folders or the default.
func (o *SearchOptions) folders() []string {
	if o.Folders == nil {
		return []string{DefaultFolder}
	}
	return o.Folders
}

// open opens a file below the root.
func (o *SearchOptions) open(path string) (File, error) {
	if o.Root != "" {
		path = filepath.Join(o.Root, filepath.Join("/", path))
	}
	if o.Open == nil {
		return nil, errNoOpen
	}
	return o.Open(path)
}

// errNoOpen means that the caller did not set SearchOptions.Open.
var errNoOpen = errors.New("no function to open files")
