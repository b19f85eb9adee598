package render

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/units"
)

// Colours of a terminal, as escape sequences.
const (
	colourPhrase = "\x1b[1;32m"
	colourWait   = "\x1b[33m"
	colourLevel  = "\x1b[36m"
	colourHead   = "\x1b[1m"
	colourFaint  = "\x1b[2m"
	colourReset  = "\x1b[0m"
)

// systemModule matches the names of the C library, libpthread and librt, the dynamic linker and the vDSO.
var systemModule = regexp.MustCompile(`^(lib(c|pthread|rt)[.-]|ld(64)?[.-]|\[vdso\])`)

// Brief renders the trace for people: a line each for the phrase, the wait event, the query, and the functions from the
// innermost to the outermost. The levels of PostgreSQL's context (backtrace.Level) are above the functions that run
// them. Brief has no addresses and offsets. It omits the C library, and the callers of a server process's main
// function. In place of functions without a name, it prints how many they are. There is no trailing newline.
func Brief(t *backtrace.Trace, o Options) string {
	b := brief{options: o}
	b.line(colourPhrase, "", Phrase(t).Text)
	if t.Wait.Class != "" {
		b.line(colourWait, "wait: ", t.Wait.Class+": "+t.Wait.Event)
	}
	if query := Query(t); query != "" {
		b.buf = append(append(append(b.buf, "query: "...), query...), '\n')
	}
	b.line(colourFaint, "not stopped: ", t.NotStopped)
	b.line(colourFaint, "server not recognised: ", t.Unrecognised)
	b.line(colourFaint, "PL/pgSQL levels missing: ", t.LevelsMissing)
	for i := range t.Threads {
		th := &t.Threads[i]
		if len(t.Threads) > 1 {
			b.line(colourHead, "", fmt.Sprintf("thread %d (%s)", th.TID, th.Name))
		}
		b.thread(th)
	}
	for i := range t.Goroutines {
		g := &t.Goroutines[i]
		b.line(colourHead, "", fmt.Sprintf("goroutine %d [%s]", g.ID, g.Status))
		b.thread(&g.Thread)
	}
	if t.GoroutinesLeftOut > 0 {
		b.line(colourHead, "", units.Plural(t.GoroutinesLeftOut, "and %d more {goroutine|goroutines}"))
	}
	return strings.TrimSuffix(string(b.buf), "\n")
}

// brief is the text that Brief builds.
type brief struct {
	options Options
	buf     []byte
}

// line appends one line that has the texts in the parameters before and text. It appends nothing if text is empty. It makes one
// line of a text with several lines, and shortens a long text.
func (b *brief) line(colour, before, text string) {
	text = oneLine(text, false, b.options.ASCII)
	if text == "" {
		return
	}
	coloured := b.options.Colour && colour != ""
	if coloured {
		b.buf = append(b.buf, colour...)
	}
	b.buf = append(append(b.buf, before...), text...)
	if coloured {
		b.buf = append(b.buf, colourReset...)
	}
	b.buf = append(b.buf, '\n')
}

// Query returns the text of the process's statement as one line, shortened; empty: not known.
func Query(t *backtrace.Trace) string { return oneLine(t.Query, t.QueryCut, false) }

// oneLine returns a text from outside this program as one line of bounded length. The line ends in three dots if the text is
// shortened, or if the parameter more is set.
func oneLine(text string, more, ascii bool) string {
	const most = 8 * maxNote
	if len(text) > most {
		end := most
		for end > most-utf8.UTFMax && !utf8.RuneStart(text[end]) {
			end--
		}
		text, more = text[:end], true
	}
	text = strings.Join(strings.Fields(text), " ")
	if text == "" {
		return ""
	}
	return string(appendShortened(nil, text, more, ascii))
}

// thread appends a line for each function of a thread that Brief prints (see isNamed), and the reason if the stack is
// not complete.
func (b *brief) thread(th *backtrace.Thread) {
	frames := th.Frames
	if i := slices.IndexFunc(frames, func(f backtrace.Frame) bool { return isServerMain(f.Function) }); i >= 0 {
		frames = frames[:i+1]
	}
	if len(frames) > 0 && !slices.ContainsFunc(frames, isNamed) {
		b.frame(&frames[0]) // no function has a name: print the innermost frame even if it is of the C library
		frames = frames[1:]
	}
	nameless := 0
	for i := range frames {
		switch f := &frames[i]; {
		case isNamed(*f):
			b.unnamed(nameless)
			nameless = 0
			b.frame(f)
		case !isSystem(f):
			nameless++
		}
	}
	b.unnamed(nameless)
	if !th.Whole && th.Stop != "" {
		b.line(colourFaint, "", "stack cut: "+th.Stop)
	}
}

// unnamed appends a line for n functions without a name, and none if n is 0.
func (b *brief) unnamed(n int) {
	switch n {
	case 0:
	case 1:
		b.line(colourFaint, "", "(a function without a name)")
	default:
		b.line(colourFaint, "", fmt.Sprintf("(%d functions without a name)", n))
	}
}

// frame appends the levels of a frame, and then the frame.
func (b *brief) frame(f *backtrace.Frame) {
	for i := range f.Levels {
		b.line(colourLevel, "", f.Levels[i].Text)
	}
	name := briefName(f)
	if name == "" {
		b.unnamed(1)
		return
	}
	if f.File != "" {
		name += " " + f.File[strings.LastIndexByte(f.File, '/')+1:]
		if f.Line > 0 {
			name += ":" + strconv.Itoa(f.Line)
		}
	}
	b.line("", "", name)
}

// isSystem reports whether a frame is of a systemModule, or of a function that starts every program, such as main.
func isSystem(f *backtrace.Frame) bool {
	return f.Function == "main" || f.Function == "_start" || strings.HasPrefix(f.Function, "__libc_start") ||
		systemModule.MatchString(f.Module)
}

// isNamed reports whether Brief prints a frame: it has levels, or a name and is not isSystem.
func isNamed(f backtrace.Frame) bool {
	return len(f.Levels) > 0 || !isSystem(&f) && briefName(&f) != ""
}

// briefName returns the name of a function, or a text with its source file if only the file is known, or "" if neither is known.
func briefName(f *backtrace.Frame) string {
	if f.Function != "" {
		return f.Function
	}
	if strings.HasPrefix(f.Note, "static, in ") {
		return "(" + f.Note + ")"
	}
	return ""
}

// Heading returns a heading for a trace. With colour set, it has the escape sequences for a heading on a terminal.
func Heading(text string, colour bool) string {
	if colour {
		return colourHead + text + colourReset
	}
	return text
}
