package measurecmd

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/memctx"
	"pg_stat_backtrace/worker/pg/state"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/table"
	"pg_stat_backtrace/worker/report/units"
)

// ServerMemoryDocument is the memory of the processes of a server.
type ServerMemoryDocument struct {
	Time    time.Time `json:"time"`
	Cluster string    `json:"data_directory"`
	// Deprecated: read data_directory.
	Former string `json:"cluster"`
	// Processes are in descending order of AnonymousBytes and SwappedBytes together.
	Processes []memoryOfProcess `json:"processes"`
	// Unreadable is the number of processes whose memory could not be read, for example because they were ending.
	Unreadable int `json:"unreadable,omitempty"`
}

// memoryOfProcess is the memory of one process, without shared memory.
type memoryOfProcess struct {
	PID            int    `json:"pid"`
	HostPID        int    `json:"host_pid,omitempty"` // if the server has another process id for it
	Type           string `json:"backend_type"`
	Database       string `json:"database,omitempty"`
	User           string `json:"user,omitempty"`
	Application    string `json:"application_name,omitempty"`
	State          string `json:"state,omitempty"`
	AnonymousBytes uint64 `json:"anonymous_bytes"`
	SwappedBytes   uint64 `json:"swapped_bytes"`
	// ContextsBytes and Largest are nil if the memory contexts were not read, or could not be read. Problem says why.
	ContextsBytes *int64         `json:"contexts_bytes,omitempty"`
	Largest       []contextsSum  `json:"largest_contexts,omitempty"`
	Problem       string         `json:"problem,omitempty"`
	Query         string         `json:"query,omitempty"`
	target        process.Target // to read its contexts
}

// contextsSum is the memory of all contexts with one name.
type contextsSum struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// runServer prints the processes of a server by the memory that they use.
func (f *memoryFlags) runServer(ctx context.Context, stdout, stderr io.Writer) error {
	switch {
	case !slices.Contains([]string{console.FormatText, console.FormatJSON, console.FormatCSV}, f.format):
		return console.Usage(fmt.Errorf("with -D, --format must be text, json or csv, not %q", f.format))
	case f.tree:
		return console.Usage(errors.New("--tree needs process ids"))
	}
	c, err := cluster.ByDataDir(f.dataDir)
	if err != nil {
		return err
	}
	reader, err := state.Open(c)
	if err != nil {
		return err
	}
	now, err := reader.Read(state.Options{Texts: true})
	if err != nil {
		return err
	}
	memory := memoryOf(now)
	capturer, err := capture.New(capture.Config{LinesWait: console.LinesWait})
	if err != nil {
		return err
	}
	said := time.Now()
	read := min(f.top, len(memory.Processes))
	for i := range memory.Processes[:read] {
		if time.Since(said) > 2*time.Second {
			console.Tellf(stderr, "reading memory contexts: %d of %d processes", i, read)
			said = time.Now()
		}
		if err := f.addContexts(ctx, capturer, &memory.Processes[i]); err != nil {
			return err
		}
	}
	return f.printServer(stdout, stderr, memory)
}

// printServer prints the processes to stdout. CSV has no place for the number of processes that could not be read, so this goes to
// stderr.
func (f *memoryFlags) printServer(stdout, stderr io.Writer, memory *ServerMemoryDocument) error {
	switch f.format {
	case console.FormatJSON:
		return render.JSONEncoder(stdout).Encode(memory)
	case console.FormatCSV:
		if memory.Unreadable > 0 {
			console.Tellf(stderr, "%s", memory.unreadable())
		}
		return memory.csv(stdout)
	}
	width := 0
	if !f.wide {
		width = console.TerminalWidth(stdout)
	}
	return memory.text(stdout, f.top, width)
}

// memoryOf reads the kernel's figures about the memory of each process, and sorts the processes by them.
func memoryOf(now *moment.Moment) *ServerMemoryDocument {
	memory := &ServerMemoryDocument{Time: now.Time, Cluster: now.Cluster, Former: now.Cluster, Processes: []memoryOfProcess{}}
	for i := range now.Sessions {
		s := &now.Sessions[i]
		id, err := process.IDOf(s.PID)
		if err != nil {
			memory.Unreadable++
			continue
		}
		status, err := process.ReadStatus(s.PID)
		if err != nil || id.Ended() {
			memory.Unreadable++
			continue
		}
		hostPID := s.PID
		if s.PID == s.ServerPID {
			hostPID = 0
		}
		memory.Processes = append(memory.Processes, memoryOfProcess{
			PID: s.ServerPID, HostPID: hostPID, Type: s.Type, Database: console.NameOrOID(s.Database, s.DatabaseOID), User: console.NameOrOID(s.User, s.UserOID),
			Application: s.Application, State: s.State, AnonymousBytes: status.Anonymous, SwappedBytes: status.Swapped, Query: s.Query,
			target: console.Identities([]int{s.PID})[0],
		})
	}
	slices.SortStableFunc(memory.Processes, func(a, b memoryOfProcess) int {
		return cmp.Compare(b.AnonymousBytes+b.SwappedBytes, a.AnonymousBytes+a.SwappedBytes)
	})
	return memory
}

