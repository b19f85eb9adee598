package console

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/compressed"
)

// ThreadMark begins a line that names the thread of the next backtrace, and the addresses of this backtrace that are not return
// addresses.
const ThreadMark = "~t#"

// signalNote is the note of a frame that is a signal trampoline. The address of this frame and of the next outer frame, the
// interrupted function, are not return addresses.
const signalNote = "signal handler called"

// CompressedFlags are the flags of the command capture for compressed backtraces, and the image descriptions that all its rounds
// share.
type CompressedFlags struct {
	pre, post int
	windows   compressed.Windows
}

// Add adds the flags to a command.
func (f *CompressedFlags) Add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.IntVar(&f.pre, "pre", 0, "with --format compressed: leave out the innermost `N` frames")
	fs.IntVar(&f.post, "post", 0, "with --format compressed: leave out the outermost `N` frames")
}

// Check returns an error if the flags contradict each other or the format.
func (f *CompressedFlags) Check(format string) error {
	switch {
	case f.pre < 0 || f.post < 0:
		return errors.New("--pre and --post must not be negative")
	case (f.pre > 0 || f.post > 0) && format != FormatCompressed:
		return errors.New("--pre and --post require --format compressed")
	}
	return nil
}

// Write prints the stacks of a trace, each after a line about its thread. Lines about images that are new come before.
func (f *CompressedFlags) Write(w io.Writer, t *backtrace.Trace) error {
	out := bufio.NewWriter(w)
	for i := range t.Threads {
		th := &t.Threads[i]
		f.PrintStack(out, fmt.Sprintf("pid=%d tid=%d", t.PID, th.TID), th, 0)
	}
	for i := range t.Goroutines {
		g := &t.Goroutines[i]
		f.PrintStack(out, fmt.Sprintf("pid=%d goroutine=%d", t.PID, g.ID), &g.Thread, 0)
	}
	return out.Flush()
}

// PrintStack prints one stack; size is the number of bytes that were allocated there, or 0. The line before the stack has the
// title, and the number of outer frames that are left out because the format has no room for them. Errors of out are not
// reported.
func (f *CompressedFlags) PrintStack(out *bufio.Writer, title string, th *backtrace.Thread, size uint64) {
	frames := physicalFrames(th.Frames)
	exact := exactFrames(frames)
	if n := len(frames); n > 0 {
		_, _ = f.windows.Encode(placeOf(frames[n-1])) // encode the program first: the first image keeps its own addresses
	}
	frames, exact = frames[min(f.pre, len(frames)):], exact[min(f.pre, len(frames)):]
	frames = frames[:max(0, len(frames)-f.post)]
	left := max(0, len(frames)-compressed.MaxLevels)
	frames = frames[:len(frames)-left]
	b := compressed.Backtrace{Size: size, Stack: make([]uint64, len(frames))}
	var exactLevels []string
	for i, frame := range frames {
		addr, ok := f.windows.Encode(placeOf(frame))
		if !ok {
			_, _ = fmt.Fprintf(out, "%s%s too many images\n", ThreadMark, title)
			return
		}
		b.Stack[i] = addr
		if exact[i] {
			exactLevels = append(exactLevels, strconv.Itoa(i))
		}
	}
	line, err := b.Line()
	if err != nil { // cannot happen with addresses of f.windows
		line = ""
	}
	for _, window := range f.windows.Header() {
		_, _ = fmt.Fprintln(out, window) // Flush returns the error
	}
	if len(exactLevels) > 0 {
		title += " exact=" + strings.Join(exactLevels, ",")
	}
	if left > 0 {
		title += fmt.Sprintf(" left_out=%d", left)
	}
	if !th.Whole {
		title += " incomplete"
	}
	_, _ = fmt.Fprintf(out, "%s%s\n%s\n", ThreadMark, title, line)
}

// physicalFrames returns the frames without inlined calls, which have the same address as the function that contains them.
func physicalFrames(frames []backtrace.Frame) []*backtrace.Frame {
	var out []*backtrace.Frame
	for i := range frames {
		if !frames[i].Inlined {
			out = append(out, &frames[i])
		}
	}
	return out
}

// exactFrames reports for each frame whether its address is not a return address: the innermost frame, signal trampolines, and
// the frames that a signal interrupted.
func exactFrames(frames []*backtrace.Frame) []bool {
	exact := make([]bool, len(frames))
	for i, f := range frames {
		exact[i] = i == 0 || f.Note == signalNote || frames[i-1].Note == signalNote
	}
	return exact
}

// placeOf returns the place of a frame: its image and the address in it. Without an image, the place is the address in the
// process.
func placeOf(f *backtrace.Frame) compressed.Place {
	if f.BuildID == "" && f.ModuleOffset == 0 {
		return compressed.Place{Name: "[" + strings.Trim(f.Module, "[]") + "]", Address: f.Address}
	}
	return compressed.Place{BuildID: f.BuildID, Name: f.Module, Address: f.ModuleOffset}
}
