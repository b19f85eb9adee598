package measurecmd

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/pg/memctx"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
)

// Limits of the memory contexts that the command reads: a million contexts, and 512 MB of memory with them.
const (
	maxMemoryContexts = 1 << 20
	maxMemoryPages    = 1 << 17
	pagesPerMB        = 256
)

// memoryFlags are the flags of the command memory.
type memoryFlags struct {
	dataDir string
	format  string
	tree    bool
	wide    bool
	top     int
	timeout time.Duration

	allocations allocationFlags
}

const memoryLong = `Print the processes of a server by the memory that they use (-D), or the memory
contexts of PostgreSQL processes (PID): backends and auxiliary processes, also
stuck and stopped ones. The process is not stopped and runs no code for it.
Its memory is read from outside and compared with a second reading, because it
may change meanwhile. If it does, the tree is read again, up to 20 times. A tree
that is still not consistent is printed with a warning, and the exit status is 1.
So is a tree that is too large to be read whole.

With -D, the table fits the width of a terminal; in a pipe, or with --wide, it has
all columns. For processes, the text has the sums by name, the largest first, or
with --tree each context in the words of PostgreSQL's log, with bytes. Then it has
what the process has outside of contexts. The JSON has the columns of
pg_backend_memory_contexts. The folded form, for a flame graph, has the bytes of
each context. html is a page with a flame graph of the contexts, pprof and
speedscope are files for those tools.

With --allocations the command traces the calls of malloc, calloc, realloc,
memalign, mmap, munmap and free of one process, PostgreSQL or not. It prints which
call paths have allocated, and how much is live: allocated since the start, and
not freed. Frees of older blocks are counted apart. A path has C functions only:
it counts all lines of PL/pgSQL that lead through the same code. The kernel counts
each call, which costs the process some microseconds. If the trace costs more than
--max-overhead, it ends early, prints its figures until then, and exits with
status 1. It needs x86_64, Linux 6.6, and root or CAP_BPF and CAP_PERFMON.`

