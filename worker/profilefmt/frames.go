package profilefmt

import (
	"fmt"
	"path"
	"strings"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/render"
)

// maxDepth is the number of frames of one stack that are printed. Deeper stacks lose their outermost frames, and show
// how many.
const maxDepth = 4096

// A frame is one function activation of a sample.
type frame struct {
	// name is the function, or where there is none, the address.
	name string
	// module is the base name of the mapped file; "" if it is unknown.
	module string
	// file and line are the place in the source; "" and 0 if they are unknown.
	file string
	line int64
	// inlined is set for a function whose code lies inside its caller's.
	inlined bool
	// unnamed is set if no symbol covers the address, and note is then what else is known of it.
	unnamed bool
	note    string
}

// merged is the name under which equal frames are added up: an address without a symbol counts for its module.
func (f *frame) merged() string {
	switch {
	case !f.unnamed:
		return f.name
	case f.module == "":
		return "[unknown]"
	case f.note != "":
		return "[" + f.module + ": " + f.note + "]"
	}
	return "[" + f.module + "]"
}

// frames returns the frames of a sample, innermost first, and how many outermost ones are left out.
func frames(s *profile.Sample) (list []frame, left int) {
	for _, loc := range s.Location {
		module := ""
		if loc.Mapping != nil && loc.Mapping.File != "" {
			module = path.Base(loc.Mapping.File)
		}
		if len(loc.Line) == 0 {
			list, left = add(list, left, nameless(loc.Address, module))
			continue
		}
		for i, line := range loc.Line {
			f := fromLine(line, loc.Address, module)
			f.inlined = i < len(loc.Line)-1
			list, left = add(list, left, f)
		}
	}
	return list, left
}

func add(list []frame, left int, f frame) ([]frame, int) {
	if len(list) == maxDepth {
		return list, left + 1
	}
	return append(list, f), left
}

func nameless(address uint64, module string) frame {
	return frame{name: fmt.Sprintf("0x%x", address), module: module, unnamed: true}
}

func fromLine(line profile.Line, address uint64, module string) frame {
	fn := line.Function
	if fn == nil {
		return nameless(address, module)
	}
	name := fn.Name
	if name == "" {
		name = fn.SystemName
	}
	if name == "" {
		return nameless(address, module)
	}
	f := frame{name: name, module: module, file: fn.Filename, line: line.Line}
	f.note, f.unnamed = unnamedNote(name, module)
	return f
}

// unnamedNote reports whether a name is an address in the module, such as "postgres+0x467a3d [static, in lock.c]", and
// returns the note in brackets.
func unnamedNote(name, module string) (note string, unnamed bool) {
	if module == "" {
		return "", false
	}
	rest, ok := strings.CutPrefix(name, module+"+0x")
	if !ok {
		return "", false
	}
	digits := strings.TrimLeft(rest, "0123456789abcdef")
	if len(digits) == len(rest) {
		return "", false
	}
	if digits == "" {
		return "", true
	}
	note, ok = strings.CutPrefix(digits, " [")
	if !ok {
		return "", false
	}
	note, ok = strings.CutSuffix(note, "]")
	return note, ok
}

// leftOut is the frame that stands for the outermost frames of a stack that is too deep.
func leftOut(n int) frame {
	return frame{name: fmt.Sprintf("[%d frames left out]", n)}
}

// word makes a name safe to print as one word of a line.
func word(name string) string { return render.Word(name) }