// addContexts reads the memory contexts of one process. If that fails, it sets p.Problem. It returns an error only if ctx has
// ended.
func (f *memoryFlags) addContexts(ctx context.Context, capturer *capture.Capturer, p *memoryOfProcess) error {
	within, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	contexts, err := capturer.MemoryContexts(within, p.target, memctx.Options{
		MaxContexts: maxMemoryContexts, MaxPages: maxMemoryPages,
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		p.Problem, _, _ = strings.Cut(explainMemory(p.target, err), "\n")
		return nil
	}
	const most = 3
	var total int64
	sums := make(map[string]int64)
	for i := range contexts.Contexts {
		one := &contexts.Contexts[i]
		total += max(one.Total, 0)
		sums[one.Name] += max(one.Total, 0)
	}
	p.ContextsBytes = &total
	for name, bytes := range sums {
		p.Largest = append(p.Largest, contextsSum{name, bytes})
	}
	slices.SortFunc(p.Largest, func(a, b contextsSum) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	p.Largest = p.Largest[:min(most, len(p.Largest))]
	switch {
	case contexts.LeftOut:
		p.Problem = "some contexts are left out"
	case contexts.Missing > 0:
		p.Problem = "some contexts are missing, because they changed while they were read"
	case !contexts.Consistent:
		p.Problem = "the contexts changed while they were read"
	}
	return nil
}

// queryWidth is the largest number of characters of a query in the text that is not for a terminal.
const queryWidth = 60

// memoryColumns says how the columns of the text adapt to a terminal. Columns with less use are left out first.
func memoryColumns() []table.Column {
	return []table.Column{
		{}, {Drop: 20}, {Least: 8, Drop: 6}, {Least: 8, Drop: 5}, {Least: 8, Drop: 4}, {Least: 12, Drop: 3}, {}, {Drop: 7},
		{Drop: 1}, {Least: 18, Drop: 2}, {Least: 16},
	}
}

// text prints the processes with the most memory, at most as many as the parameter top, for a terminal with width columns; 0: for
// no terminal.
func (m *ServerMemoryDocument) text(out io.Writer, top, width int) error {
	buffered := bufio.NewWriter(out)
	var anonymous, swapped uint64
	for i := range m.Processes {
		anonymous, swapped = anonymous+m.Processes[i].AnonymousBytes, swapped+m.Processes[i].SwappedBytes
	}
	_, _ = fmt.Fprintf(buffered, "%s: %s with %s of memory, and %s in swap space, at %s; shared memory does not count\n",
		render.VisibleLine(m.Cluster), units.Count(len(m.Processes), "process"), units.Size(anonymous), units.Size(swapped),
		m.Time.Format(time.RFC3339))
	w := table.Fit(buffered, table.Options{Empty: "-", Width: width}, memoryColumns())
	w.Row("pid", "backend_type", "database", "user", "application", "state", "memory", "swapped", "in_contexts", "largest contexts", "query")
	for i := range m.Processes[:min(top, len(m.Processes))] {
		w.Row(m.Processes[i].cells(width > 0, swapped > 0)...)
	}
	left, _ := w.Flush()
	_ = table.NoRoom(buffered, left)
	if n := len(m.Processes) - top; n > 0 {
		_, _ = fmt.Fprintf(buffered, "%s: print more with --top\n", units.Count(n, "other process"))
	}
	if m.Unreadable > 0 {
		_, _ = fmt.Fprintln(buffered, m.unreadable())
	}
	return buffered.Flush()
}

// unreadable says in words how many processes could not be read.
func (m *ServerMemoryDocument) unreadable() string {
	return fmt.Sprintf("the memory of %s could not be read", units.Count(m.Unreadable, "process"))
}

// cells returns the columns of the text. On a terminal, the column of the state has the type of a process that is no client backend,
// and the column of swap space is empty if no process is swapped.
func (p *memoryOfProcess) cells(terminal, swapped bool) []string {
	contexts, kind, status, query, swap := "", p.Type, p.State, table.Cut(p.Query, queryWidth), units.Size(p.SwappedBytes)
	if p.ContextsBytes != nil {
		contexts = units.Size(max(0, *p.ContextsBytes))
	}
	if terminal {
		kind, query = "", p.Query
		if p.Type != state.ClientBackend && (p.State == "" || p.State == "active") {
			status = p.Type
		}
		if !swapped {
			swap = ""
		}
	}
	pid := strconv.Itoa(p.PID)
	if p.HostPID != 0 {
		pid += fmt.Sprintf(" (host_pid %d)", p.HostPID)
	}
	return []string{
		pid, kind, p.Database, p.User, p.Application, status, units.Size(p.AnonymousBytes), swap, contexts,
		largestText(p), query,
	}
}

// csv prints all processes, with sizes in bytes.
func (m *ServerMemoryDocument) csv(out io.Writer) error {
	w := table.CSV(out)
	w.Row("time", "pid", "backend_type", "database", "user", "state", "anonymous_bytes", "swapped_bytes", "contexts_bytes",
		"largest_context", "largest_context_bytes", "problem", "query", "application_name")
	at := m.Time.Format(time.RFC3339Nano)
	for i := range m.Processes {
		p := &m.Processes[i]
		contexts, name, bytes := "", "", ""
		if p.ContextsBytes != nil {
			contexts = strconv.FormatInt(*p.ContextsBytes, 10)
		}
		if len(p.Largest) > 0 {
			name, bytes = p.Largest[0].Name, strconv.FormatInt(p.Largest[0].Bytes, 10)
		}
		w.Row(at, strconv.Itoa(p.PID), p.Type, p.Database, p.User, p.State, strconv.FormatUint(p.AnonymousBytes, 10),
			strconv.FormatUint(p.SwappedBytes, 10), contexts, name, bytes, p.Problem, p.Query, p.Application)
	}
	return w.Flush()
}

func largestText(p *memoryOfProcess) string {
	var parts []string
	for _, sum := range p.Largest {
		parts = append(parts, sum.Name+" "+units.Size(uint64(sum.Bytes)))
	}
	text := strings.Join(parts, ", ")
	if p.Problem != "" {
		text = strings.TrimPrefix(text+" ("+p.Problem+")", " ")
	}
	return text
}
