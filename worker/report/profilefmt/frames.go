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
	// maxDepth is the greatest number of frames of a stack that are printed. The outermost frames of deeper stacks are omitted.
	maxDepth = 4096
	// cutStack is the name of a frame that replaces the omitted outermost frames.
	cutStack = "..."
)

// A frame is one call in the stack of a sample.
type frame struct {
	// name is the name of the function; the address if no symbol covers it.
	name string
	// module is the base name of the mapped file; "" if it is unknown.
	module string
	// file is the source file; "" if it is unknown.
	file string
	// inlined is set for a function whose code is inside the code of its caller.
	inlined bool
	// unnamed is set if no symbol covers the address. note is then a remark on the address, or "".
	unnamed bool
	note    string
}

// merged returns the name under which the values of frames are added up: the function's name or, for an address without
// a symbol, the module's name.
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

// base returns the name of a mapped file without its folder, safe to print.
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

// word returns a name as one word that is safe to print, cut to maxName bytes.
func word(name string) string { return render.Word(cut(name)) }

// shown returns a text that is safe to print, cut to maxName bytes. It escapes characters that could control a terminal or change
// the order of characters, and keeps spaces.
func shown(text string) string {
	words := strings.Split(cut(text), " ")
	for i := range words {
		words[i] = render.Word(words[i])
	}
	return strings.Join(words, " ")
}
