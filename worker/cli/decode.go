package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/unwind/budget"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/compressed"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

// Bounds of the input and the memory of decode.
const (
	maxLogLine   = 1 << 20 // bytes; the rest of a longer line is skipped, and reported
	maxHeapSites = 1 << 20
	leastBase64  = 7 // characters of the shortest backtrace without padding
	// decodeEnd is the time, after an interrupt, for printing the sums of the input so far.
	decodeEnd = 2 * time.Second
	// siteBytes is the memory that a heapSite needs in the map decoder.sites, in bytes, without its key and its text.
	siteBytes = 160
)

// decodeFlags are the flags of the command decode.
type decodeFlags struct {
	exe       []string
	pid       int
	heapMap   bool
	debugDirs []string
}

const decodeLong = `Decode libwebsockets' compressed backtraces from FILE or from standard input. The
input is a log with ~m# lines, or bare base64. ~m# may be anywhere in a line.
A line of base64 must contain nothing else. Other lines are skipped. Each
backtrace becomes a ~b# line, as libwebsockets' own decoder prints it.

With --exe or --pid, the frames follow, with names and source lines. The lines ~i#
and ~t#, which "capture --format compressed" writes, say to which images the
addresses belong. An image is used only if its build-id is equal. Without these
lines, the addresses are those of the program (--exe) or of the process (--pid).
They count as return addresses, unless a ~t# line says that they are exact.

With --heapmap, equal stacks are added up: the bytes and the number of
allocations of each, the largest first, and the total.

If a backtrace cannot be decoded, its line and position are reported. The others
are decoded, and the exit status is 1.`

func newDecode() *cobra.Command {
	var f decodeFlags
	cmd := &cobra.Command{
		Use:   "decode [FILE]",
		Short: "Decode libwebsockets' compressed backtraces",
		Long:  decodeLong,
		Example: `  echo '~m#IF0BmUQugNCkgCnkhdAYpQa6wAAV' | pg_stat_backtrace decode
  pg_stat_backtrace decode --exe build/myapp.elf --heapmap device.log
  pg_stat_backtrace capture --format compressed 4711 | pg_stat_backtrace decode --pid 4711`,
		Args: console.UsageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.pid < 0 || f.pid == 0 && cmd.Flags().Changed("pid") {
				return console.Usage(fmt.Errorf("--pid must be a process id, not %d", f.pid))
			}
			in := cmd.InOrStdin()
			if len(args) == 1 && args[0] != "-" {
				file, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer func() { _ = file.Close() }()
				in = file
			}
			in = console.NewInterruptible(cmd.Context(), in)
			return console.UntilInterrupt(cmd.Context(), decodeEnd, func() error {
				return f.run(in, cmd.OutOrStdout(), cmd.ErrOrStderr())
			})
		},
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&f.exe, "exe", nil, "name the frames by this program or library `FILE`; may be given several times")
	fs.IntVar(&f.pid, "pid", 0, "name the frames by the images of the process `PID`")
	fs.BoolVar(&f.heapMap, "heapmap", false, "add up equal stacks, and print the largest first")
	fs.StringSliceVar(&f.debugDirs, "debug-dir", nil, console.DebugDirUsage)
	return cmd
}

// run decodes the input. The error is console.ErrReported if a backtrace could not be decoded. Other errors are of reading or
// writing, or mean that the input has no compressed backtrace.
func (f *decodeFlags) run(in io.Reader, stdout, stderr io.Writer) error {
	names, err := openNamer(f.exe, f.pid, f.debugDirs)
	if err != nil {
		return err
	}
	defer names.close()
	memory, size := budget.New(budget.Memory, "memory"), budget.New(budget.Output, "output")
	out := bufio.NewWriter(size.Writer(stdout))
	d := decoder{
		flags: f, names: names, out: out, stderr: stderr, memory: memory, size: size, sites: make(map[string]*heapSite),
	}
	err = d.read(budget.Reader(in, memory, size))
	if f.heapMap {
		d.printSites()
	}
	if flushed := out.Flush(); err == nil {
		err = flushed
	}
	for _, note := range names.notes {
		console.Tellf(stderr, "note: %s", note)
	}
	if d.cut > 0 {
		console.Tellf(stderr, "%s longer than %d bytes: the rest was skipped", units.Plural(d.cut, "%d {line is|lines are}"), maxLogLine)
	}
	switch {
	case err != nil:
		return err
	case d.failed > 0:
		return console.ErrReported
	case d.decoded == 0:
		return errors.New("there is no compressed backtrace in the input")
	}
	return nil
}

