package compressed

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"pg_stat_backtrace/worker/report/render"
)

// WindowMark begins a line that describes a window.
const WindowMark = "~i#"

// A window is a part of 16 MB of an image. An address in a backtrace consists of the number of a window and an offset in the
// window, because addresses of a process mean nothing in another process, and older decoders of libwebsockets cannot read
// addresses of 47 bits.
const windowBits = 24

// maxWindows bounds the windows of one table. The addresses in backtraces are then below 2^40.
const maxWindows = 1 << 16

const (
	// maxName bounds the name of an image, which is the name of a file: NAME_MAX of Linux. A longer description is cut.
	maxName = 255
	// maxID bounds the digits of a build-id.
	maxID = 128
)

// Place is an address in an image, or in memory of a process that has no image.
type Place struct {
	// BuildID is the build-id of the image in hexadecimal; empty: the image has none, or there is no image.
	BuildID string
	// Name is the base name of the image's file, or a description in brackets of memory that has no image.
	Name string
	// Address is the address in the image; without an image, in the process.
	Address uint64
}

// Windows maps places to the addresses of backtraces and back. Its zero value is empty and ready to use.
type Windows struct {
	list   []Place       // by number of the window: the image and the first address of the window
	number map[Place]int // the number of a window
	fresh  int           // number of windows that Header has not described yet
}

// Encode returns the address for a place in a backtrace. It adds a window if needed; false: there are too many windows.
func (w *Windows) Encode(p Place) (uint64, bool) {
	first := p
	first.Address = p.Address >> windowBits << windowBits
	n, known := w.number[first]
	if !known {
		if len(w.list) >= maxWindows {
			return 0, false
		}
		if w.number == nil {
			w.number = make(map[Place]int)
		}
		n = len(w.list)
		w.list, w.number[first] = append(w.list, first), n
		w.fresh++
	}
	return uint64(n)<<windowBits | p.Address&(1<<windowBits-1), true
}

// Header returns a line without a line end for each window that was added since the previous call of Header.
func (w *Windows) Header() []string {
	var lines []string
	for n := len(w.list) - w.fresh; n < len(w.list); n++ {
		p := &w.list[n]
		id := p.BuildID
		if id == "" {
			id = "-"
		}
		start := uint64(n) << windowBits
		lines = append(lines, fmt.Sprintf("%s0x%x-0x%x 0x%x %s %s",
			WindowMark, start, start+1<<windowBits, p.Address, id, shortName(p.Name)))
	}
	w.fresh = 0
	return lines
}

// shortName makes a name safe to print, and cuts it to maxName bytes.
func shortName(name string) string {
	name = render.VisibleLine(name)
	for len(name) > maxName { // remove whole characters
		_, n := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-n]
	}
	return name
}

// Add reads a line that begins with WindowMark, and adds its window. The window replaces an older one with the same number. The
// error is a *SyntaxError.
func (w *Windows) Add(line string) error {
	bad := func(field string) error {
		return &SyntaxError{Offset: max(0, strings.Index(line, field)), Reason: "not a window of an image"}
	}
	fields := strings.SplitN(strings.TrimPrefix(line, WindowMark), " ", 4)
	if len(fields) < 4 {
		return bad(line)
	}
	from, to, _ := strings.Cut(fields[0], "-")
	start, ok1 := address(from)
	end, ok2 := address(to)
	base, ok3 := address(fields[1])
	const inside = 1<<windowBits - 1
	switch {
	case !ok1 || !ok2 || start&inside != 0 || end != start+1<<windowBits || start>>windowBits >= maxWindows:
		return bad(fields[0])
	case !ok3 || base&inside != 0:
		return bad(fields[1])
	case fields[2] == "" || strings.Trim(fields[2], "0123456789abcdef") != "" && fields[2] != "-":
		return bad(fields[2])
	case len(fields[2]) > maxID:
		return &SyntaxError{
			Offset: strings.Index(line, fields[2]) + maxID, Reason: fmt.Sprintf("a build-id of more than %d digits", maxID),
		}
	case len(fields[3]) > maxName:
		return &SyntaxError{
			Offset: len(line) - len(fields[3]) + maxName, Reason: fmt.Sprintf("a name of more than %d bytes", maxName),
		}
	}
	for uint64(len(w.list)) <= start>>windowBits {
		w.list = append(w.list, Place{})
	}
	w.list[start>>windowBits] = Place{ // clones, so that the line, which may be long, can be freed
		BuildID: strings.Clone(strings.Trim(fields[2], "-")), Name: strings.Clone(fields[3]), Address: base,
	}
	return nil
}

func address(text string) (uint64, bool) {
	digits, ok := strings.CutPrefix(text, "0x")
	v, err := strconv.ParseUint(digits, 16, 64)
	return v, ok && err == nil
}

// Decode returns the place of an address in a backtrace; false: no window contains the address.
func (w *Windows) Decode(addr uint64) (Place, bool) {
	n := addr >> windowBits
	if n >= uint64(len(w.list)) || w.list[n].Name == "" {
		return Place{}, false
	}
	p := w.list[n]
	p.Address |= addr & (1<<windowBits - 1)
	return p, true
}
