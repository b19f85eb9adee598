package doctor

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// ErrNoImages means that a process runs no code that could have names.
var ErrNoImages = errors.New("no image: a kernel thread, or a process that is ending")

// Fetched provides the debug files that were downloaded from a debuginfod server.
type Fetched interface {
	// DebugFile returns the path of the debug file of a build, or "" if it has not been downloaded.
	DebugFile(buildID string) string
}

// SymbolImage describes one image.
type SymbolImage struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	BuildID string `json:"build_id,omitempty"`
	// Functions counts the functions in the call frame information (0: the image has none), and Named counts the
	// functions among them that have a name.
	Functions int `json:"functions"`
	Named     int `json:"named"`
	// Derived is the number of functions without a symbol that get a name from the code of a stripped server. Noted is the
	// number of other functions and parts that get a note.
	Derived int `json:"derived,omitempty"`
	Noted   int `json:"noted,omitempty"`
	// Lines reports whether there are source files and line numbers.
	Lines bool `json:"lines"`
	// Symtab, DynSym and DebugData report which symbol tables the image itself has: the full one, the one with
	// exported functions, and the compressed .gnu_debugdata.
	Symtab    bool `json:"symtab"`
	DynSym    bool `json:"dynsym"`
	DebugData bool `json:"debugdata"`
	// GoTable reports whether the image has the table of names and lines that Go's linker adds to every program.
	GoTable bool `json:"gopclntab,omitempty"`
	// DebugFile is the installed debug file, and HowFound how it was found (build-id or debuglink). Supplement is the
	// file to which dwz moved parts of it. FetchedFile is the file in the debuginfod cache. Each is "" if there is
	// none. MissingSupplement is the build-id of a supplementary file that one of them needs and that was not found.
	DebugFile   string `json:"debug_file,omitempty"`
	HowFound    string `json:"how_found,omitempty"`
	Supplement  string `json:"supplement,omitempty"`
	FetchedFile string `json:"fetched_file,omitempty"`

	MissingSupplement string `json:"missing_supplement,omitempty"`
	// Deleted means that the file was removed or replaced after the process mapped it. InMemory means that the file
	// cannot be read, and only its mapped parts are known.
	Deleted  bool `json:"deleted,omitempty"`
	InMemory bool `json:"in_memory,omitempty"`
	// Problems has the reasons for which found files are not used.
	Problems []string `json:"problems,omitempty"`
	// Package is the package of the image, and DebugPackage the package of its debug file. Each is "" if it is
	// unknown.
	Package      string `json:"package,omitempty"`
	DebugPackage string `json:"debug_package,omitempty"`

	root string
}

// Complete reports whether there is nothing more to get: the image has full debug information with lines. With full
// debug information, functions without a name, such as some in assembly, never get a name.
func (m *SymbolImage) Complete() bool {
	return m.Lines && m.MissingSupplement == "" &&
		(m.Symtab || m.DebugFile != "" || m.FetchedFile != "" || m.Named == m.Functions)
}

// Share returns the percentage of the functions that have a name. It is at most 99.9 unless all functions have a name,
// and 0 for an image without functions.
func (m *SymbolImage) Share() float64 {
	const almost = 99.9
	if m.Functions == 0 {
		return 0
	}
	share := 100 * float64(m.Named) / float64(m.Functions)
	if m.Named < m.Functions {
		share = min(share, almost)
	}
	return share
}

// virtual reports whether the image has no file: the vDSO.
func (m *SymbolImage) virtual() bool { return !strings.HasPrefix(m.Path, "/") }

// SymbolOptions configures the search for debug files. The zero value is the default.
type SymbolOptions struct {
	// Fetched has the downloaded files, or is nil.
	Fetched Fetched
	// DebugDirs are the folders to search for separate debug files. None means /usr/lib/debug.
	DebugDirs []string
}

// SymbolsOf returns the images of a process, in the order of their addresses. The error is ErrNoImages, or the error of
// reading the process, such as process.ErrGone or process.ErrDenied.
func SymbolsOf(pid int, o SymbolOptions) ([]SymbolImage, error) {
	found, err := symbolize.Images(pid, o.DebugDirs)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, ErrNoImages
	}
	all := make([]SymbolImage, 0, len(found))
	for i := range found {
		all = append(all, inspect(&found[i], o.Fetched))
	}
	return all, nil
}

