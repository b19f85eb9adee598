package functrace

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/naming/symbolize"
)

// A FindError means that a function cannot be traced. It has the reason and, if there is one, a hint.
type FindError struct {
	Name, Reason, Hint string
}

func (e *FindError) Error() string {
	text := fmt.Sprintf("cannot trace %q: %s", e.Name, e.Reason)
	if e.Hint != "" {
		text += "\n" + e.Hint
	}
	return text
}

// place is a function in an image.
type place struct {
	image    symbolize.Loaded
	function symbolize.Function
	// inside is the distance of the instruction to probe from the function's start, if the caller named an address inside
	// of the function.
	inside uint64
}

// finder finds functions in the images of processes.
type finder struct {
	capturer *capture.Capturer
	pids     []int
	// all is set for a trace of all processes of a server, also of later ones.
	all    bool
	loaded map[int][]symbolize.Loaded // images by process id
}

func newFinder(c *capture.Capturer, pids []int, all bool) *finder {
	return &finder{capturer: c, pids: pids, all: all, loaded: make(map[int][]symbolize.Loaded)}
}

func (f *finder) images(pid int) []symbolize.Loaded {
	list, known := f.loaded[pid]
	if !known {
		list, _ = f.capturer.Loaded(pid) // empty if the process has ended
		f.loaded[pid] = list
	}
	return list
}

// enough is the number of processes of a server whose images are searched. Most processes of a server have the same images.
const enough = 64

// each calls the callback each for the different images of the processes, once for each image, programs before libraries. It stops
// when the callback returns false. In a trace of all processes of a server, it searches only the first processes; see enough.
func (f *finder) each(each func(l *symbolize.Loaded, program bool) bool) {
	met := make(map[*elfimage.Image]bool)
	for _, programs := range []bool{true, false} {
		for n, pid := range f.pids {
			if n >= enough && f.all {
				break
			}
			list := f.images(pid)
			for i := range list {
				l := &list[i]
				if (i == 0) != programs || met[l.Image.Image] {
					continue
				}
				met[l.Image.Image] = true
				if !each(l, programs) {
					return
				}
			}
		}
	}
}

// find returns the places of a function: one in each image that is the program of a process, or else in one library. The error is a
// *FindError.
func (f *finder) find(name string) ([]place, error) {
	library, function, qualified := splitName(name)
	if module, offset, ok := splitAddress(name); ok {
		return f.address(name, module, offset)
	}
	var inPrograms, inLibraries []place
	matched := false
	f.each(func(l *symbolize.Loaded, program bool) bool {
		if qualified && !isModule(l, library) {
			return true
		}
		matched = true
		for _, fn := range l.Functions(function) {
			p := place{image: *l, function: fn}
			if program {
				inPrograms = append(inPrograms, p)
			} else {
				inLibraries = append(inLibraries, p)
			}
		}
		return true
	})
	if qualified && !matched {
		return nil, &FindError{name, "no process has loaded " + library, "Name one of: " + f.modules() + "."}
	}
	found := inPrograms
	if len(found) == 0 {
		found = inLibraries
		if err := oneModule(name, function, found); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, f.notFound(name, function, library)
	}
	// Put IFUNC resolvers first: the caller refuses them with a better message than the one of oneEach.
	slices.SortStableFunc(found, func(a, b place) int {
		switch {
		case a.function.Indirect == b.function.Indirect:
			return 0
		case a.function.Indirect:
			return -1
		}
		return 1
	})
	return found, oneEach(name, found)
}

// splitName splits LIBRARY:FUNCTION. It does not split at the "::" of a C++ name.
func splitName(name string) (library, function string, qualified bool) {
	i := strings.IndexByte(name, ':')
	if i <= 0 || i+1 >= len(name) || name[i+1] == ':' {
		return "", name, false
	}
	return name[:i], name[i+1:], true
}

// splitAddress splits MODULE+0xOFFSET.
func splitAddress(name string) (module string, offset uint64, ok bool) {
	module, text, found := strings.Cut(name, "+0x")
	if !found || module == "" {
		return "", 0, false
	}
	offset, err := strconv.ParseUint(text, 16, 64)
	return module, offset, err == nil
}

