package profilefmt

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/worker/report/render"
)

const (
	// maxDepth is the number of frames of one stack that are printed. Deeper stacks lose their outermost frames.
	maxDepth = 4096
	// cutStack is the frame that stands for the outermost frames that a stack lacks.
	cutStack = "..."
)

// A frame is one function activation of a sample.
type frame struct {
	// name is the function, or where there is none, the address.
	name string
	// module is the base name of the mapped file; "" if it is unknown.
	module string
	// file is the source file; "" if it is unknown.
	file string
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
		return "[" + f.module + ": " + shown(f.note) + "]"
	}
	return "[" + f.module + "]"
}

// locationFrames appends the frames of a location, innermost first.
func locationFrames(list []frame, loc *profile.Location) []frame {
	module := ""
	if loc.Mapping != nil && loc.Mapping.File != "" {
		module = base(loc.Mapping.File)
	}
	if len(loc.Line) == 0 {
		return append(list, nameless(loc.Address, module))
	}
	for i, line := range loc.Line {
		f := fromLine(line, loc.Address, module)
		f.inlined = i < len(loc.Line)-1
		list = append(list, f)
		if len(list) > maxDepth {
			break
		}
	}
	return list
}

// base is the name of a mapped file without its folder.
func base(file string) string { return shown(path.Base(file)) }

func nameless(address uint64, module string) frame {
	return frame{name: fmt.Sprintf("0x%x", address), module: module, unnamed: true}
}

func fromLine(line profile.Line, address uint64, module string) frame {
	fn := line.Function // never nil in a valid profile
	name := cmp.Or(fn.Name, fn.SystemName)
	if name == "" {
		return nameless(address, module)
	}
	f := frame{name: name, module: module, file: fn.Filename}
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

// word makes a name safe to print as one word of a line, and cuts it to maxName.
func word(name string) string { return render.Word(cut(name)) }

// shown makes a text safe to print, and cuts it to maxName. It escapes what could drive a terminal or turn the order of
// characters, and keeps spaces.
func shown(text string) string {
	words := strings.Split(cut(text), " ")
	for i := range words {
		words[i] = render.Word(words[i])
	}
	return strings.Join(words, " ")
}