// decoder has the state of one run.
type decoder struct {
	flags                *decodeFlags
	names                *namer
	windows              compressed.Windows
	described            bool // the input has had a ~i# line, which describes an image
	exact                []int
	out                  *bufio.Writer
	stderr               io.Writer
	line                 int
	decoded, failed, cut int

	memory, size *budget.Budget
	full         error // not nil: the budget in the field size has no room for more messages
	sites        map[string]*heapSite
	other        heapSite // sum of the allocations whose stacks are not kept because there are too many
}

// heapSite has the number of allocations with one stack, the sum of their bytes, and the stack as text.
type heapSite struct {
	bytes, blocks uint64
	text          string
}

// read processes the input line by line.
func (d *decoder) read(in io.Reader) error {
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := d.nextLine(r)
		if len(line) > 0 || err == nil {
			d.line++
			d.decodeLine(string(bytes.TrimRight(line, "\r\n")))
		}
		if _, failed := d.out.Write(nil); failed != nil || d.full != nil {
			return errors.Join(failed, d.full)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// nextLine reads a whole line and returns its first maxLogLine bytes.
func (d *decoder) nextLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	cut := false
	for {
		piece, err := r.ReadSlice('\n')
		if room := maxLogLine - len(line); len(piece) > room {
			piece, cut = piece[:room], true
		}
		line = append(line, piece...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			if cut {
				d.cut++
			}
			return line, err
		}
	}
}

// bare reports whether a line consists only of base64. A line of letters may be an ordinary word, so for such a line
// bare returns true only if it can be decoded as a backtrace.
func bare(line string) bool {
	if len(line) < leastBase64 || strings.Trim(strings.TrimRight(line, "="), base64Letters) != "" {
		return false
	}
	if strings.ContainsAny(line, "0123456789+/=") {
		return true
	}
	_, err := compressed.Parse(line)
	return err == nil
}

const base64Letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

// decodeLine decodes all backtraces of a line.
func (d *decoder) decodeLine(line string) {
	trimmed := strings.TrimSpace(line)
	switch {
	case strings.HasPrefix(line, compressed.WindowMark):
		if err := d.windows.Add(line); err != nil {
			d.report(0, err)
			return
		}
		d.described = true
		d.echo(line)
		return
	case strings.HasPrefix(line, console.ThreadMark):
		d.exact = exactLevels(line)
		d.echo(line)
		return
	case bare(trimmed):
		d.decode(trimmed, strings.Index(line, trimmed))
		return
	}
	for at := 0; ; {
		next := strings.Index(line[at:], compressed.Mark)
		if next < 0 {
			return
		}
		at += next
		body := line[at+len(compressed.Mark):]
		end := len(body) - len(strings.TrimLeft(body, base64Letters))
		for end < len(body) && body[end] == '=' {
			end++
		}
		d.decode(line[at:at+len(compressed.Mark)+end], at)
		at += len(compressed.Mark) + end
	}
}

func (d *decoder) echo(line string) {
	if !d.flags.heapMap {
		_, _ = fmt.Fprintln(d.out, render.VisibleText(line)) // Flush returns the error
	}
}

// exactLevels returns the levels of a stack that a ~t# line calls exact: these addresses are not return addresses.
func exactLevels(line string) (levels []int) {
	for field := range strings.FieldsSeq(line) {
		list, ok := strings.CutPrefix(field, "exact=")
		if !ok {
			continue
		}
		for number := range strings.SplitSeq(list, ",") {
			if n, err := strconv.Atoi(number); err == nil && len(levels) < compressed.MaxLevels {
				levels = append(levels, n)
			}
		}
	}
	return levels
}

func (d *decoder) report(at int, err error) {
	d.failed++
	_ = d.out.Flush() // the Flush at the end returns the same error
	const message = 256
	if d.full == nil {
		d.full = d.size.Charge(message, "the messages")
	}
	if d.full == nil {
		console.Tellf(d.stderr, "line %d, column %d: %v", d.line, at+1, err)
	}
}

// decode decodes the backtrace text, which begins at byte number at of the line.
func (d *decoder) decode(text string, at int) {
	b, err := compressed.Parse(text)
	exact := d.exact
	d.exact = nil
	if err != nil {
		d.report(at, err)
		return
	}
	d.decoded++
	plain := b.String()
	if d.flags.heapMap {
		d.count(&b, exact)
		return
	}
	_, _ = fmt.Fprintln(d.out, plain)
	if d.names.any() {
		_, _ = fmt.Fprint(d.out, d.stack(&b, exact))
	}
}

// stack returns the frames of a backtrace with their names, one per line.
func (d *decoder) stack(b *compressed.Backtrace, exact []int) string {
	th := backtrace.Thread{Whole: true}
	for i, addr := range b.Stack {
		isReturn := !slices.Contains(exact, i)
		for _, f := range d.frames(addr, isReturn) {
			f.Level = len(th.Frames)
			th.Frames = append(th.Frames, f)
		}
	}
	if len(th.Frames) == 0 {
		return ""
	}
	return render.Text(&backtrace.Trace{Threads: []backtrace.Thread{th}}, render.Options{}) + "\n"
}

// frames returns the frames of one address: the function, and the functions that were inlined there.
func (d *decoder) frames(addr uint64, isReturn bool) []backtrace.Frame {
	if p, ok := d.windows.Decode(addr); ok {
		return d.names.place(p, isReturn)
	}
	if d.described {
		return []backtrace.Frame{{Address: addr, Module: "[no image]", Offset: addr}}
	}
	return d.names.address(addr, isReturn)
}

// count adds an allocation to the site with the same stack.
func (d *decoder) count(b *compressed.Backtrace, exact []int) {
	whole := *b
	whole.Size = 0
	key := whole.String() + fmt.Sprint(exact)
	site := d.sites[key]
	switch {
	case site != nil:
	case len(d.sites) >= maxHeapSites || d.other.blocks > 0:
		site = &d.other
	default:
		site = &heapSite{}
		if d.names.any() || d.described {
			site.text = d.stack(b, exact)
		} else {
			_, site.text, _ = strings.Cut(b.String(), ", ")
			site.text += "\n"
		}
		if d.memory.Charge(int64(len(key)+len(site.text))+siteBytes, "stacks") != nil {
			site = &d.other
			break
		}
		d.sites[key] = site
	}
	site.bytes += b.Size
	site.blocks++
}

// printSites prints the sites, the largest first, and the total.
func (d *decoder) printSites() {
	keys := slices.SortedFunc(maps.Keys(d.sites), func(a, b string) int {
		x, y := d.sites[a], d.sites[b]
		switch {
		case x.bytes != y.bytes:
			return compare(y.bytes, x.bytes)
		case x.blocks != y.blocks:
			return compare(y.blocks, x.blocks)
		}
		return strings.Compare(a, b)
	})
	total := d.other
	for _, key := range keys {
		site := d.sites[key]
		_, err := fmt.Fprintf(d.out, "%d bytes in %s\n%s\n", site.bytes, allocations(site.blocks), site.text)
		if err != nil {
			return // Flush returns the error again
		}
		total.bytes += site.bytes
		total.blocks += site.blocks
	}
	if d.other.blocks > 0 {
		_, _ = fmt.Fprintf(d.out, "%d bytes in %s with other stacks: only %d stacks are kept apart\n\n",
			d.other.bytes, allocations(d.other.blocks), len(d.sites))
	}
	_, _ = fmt.Fprintf(d.out, "# Total instrumented allocation %d\n", total.bytes)
}

func allocations(n uint64) string {
	return units.Count(n, "allocation")
}

func compare(a, b uint64) int {
	if a < b {
		return -1
	}
	return 1
}