// isModule reports whether a name means an image. For libc.so.6, the names "libc", "libc.so" and "libc.so.6" do.
func isModule(l *symbolize.Loaded, name string) bool {
	base := l.Name()
	if base == name || l.Path == name {
		return true
	}
	rest, ok := strings.CutPrefix(base, name)
	return ok && (strings.HasPrefix(rest, ".so") || strings.HasPrefix(rest, ".") && strings.HasSuffix(name, ".so"))
}

// oneModule returns an error if a name is in several libraries.
func oneModule(name, function string, found []place) error {
	var modules []string
	for i := range found {
		if m := found[i].image.Name(); !slices.Contains(modules, m) {
			modules = append(modules, m)
		}
	}
	if len(modules) <= 1 {
		return nil
	}
	for i := range modules {
		modules[i] += ":" + function
	}
	return &FindError{name, fmt.Sprintf("%d libraries have a function of that name", len(modules)),
		"Name one of: " + strings.Join(modules, ", ") + "."}
}

// oneEach returns an error if an image has several functions with the name.
func oneEach(name string, found []place) error {
	for i := range found {
		var addresses []string
		if found[i].function.Indirect {
			return nil // the caller's call of refuse returns a better error
		}
		for j := range found {
			if found[j].image.Image.Image == found[i].image.Image.Image {
				addresses = append(addresses, fmt.Sprintf("%s+%#x", found[j].image.Name(), found[j].function.Addr))
			}
		}
		if len(addresses) > 1 {
			return &FindError{name, fmt.Sprintf("%s has %d functions of that name", found[i].image.Name(), len(addresses)),
				"Name one by its address: " + strings.Join(addresses, ", ") + "."}
		}
	}
	return nil
}

// address returns the place of the address MODULE+0xOFFSET. The error is a *FindError.
func (f *finder) address(name, module string, offset uint64) ([]place, error) {
	var found []place
	matched := false
	f.each(func(l *symbolize.Loaded, _ bool) bool {
		if !isModule(l, module) {
			return true
		}
		matched = true
		fn, ok := l.Contains(offset)
		if ok && l.Executable(offset) {
			found = append(found, place{image: *l, function: fn, inside: offset - fn.Addr})
		}
		return true
	})
	switch {
	case !matched:
		return nil, &FindError{name, "no process has loaded " + module, "Name one of: " + f.modules() + "."}
	case len(found) == 0:
		return nil, &FindError{name, "no function is known at that address", ""}
	case len(found) > 1:
		return nil, &FindError{name, fmt.Sprintf("the processes have %d different builds of %s", len(found), module),
			"Trace processes of one build at a time."}
	}
	return found, nil
}

// modules returns the names of the images of the processes, for a hint.
func (f *finder) modules() string {
	const most = 40
	var names []string
	f.each(func(l *symbolize.Loaded, _ bool) bool {
		if !slices.Contains(names, l.Name()) {
			names = append(names, l.Name())
		}
		return len(names) < most
	})
	if len(names) == 0 {
		return "none could be read"
	}
	return strings.Join(names, ", ")
}

// notFound returns the error for a function that was not found, with similar names as a hint.
func (f *finder) notFound(name, function, library string) error {
	var similar []string
	inlined, readable := "", false
	f.each(func(l *symbolize.Loaded, program bool) bool {
		readable = true
		if library != "" && !isModule(l, library) {
			return true
		}
		if inlined == "" && (program || library != "") && l.Mentions(function) {
			inlined = l.Name()
		}
		if len(similar) < 5 {
			similar = append(similar, l.Similar(function)...)
		}
		return true
	})
	hint := ""
	if len(similar) > 0 {
		hint = "Similar names: " + strings.Join(similar, ", ") + "."
	}
	switch {
	case !readable:
		return &FindError{name, "no process could be read: it has ended, or its memory may not be read", ""}
	case inlined != "":
		if hint == "" {
			hint = "Trace the functions that call it."
		}
		return &FindError{name, inlined + " knows the name, but has no function of its own for it: " +
			"the compiler has put it inline at every call", hint}
	}
	if hint == "" {
		if names := f.near(function, library); len(names) > 0 {
			hint = "Similar names: " + strings.Join(names, ", ") + "."
		}
	}
	if hint == "" {
		hint = "A static function of a stripped program has no name, and a small one may be inlined everywhere. " +
			`Run "pg_stat_backtrace symbols PID" to see which names are missing.`
	}
	return &FindError{name, "no function of that name is known in the processes", hint}
}