// NewMemory returns the command memory.
func NewMemory() *cobra.Command {
	var f memoryFlags
	cmd := &cobra.Command{
		Use:   "memory [-D DIRECTORY | PID...]",
		Short: "Print a server's processes by memory, or the memory contexts of processes",
		Long:  memoryLong,
		Example: `  pg_stat_backtrace memory -D /var/lib/postgresql/15/main
  pg_stat_backtrace memory 4711
  pg_stat_backtrace memory --tree 4711
  pg_stat_backtrace memory --format html 4711 > contexts.html
  pg_stat_backtrace memory --allocations 4711 --duration 60s
  pg_stat_backtrace memory --allocations 4711 --format pprof > heap.pb.gz`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.checkMode(cmd); err != nil {
				return console.Usage(err)
			}
			if err := console.RefuseBinary(f.format, cmd.OutOrStdout()); err != nil {
				return err
			}
			if f.allocations.on {
				pid, budget, err := f.allocations.check(f.format, args)
				if err != nil {
					return console.Usage(err)
				}
				return f.allocations.run(cmd.Context(), pid, budget, &f, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			pids, err := f.check(args)
			if err != nil {
				return console.Usage(err)
			}
			if err := console.TakeOnlyServer(&f.dataDir, len(pids) > 0, cmd.ErrOrStderr()); err != nil {
				return err
			}
			if f.dataDir != "" {
				return f.runServer(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			return f.run(cmd.Context(), pids, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.format, "format", "f", console.FormatText, "`FORMAT` of the result: text, json (a line each), folded, "+
		"pprof, speedscope, html; with -D text, json, csv; with --allocations also compressed")
	fs.StringVarP(&f.dataDir, "pgdata", "D", "",
		"the processes of the server with this data `DIRECTORY`; default: $PGDATA, else the only server of this host")
	_ = cmd.MarkFlagDirname("pgdata")
	fs.BoolVar(&f.tree, "tree", false, "with text: each context, instead of the sums by name")
	fs.BoolVar(&f.wide, "wide", false, "with -D and text: print all columns on a terminal too")
	fs.IntVarP(&f.top, "top", "n", 20, "with text: the `N` names with the most bytes; with -D: the `N` processes with the most")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Second, "give up if a process cannot be read within `TIME`")
	f.allocations.add(cmd)
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions(append(f.allocations.formats(), console.FormatCSV), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// The flags that are valid only with --allocations, or only without it.
//
//nolint:gochecknoglobals // tables
var (
	onlyAllocations = []string{
		"duration", "max-overhead", "sample-type", "debug-dir", "debuginfod", "debuginfod-cache",
		"debuginfod-max-size", "debuginfod-cache-size", "debuginfod-min-free", "pre", "post",
	}
	onlyContexts = []string{"tree", "timeout", "pgdata", "wide"}
)

// checkMode returns an error if a flag has no effect because --allocations is given or missing.
func (f *memoryFlags) checkMode(cmd *cobra.Command) error {
	names, problem := onlyAllocations, "--%s needs --allocations"
	if f.allocations.on {
		names, problem = onlyContexts, "--%s does not go with --allocations"
	}
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf(problem, name)
		}
	}
	return nil
}

// check validates the flags and returns the process ids.
func (f *memoryFlags) check(args []string) ([]int, error) {
	switch {
	case !slices.Contains(append(profilefmt.Formats(), console.FormatCSV), f.format):
		return nil, fmt.Errorf("--format must be text, json, csv, folded, pprof, speedscope or html, not %q", f.format)
	case f.format == console.FormatCSV && len(args) > 0:
		return nil, errors.New("--format csv prints the processes of a server: give -D, and no process ids")
	case f.dataDir != "" && len(args) > 0:
		return nil, console.ErrBoth
	case len(args) > 1 && (f.format == console.FormatPprof || f.format == console.FormatSpeedscope || f.format == console.FormatHTML):
		return nil, fmt.Errorf("--format %s prints one process: give one process id", f.format)
	case f.top < 1:
		return nil, fmt.Errorf("--top must be at least 1, not %d", f.top)
	case f.timeout <= 0:
		return nil, fmt.Errorf("--timeout must be more than 0, not %s", f.timeout)
	}
	return console.ProcessIDs(args)
}

// run prints one process after the other. If one fails, run reports the error on stderr, continues, and returns
// console.ErrReported at the end.
func (f *memoryFlags) run(ctx context.Context, pids []int, stdout, stderr io.Writer) error {
	capturer, err := capture.New(capture.Config{LinesWait: console.LinesWait})
	if err != nil {
		return err
	}
	out := bufio.NewWriter(stdout)
	failed := false
	for _, target := range console.Identities(pids) {
		m, err := f.read(ctx, capturer, target)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			failed = true
			console.Tellf(stderr, "%s", explainMemory(target, err))
			continue
		}
		for _, warning := range m.warnings() {
			console.Tellf(stderr, "process %d: %s", target.PID, warning)
		}
		failed = failed || !m.contexts.Consistent || m.contexts.LeftOut
		if err := f.print(out, m); err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	if failed {
		return console.ErrReported
	}
	return nil
}

func explainMemory(target process.Target, err error) string {
	pid := target.PID
	switch {
	case errors.Is(err, capture.ErrNotPostgres), errors.Is(err, memctx.ErrNotServer):
		return console.Stranger(pid) + " of version 14 to 19"
	case console.NotOfServer(pid, err) != "":
		return console.NotOfServer(pid, err)
	case errors.Is(err, memctx.ErrNoContexts):
		return fmt.Sprintf("process with PID %d has no memory contexts, or they cannot be read: "+
			"it is starting or ending", pid)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("the memory contexts of process with PID %d could not be read in time\n"+
			"  Give it more time with --timeout.", pid)
	}
	return console.ExplainTarget(target, err)
}

// processMemory is the memory of one process.
type processMemory struct {
	pid      int
	contexts *capture.MemoryContexts
	bounded  *capture.MemoryContexts // contexts, but levels below LastLevel are added to that level
	rollup   *process.Rollup         // nil: smaps_rollup could not be read
	outside  outsideMemory
}

// outsideMemory is the private writable memory of a process by its mappings, in bytes of address space (resident or not).
type outsideMemory struct {
	Heap      uint64
	Anonymous uint64
	Mappings  int
	Stack     uint64
}

func (f *memoryFlags) read(ctx context.Context, c *capture.Capturer, target process.Target) (*processMemory, error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	contexts, err := c.MemoryContexts(ctx, target, memctx.Options{
		MaxContexts: maxMemoryContexts, MaxPages: maxMemoryPages,
	})
	if err != nil {
		return nil, err
	}
	m := &processMemory{pid: target.PID, contexts: contexts, bounded: contexts.Bounded()}
	if r, err := process.ReadRollup(target.PID); err == nil {
		m.rollup = &r
	}
	mappings, err := process.Maps(target.PID)
	if err != nil {
		return nil, err
	}
	for i := range mappings {
		switch p := &mappings[i]; {
		case p.Perms&process.Write == 0 || p.Perms&process.Shared != 0:
		case p.Path == "[heap]":
			m.outside.Heap += p.End - p.Start
		case p.Path == "[stack]":
			m.outside.Stack += p.End - p.Start
		case p.Path == "" && p.Inode == 0:
			m.outside.Anonymous += p.End - p.Start
			m.outside.Mappings++
		}
	}
	return m, nil
}

// incomplete reports whether the sum of the contexts is too low, because some contexts or sizes are not known.
func (m *processMemory) incomplete() bool {
	_, _, unknown := m.total()
	return m.contexts.Missing > 0 || m.contexts.LeftOut || unknown > 0
}

// warnings returns sentences about figures that are missing, or that were not read at one moment.
func (m *processMemory) warnings() (list []string) {
	c := m.contexts
	if !c.Consistent {
		list = append(list, fmt.Sprintf("the memory contexts changed while they were read, %s: "+
			"the figures are not of one moment (%s, %s)", units.Count(c.Attempts, "time"), units.Count(c.Broken, "contradiction"),
			units.Count(c.Changed, "changed page")))
	}
	if c.Missing > 0 {
		list = append(list, units.Plural(c.Missing,
			"contexts below %d {context|contexts} could not be found, because {it|they} changed: the totals are too low"))
	}
	if c.LeftOut {
		list = append(list, fmt.Sprintf("there are more than %d memory contexts or %d MB of pages: "+
			"some contexts, or their free space, are left out, so the totals are too low",
			maxMemoryContexts, maxMemoryPages/pagesPerMB))
	}
	if n := m.bounded.Deeper(); n > 0 {
		list = append(list, fmt.Sprintf("%s below level %d: "+
			"in the tree, their bytes count in their ancestors on that level", units.Plural(n, "%d {memory context is|memory contexts are}"),
			m.bounded.LastLevel()))
	}
	if c.NoChecks {
		list = append(list, "the server was built with assertions: the free space of its memory contexts is not known")
	}
	return list
}

// total returns the sums of the known sizes, in bytes. unknown is the number of contexts without a known size or free space.
func (m *processMemory) total() (total, free int64, unknown int) {
	for i := range m.contexts.Contexts {
		c := &m.contexts.Contexts[i]
		if c.Total == memctx.Unknown || c.Free == memctx.Unknown {
			unknown++
		}
		total, free = total+max(c.Total, 0), free+max(c.Free, 0)
	}
	return total, free, unknown
}

func (f *memoryFlags) print(out *bufio.Writer, m *processMemory) error {
	switch f.format {
	case console.FormatJSON:
		return m.json(out)
	case console.FormatFolded, console.FormatPprof, console.FormatSpeedscope, console.FormatHTML:
		return m.profile(out, f.format)
	}
	total, free, unknown := m.total()
	_, _ = fmt.Fprintf(out, "process %d, PostgreSQL %d: %s with %s, %s of them free\n",
		m.pid, m.contexts.Major, units.Count(len(m.contexts.Contexts), "memory context"), units.Size(total), units.Size(free))
	if unknown > 0 {
		_, _ = fmt.Fprintf(out, "of %s the figures could not be read\n", units.Count(unknown, "context"))
	}
	if f.tree {
		m.tree(out)
	} else {
		m.sums(out, f.top)
	}
	m.printOutside(out, total)
	return nil
}

// tree prints each context in the form of PostgreSQL's log, parents before children.
func (m *processMemory) tree(out *bufio.Writer) {
	list := m.bounded.Contexts
	children := make(map[int][]int, len(list))
	for i := range list {
		children[list[i].Parent] = append(children[list[i].Parent], i)
	}
	stack := []int{0}
	for len(stack) > 0 {
		i := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		c := &list[i]
		_, _ = fmt.Fprintf(out, "%s%s: %s total in %s blocks; %s free (%s chunks); %s used", strings.Repeat("  ", c.Depth),
			oneLine(c.Name), figure(c.Total), figure(c.Blocks), figure(c.Free), figure(c.FreeChunks), figure(c.Used()))
		if c.Deeper > 0 {
			_, _ = fmt.Fprintf(out, ", with %s", units.Count(c.Deeper, "deeper context"))
		}
		if c.Ident != "" {
			_, _ = fmt.Fprintf(out, ": %s", oneLine(c.Ident))
		}
		_, _ = fmt.Fprintln(out)
		for _, child := range slices.Backward(children[i]) {
			stack = append(stack, child)
		}
	}
}

// oneLine returns a text in which white space is replaced by spaces, and characters that are not printable by question marks.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, text)
}

// figure returns a number as text, or a question mark if it is not known.
func figure(n int64) string {
	if n == memctx.Unknown {
		return "?"
	}
	return strconv.FormatInt(n, 10)
}

// sums prints the sums of the contexts by name, the largest first, and one sum for the rest. The parameter top is the
// number of separate sums.
func (m *processMemory) sums(out *bufio.Writer, top int) {
	type sum struct{ contexts, total, free int64 }
	byName := make(map[string]*sum)
	for i := range m.contexts.Contexts {
		c := &m.contexts.Contexts[i]
		s := byName[c.Name]
		if s == nil {
			s = &sum{}
			byName[c.Name] = s
		}
		s.contexts, s.total, s.free = s.contexts+1, s.total+max(c.Total, 0), s.free+max(c.Free, 0)
	}
	names := slices.SortedFunc(maps.Keys(byName), func(a, b string) int {
		return cmp.Or(cmp.Compare(byName[b].total, byName[a].total), cmp.Compare(a, b))
	})
	_, _ = fmt.Fprintf(out, "%12s %12s %9s  name\n", "total", "free", "contexts")
	left := sum{}
	for i, name := range names {
		s := byName[name]
		if i >= top {
			left.contexts, left.total, left.free = left.contexts+s.contexts, left.total+s.total, left.free+s.free
			continue
		}
		_, _ = fmt.Fprintf(out, "%12s %12s %9d  %s\n", units.Size(s.total), units.Size(s.free), s.contexts, oneLine(name))
	}
	if n := len(names) - top; n > 0 {
		_, _ = fmt.Fprintf(out, "%12s %12s %9d  (%s)\n", units.Size(left.total), units.Size(left.free), left.contexts,
			units.Count(n, "other name"))
	}
}

// printOutside prints the memory of the process outside of its contexts. total is the sum of the contexts.
func (m *processMemory) printOutside(out *bufio.Writer, total int64) {
	o := &m.outside
	private := o.Heap + o.Anonymous
	_, _ = fmt.Fprintf(out, "heap and anonymous mappings: %s (heap %s, %s with %s)\n",
		units.Size(private), units.Size(o.Heap), units.Count(o.Mappings, "anonymous mapping"), units.Size(o.Anonymous))
	if rest := int64(private) - total; rest >= 0 && m.incomplete() {
		_, _ = fmt.Fprintf(out, "not in the contexts above: %s of this (contexts that could not be read, and memory outside of contexts)\n",
			units.Size(rest))
	} else if rest >= 0 {
		_, _ = fmt.Fprintf(out, "outside of contexts: %s of this (malloc by libraries, and free memory of malloc)\n", units.Size(rest))
	}
	if r := m.rollup; r != nil {
		_, _ = fmt.Fprintf(out, "resident: %s (private %s, shared %s; anonymous %s), swapped %s, proportional %s\n", units.Size(r.Resident),
			units.Size(r.PrivateClean+r.PrivateDirty), units.Size(r.SharedMemory), units.Size(r.Anonymous), units.Size(r.Swap),
			units.Size(r.Proportional))
	} else {
		_, _ = fmt.Fprintln(out, "resident: unknown (smaps_rollup cannot be read)")
	}
}

// jsonContext has the columns of pg_backend_memory_contexts. A figure that could not be read is null.
type jsonContext struct {
	Name   string `json:"name"`
	Ident  string `json:"ident,omitempty"`
	Type   string `json:"type"`
	Parent string `json:"parent,omitempty"`
	Level  int    `json:"level"`
	// Path has the numbers of the contexts from the top context down to this context.
	Path       []int  `json:"path"`
	TotalBytes *int64 `json:"total_bytes"`
	Blocks     *int64 `json:"total_nblocks"`
	FreeBytes  *int64 `json:"free_bytes"`
	FreeChunks *int64 `json:"free_chunks"`
	UsedBytes  *int64 `json:"used_bytes"`
	// Deeper is the number of contexts below the last level whose sizes are part of this context's figures.
	Deeper int `json:"deeper_contexts,omitempty"`
}

// MemoryDocument is the memory of a process, as JSON.
type MemoryDocument struct {
	PID   int `json:"pid"`
	Major int `json:"server_version"`
	// Consistent is set if the contexts did not change while they were read.
	Consistent bool `json:"consistent"`
	// Readings says how often the contexts were read. The command reads them until two results are equal, or until it gives
	// up.
	Readings int `json:"readings"`
	// LeftOut is set if there are more contexts than the command reads.
	LeftOut bool `json:"left_out"`
	// Deeper is the number of contexts below the last level, which Contexts does not have.
	Deeper   int           `json:"deeper_contexts,omitempty"`
	Contexts []jsonContext `json:"contexts"`
	Private  jsonPrivate   `json:"private_mappings"`
	// Rollup is null if this user may not read smaps_rollup.
	Rollup *jsonRollup `json:"smaps_rollup"`
}

// jsonPrivate is the private writable memory of a process by its mappings, as address space, which need not be resident.
type jsonPrivate struct {
	Heap      uint64 `json:"heap_bytes"`
	Anonymous uint64 `json:"anonymous_mappings_bytes"`
	Mappings  int    `json:"anonymous_mapping_count"`
	Stack     uint64 `json:"stack_bytes"`
	// Deprecated: read heap_bytes.
	FormerHeap uint64 `json:"heap"`
	// Deprecated: read anonymous_mappings_bytes.
	FormerAnonymous uint64 `json:"anonymous_mappings"`
	// Deprecated: read stack_bytes.
	FormerStack uint64 `json:"stack"`
}

// jsonRollup has the figures of /proc/PID/smaps_rollup.
type jsonRollup struct {
	Resident     uint64 `json:"resident_bytes"`
	Proportional uint64 `json:"proportional_bytes"`
	PrivateClean uint64 `json:"private_clean_bytes"`
	PrivateDirty uint64 `json:"private_dirty_bytes"`
	Anonymous    uint64 `json:"anonymous_bytes"`
	Swap         uint64 `json:"swap_bytes"`
	// Shared are resident pages that other processes may use too.
	Shared uint64 `json:"shared_memory_bytes"`

	formerRollup
}

// formerRollup has the figures under the names of version 1.2.
type formerRollup struct {
	// Deprecated: read resident_bytes.
	Resident uint64 `json:"resident"`
	// Deprecated: read proportional_bytes.
	Proportional uint64 `json:"proportional"`
	// Deprecated: read private_clean_bytes.
	PrivateClean uint64 `json:"private_clean"`
	// Deprecated: read private_dirty_bytes.
	PrivateDirty uint64 `json:"private_dirty"`
	// Deprecated: read anonymous_bytes.
	Anonymous uint64 `json:"anonymous"`
	// Deprecated: read swap_bytes.
	Swap uint64 `json:"swap"`
	// Deprecated: read shared_memory_bytes.
	SharedMemory uint64 `json:"shared_memory"`
}

func (m *processMemory) json(out io.Writer) error {
	doc := MemoryDocument{
		PID: m.pid, Major: m.contexts.Major, Consistent: m.contexts.Consistent, Readings: m.contexts.Attempts,
		LeftOut: m.contexts.LeftOut, Deeper: m.bounded.Deeper(),
		Contexts: make([]jsonContext, len(m.bounded.Contexts)),
	}
	o := &m.outside
	doc.Private = jsonPrivate{o.Heap, o.Anonymous, o.Mappings, o.Stack, o.Heap, o.Anonymous, o.Stack}
	if r := m.rollup; r != nil {
		doc.Rollup = &jsonRollup{
			r.Resident, r.Proportional, r.PrivateClean, r.PrivateDirty, r.Anonymous, r.Swap, r.SharedMemory, formerRollup(*r),
		}
	}
	known := func(n int64) *int64 {
		if n == memctx.Unknown {
			return nil
		}
		return &n
	}
	for i := range m.bounded.Contexts {
		c := &m.bounded.Contexts[i]
		parent := ""
		if c.Parent >= 0 {
			parent = m.bounded.Contexts[c.Parent].Name
		}
		doc.Contexts[i] = jsonContext{
			Name: c.Name, Ident: c.Ident, Type: c.Type, Parent: parent, Level: m.bounded.Level(i), Path: m.bounded.Path(i),
			TotalBytes: known(c.Total), Blocks: known(c.Blocks), FreeBytes: known(c.Free), FreeChunks: known(c.FreeChunks),
			UsedBytes: known(c.Used()), Deeper: c.Deeper,
		}
	}
	return render.JSONEncoder(out).Encode(doc)
}
