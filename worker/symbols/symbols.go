// Package symbols says where the names of a stack come from: for each image of a process, or a file, what symbols and
// debug information there are, how many of its functions have a name with them, and what to install or to configure to
// get the rest.
//
// It looks as captures look (package capture), so that what it says is what a stack will show. It stops nothing, and
// asks no network: debug files that were fetched are found through an interface.
package symbols

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"pg_stat_backtrace/unwind/debugfile"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/symbolize"
)

// ErrNoImages means that a process runs nothing that could have names.
var ErrNoImages = errors.New("no image: a kernel thread, or a process that is ending")

// Fetched is where debug files are that were fetched from a debuginfod server.
type Fetched interface {
	// DebugFile returns the path of the debug file of a build, "" if it has not been fetched.
	DebugFile(buildID string) string
}

// Image is what is known of one image.
type Image struct {
	Name    string `json:"name"`
	Path    string `json:"path"`
	BuildID string `json:"build_id,omitempty"`
	// Functions is the number of functions that the call frame information lists (0: the image has none), Named that of
	// those with a name.
	Functions int `json:"functions"`
	Named     int `json:"named"`
	// Derived is the number of functions without a symbol that get a name from the code of a stripped server. Noted is the
	// number of other functions and parts that get a note.
	Derived int `json:"derived,omitempty"`
	Noted   int `json:"noted,omitempty"`
	// Lines says whether there are source files and line numbers.
	Lines bool `json:"lines"`
	// Symtab, DynSym and DebugData say which symbol tables the image itself has: the full one, that of exported
	// functions, and the compressed .gnu_debugdata.
	Symtab    bool `json:"symtab"`
	DynSym    bool `json:"dynsym"`
	DebugData bool `json:"debugdata"`
	// GoTable says that there is the table of names and lines that Go's linker puts into every program.
	GoTable bool `json:"gopclntab,omitempty"`
	// DebugFile is the installed debug file, HowFound the way to it (build-id or debuglink), Supplement the file that dwz
	// moved parts of it to, FetchedFile the one in the debuginfod cache; "" if there is none. MissingSupplement is the
	// build-id of the supplementary file that one of them needs and that is nowhere.
	DebugFile   string `json:"debug_file,omitempty"`
	HowFound    string `json:"how_found,omitempty"`
	Supplement  string `json:"supplement,omitempty"`
	FetchedFile string `json:"fetched_file,omitempty"`

	MissingSupplement string `json:"missing_supplement,omitempty"`
	// Deleted: the file was removed or replaced since the process mapped it. InMemory: it cannot be read, only what is
	// mapped of it.
	Deleted  bool `json:"deleted,omitempty"`
	InMemory bool `json:"in_memory,omitempty"`
	// Problems say why something that was found is not used.
	Problems []string `json:"problems,omitempty"`
	// Package is what the image was installed from, DebugPackage what its debug file is in; "" if that is not known.
	Package      string `json:"package,omitempty"`
	DebugPackage string `json:"debug_package,omitempty"`

	root string
}

// Complete reports whether there is nothing more to get: there is full debug information, which has lines too.
// Functions that have no name even so, as some written in assembler, never get one.
func (m *Image) Complete() bool {
	return m.Lines && m.MissingSupplement == "" &&
		(m.Symtab || m.DebugFile != "" || m.FetchedFile != "" || m.Named == m.Functions)
}

// Share is the part of the functions that has a name, in percent, and never 100 unless all have one.
func (m *Image) Share() float64 {
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

// virtual reports whether the image is at no path: the vDSO.
func (m *Image) virtual() bool { return !strings.HasPrefix(m.Path, "/") }

// Options say where to look for debug files; the zero value is the default.
type Options struct {
	// Fetched has the files that were fetched; nil if there is no such place.
	Fetched Fetched
	// DebugDirs are the folders below which separate debug files are looked for; none means /usr/lib/debug.
	DebugDirs []string
}

// OfProcess returns the images of a process, in the order of their addresses. The error is
// ErrNoImages, or that of looking at the process: it is gone, or another user's (procfs.ErrGone, procfs.ErrDenied).
func OfProcess(pid int, o Options) ([]Image, error) {
	found, err := symbolize.Images(pid, o.DebugDirs)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, ErrNoImages
	}
	all := make([]Image, 0, len(found))
	for i := range found {
		all = append(all, inspect(&found[i], o.Fetched))
	}
	return all, nil
}

// OfFile looks at an ELF file.
func OfFile(file string, o Options) (Image, error) {
	m, done, err := symbolize.OpenImage(file, o.DebugDirs)
	if err != nil {
		return Image{}, err
	}
	defer func() { _ = done() }()
	return inspect(&m, o.Fetched), nil
}

// inspect looks at one image.
func inspect(m *symbolize.Image, fetched Fetched) Image {
	out := Image{
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
		if d.How != debugfile.ByDebugData {
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

// installed finds the debug file on this host, and where it was looked for.
func (m *Image) installed(img *symbolize.Image) (debugfile.Result, debugfile.Options, bool) {
	for _, o := range img.DebugOptions() {
		d, err := debugfile.Find(img.Image, img.Path, o)
		if err != nil {
			if !errors.Is(err, debugfile.ErrNone) || strings.Contains(err.Error(), "\n") {
				m.Problems = append(m.Problems, err.Error()) // there is something, and it is not used
			}
			continue
		}
		for _, skipped := range d.Skipped {
			m.Problems = append(m.Problems, skipped.Error())
		}
		if d.How != debugfile.ByDebugData {
			m.DebugFile, m.HowFound = d.Path, string(d.How)
		}
		return d, o, true
	}
	return debugfile.Result{}, debugfile.Options{}, false
}

// fetched opens the debug file that was fetched.
func (m *Image) fetched(img *symbolize.Image, from Fetched) (symbolize.Fetched, bool) {
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

// findSupplement finds the supplementary file of a debug file, on this host or among those that were fetched.
func (m *Image) findSupplement(debug *elfimage.Image, at string, o debugfile.Options, from Fetched) {
	link, ok := debugfile.SupplementLink(debug)
	if !ok {
		return
	}
	s, err := debugfile.FindSupplement(debug, at, o)
	if err != nil && from != nil {
		if file := from.DebugFile(link.ID); file != "" {
			s, err = debugfile.OpenSupplement(debug, file, debugfile.Options{Open: o.Open})
		}
	}
	if err != nil {
		m.MissingSupplement = link.ID
		what := "is not on this host: names are missing"
		if !errors.Is(err, debugfile.ErrNone) {
			what = err.Error()
		}
		m.Problems = append(m.Problems, fmt.Sprintf("the supplementary file %s (build-id %s) %s", link.Name, link.ID, what))
		return
	}
	m.Supplement, m.MissingSupplement = s.Path, ""
	_ = s.Close()
}