// near returns names of functions that differ from a name in few letters. It searches all images except system-wide ones, or only
// the library.
func (f *finder) near(function, library string) (names []string) {
	const most = 5
	f.each(func(l *symbolize.Loaded, _ bool) bool {
		if (library == "" || isModule(l, library)) && (library != "" || !isSystemWide(l)) {
			for _, other := range l.Near(function) {
				if !slices.Contains(names, other) {
					names = append(names, other)
				}
			}
		}
		return len(names) < most
	})
	return names[:min(len(names), most)]
}

// isSystemWide reports whether nearly every process of a host uses an image: the C library and the dynamic linker.
func isSystemWide(l *symbolize.Loaded) bool {
	name := l.Name()
	return strings.HasPrefix(name, "libc.so") || strings.HasPrefix(name, "libc-") || strings.HasPrefix(name, "ld-") ||
		strings.HasPrefix(name, "ld.so") || strings.HasPrefix(name, "libc.musl") || strings.HasPrefix(name, "libpthread")
}

// everyProcess returns the error for a probe in a system-wide image if all processes of a server are traced.
func everyProcess(name string, l *symbolize.Loaded) error {
	return &FindError{name, fmt.Sprintf("every process of the host uses %s, and a probe of all processes of a server "+
		"would stop each of them", l.Name()), "Name the processes to trace."}
}

// movedCode returns the error for code that the process executes from memory that is not a mapping of the file.
func movedCode(name string, l *symbolize.Loaded) error {
	return &FindError{name, fmt.Sprintf("process %d has moved this code of %s to memory that is not the file, as "+
		"libraries for huge pages do, and the kernel can probe only the memory of a file", l.PID, l.Name()),
		"Captures and profiles still show the function. To trace it, start the program without the library that moves " +
			"its code."}
}

// refuse returns a *FindError if a place must not or cannot be traced. calls is Options.Calls.
func (f *finder) refuse(name string, p *place, calls bool) error {
	l := &p.image
	switch {
	case f.all && isSystemWide(l):
		return everyProcess(name, l)
	case l.Moved(p.function.Addr + p.inside):
		return movedCode(name, l)
	case p.function.Indirect:
		return &FindError{name, l.Name() + " chooses one of several functions for it when a program is loaded (IFUNC)",
			"Trace the chosen function, such as " + name + "_avx2, by its own name or address."}
	case calls && (p.function.Go || l.IsGo()):
		return &FindError{name, "Go moves stacks, and a probe of a return would crash the program",
			"Leave out --latency."}
	case calls && p.inside != 0:
		return &FindError{name, "only a call from its beginning has a duration", "Leave out --latency."}
	}
	return f.hooked(name, p)
}

// hooked returns a *FindError for a function of a server that has a hook, such as ExecutorRun, if a module has set the hook. The
// function then only jumps to the hook, and standard_ExecutorRun does the work.
func (f *finder) hooked(name string, p *place) error {
	function := p.function.Name
	variables, err := p.image.Defined(function+"_hook", "standard_"+function)
	if err != nil || len(variables) < 2 {
		return nil //nolint:nilerr // the function has no hook
	}
	for _, pid := range f.pids {
		list := f.images(pid)
		for i := range list {
			if list[i].Image.Image != p.image.Image.Image {
				continue
			}
			var hook [8]byte
			n, err := process.ReadMemoryWithTimeout(pid, list[i].Bias+variables[function+"_hook"], hook[:])
			if err != nil || n < len(hook) {
				continue
			}
			at := p.image.Order().Uint64(hook[:])
			if at == 0 {
				continue
			}
			return &FindError{name, fmt.Sprintf("in process %d it only jumps to a hook of a loaded module%s", pid,
				f.owner(pid, at)), "Trace standard_" + function + "."}
		}
	}
	return nil
}

// owner returns ", " and the name of the module that contains an address; empty: not known.
func (f *finder) owner(pid int, addr uint64) string {
	list := f.images(pid)
	for i := range list {
		if low, high := list[i].AddrRange(); addr >= list[i].Bias+low && addr < list[i].Bias+high {
			return ", " + list[i].Name()
		}
	}
	return ""
}

// errNoProcess means that the options name no process.
var errNoProcess = errors.New("no process to trace")