// SymbolsOfFile describes an ELF file like SymbolsOf describes an image.
func SymbolsOfFile(file string, o SymbolOptions) (SymbolImage, error) {
	m, done, err := symbolize.OpenImage(file, o.DebugDirs)
	if err != nil {
		return SymbolImage{}, err
	}
	defer func() { _ = done() }()
	return inspect(&m, o.Fetched), nil
}

// inspect describes one image.
func inspect(m *symbolize.Image, fetched Fetched) SymbolImage {
	out := SymbolImage{
		Name: path.Base(m.Path), Path: m.Path, BuildID: m.BuildID(), Deleted: m.Deleted, InMemory: m.InMemory,
		Symtab: m.HasSection(".symtab"), DynSym: m.HasSection(".dynsym"), DebugData: m.HasSection(".gnu_debugdata"),
		GoTable: m.GoFunctions() > 0, root: m.Root(),
	}
	out.Lines = out.GoTable || m.HasSection(".debug_line")
	var debug []*elfimage.Image
	own := m.DebugOptions()[len(m.DebugOptions())-1]
	if d, where, ok := out.installed(m); ok {
		defer func() { _ = d.Close() }()
		debug = append(debug, d.Image)
		if d.How != elfimage.ByDebugData {
			out.findSupplement(d.Image, d.Path, where, fetched)
		}
	}
	if d, ok := out.fetched(m, fetched); ok {
		defer func() { _ = d.Close() }()
		debug = append(debug, d.Image)
		out.findSupplement(d.Image, d.Path, own, fetched)
	}
	if len(debug) == 0 && m.HasSection(".debug_info") {
		out.findSupplement(m.Image, m.Path, m.DebugOptions()[0], fetched)
	}
	for _, d := range debug {
		out.Lines = out.Lines || d.HasSection(".debug_line")
	}
	var err error
	if out.Named, out.Functions, err = m.Coverage(debug...); err != nil {
		out.Problems = append(out.Problems, err.Error())
	}
	out.Derived, out.Noted = m.Derived(debug...)
	return out
}

// installed finds the debug file on this host. It also returns the search options with which it was found.
func (m *SymbolImage) installed(img *symbolize.Image) (elfimage.FoundFile, elfimage.SearchOptions, bool) {
	for _, o := range img.DebugOptions() {
		d, err := elfimage.FindDebugFile(img.Image, img.Path, o)
		if err != nil {
			if !errors.Is(err, elfimage.ErrNone) || strings.Contains(err.Error(), "\n") {
				m.Problems = append(m.Problems, err.Error()) // a debug file was found but cannot be used
			}
			continue
		}
		for _, skipped := range d.Skipped {
			m.Problems = append(m.Problems, skipped.Error())
		}
		if d.How != elfimage.ByDebugData {
			m.DebugFile, m.HowFound = d.Path, string(d.How)
		}
		return d, o, true
	}
	return elfimage.FoundFile{}, elfimage.SearchOptions{}, false
}

// fetched opens the downloaded debug file of the image. It returns false if there is none, or if it does not fit.
func (m *SymbolImage) fetched(img *symbolize.Image, from Fetched) (symbolize.Fetched, bool) {
	if from == nil || m.BuildID == "" {
		return symbolize.Fetched{}, false
	}
	file := from.DebugFile(m.BuildID)
	if file == "" {
		return symbolize.Fetched{}, false
	}
	d, err := symbolize.OpenFetched(file, img.Image)
	if err != nil {
		m.Problems = append(m.Problems, err.Error())
		return d, false
	}
	m.FetchedFile = file
	return d, true
}

// findSupplement finds the supplementary file of a debug file, on this host or among the downloaded files.
func (m *SymbolImage) findSupplement(debug *elfimage.Image, at string, o elfimage.SearchOptions, from Fetched) {
	link, ok := elfimage.SupplementLink(debug)
	if !ok {
		return
	}
	s, err := elfimage.FindSupplement(debug, at, o)
	if err != nil && from != nil {
		if file := from.DebugFile(link.ID); file != "" {
			s, err = elfimage.OpenSupplement(debug, file, elfimage.SearchOptions{Open: symbolize.OpenOwn})
		}
	}
	if err != nil {
		m.MissingSupplement = link.ID
		what := "is not on this host: names are missing"
		if !errors.Is(err, elfimage.ErrNone) {
			what = err.Error()
		}
		m.Problems = append(m.Problems, fmt.Sprintf("the supplementary file %s (build-id %s) %s", link.Name, link.ID, what))
		return
	}
	m.Supplement, m.MissingSupplement = s.Path, ""
	_ = s.Close()
}
