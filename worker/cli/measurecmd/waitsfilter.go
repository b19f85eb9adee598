package measurecmd

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/ptrace/measure/waits"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/measure/waitevent"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/state"
)

// maxEndedSessions is the largest number of ended processes whose figures are kept for a selection by user or database.
const maxEndedSessions = 10_000

// waitsFilter are the flags that select processes by user and database, or waits by query.
type waitsFilter struct {
	users, databases, queries []string
	queryIDs                  []int64           // the numbers in the field queries, set by check
	log                       *state.SessionLog // nil: the flags need no log, or there is none
}

func (f *waitsFilter) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringSliceVar(&f.users, "user", nil, "count only processes of the user `NAME`")
	fs.StringSliceVar(&f.databases, "database", nil, "count only processes in the database `NAME`")
	fs.StringSliceVar(&f.queries, "query-id", nil, "count only waits of the statement with this query `ID`")
}

// bySession reports whether the flags select processes by user or database.
func (f *waitsFilter) bySession() bool { return len(f.users) > 0 || len(f.databases) > 0 }

func (f *waitsFilter) set() bool { return f.bySession() || len(f.queries) > 0 }

// check validates the flags, and sets queryIDs.
func (f *waitsFilter) check(method string, pids []string) error {
	for _, text := range f.queries {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id == 0 {
			return fmt.Errorf("--query-id: %q is not a query id", text)
		}
		if !slices.Contains(f.queryIDs, id) {
			f.queryIDs = append(f.queryIDs, id)
		}
	}
	switch {
	case len(f.queries) > 0 && (f.bySession() || len(pids) > 0):
		return errors.New("--query-id goes together neither with --user and --database nor with process ids: " +
			"waits by query are those of all processes")
	case len(f.queries) > 0 && waits.Method(method) == waits.Sampled:
		return errors.New("--query-id needs the method exact or blocked")
	}
	return nil
}

// waitsResult is the result of a measurement of wait events.
type waitsResult struct {
	server   *waitevent.Server
	snapshot *waits.Snapshot
	figures  []waits.QueryFigures // with --query-id
}

// report returns the report of the selected queries or processes or, without a selection, of all processes.
func (f *waitsFilter) report(info waits.Info, result *waitsResult, pids []int) waitevent.Report {
	if len(f.queryIDs) > 0 {
		var texts map[int64]string
		if f.log != nil {
			texts = f.log.Texts()
		}
		return result.server.NewQueryReport(info, result.snapshot, result.figures, f.queryIDs, texts)
	}
	if !f.bySession() {
		return result.server.NewReport(info, result.snapshot, cluster.Title, pids)
	}
	some, unknown := f.selectSessions(result.snapshot, pids, f.log.Session)
	r := result.server.NewReport(info, some, cluster.Title, pids)
	r.Selected = true
	r.Unknown, r.UnknownEnded = unknown, len(pids) == 0 && len(result.snapshot.Ended) > 0
	return r
}

// renewLog opens the log of a restarted server, if the flags need one. It returns false, and keeps the former log, if the server's
// memory cannot be read.
func (f *waitsFilter) renewLog(server *waitevent.Server) bool {
	if f.log == nil {
		return true
	}
	log := openLog(server)
	if log == nil {
		return false
	}
	f.log = log
	return true
}

// unseen reports on stderr which of the selected users and databases no session had. The error means that no session had both a
// selected user and a selected database, so that there is nothing to print.
func (f *waitsFilter) unseen(stderr io.Writer) error {
	if !f.bySession() {
		return nil
	}
	seen := f.log.Names()
	lines := state.Unseen(f.users, f.databases, seen)
	switch {
	case slices.ContainsFunc(seen, func(n state.SessionNames) bool { return n.Is(f.users, f.databases) }):
	case len(lines) == 0:
		return errors.New("no session of the selected users was seen in the selected databases")
	default:
		return errors.New(strings.Join(lines, "\n"))
	}
	for _, line := range lines {
		console.Tellf(stderr, "%s", line)
	}
	return nil
}

// selectSessions returns a snapshot with only the selected processes, and the number of processes with waits whose user
// and database are not known. The user and database of an ended process are not known if a later process has got the
// same process id.
func (f *waitsFilter) selectSessions(
	all *waits.Snapshot, pids []int, session func(pid int) (state.SessionNames, bool),
) (some *waits.Snapshot, unknown int) {
	copied := *all
	copied.Ended, copied.Processes = nil, nil
	count := make(map[int]int)
	for i := range all.Processes {
		count[all.Processes[i].PID]++
	}
	for _, p := range all.Processes {
		names, ok := state.SessionNames{}, false
		if !p.Ended || count[p.PID] == 1 {
			names, ok = session(p.PID)
		}
		switch {
		case ok && names.Is(f.users, f.databases):
			copied.Processes = append(copied.Processes, p)
		case !ok && len(p.Events) > 0 && (len(pids) == 0 || slices.Contains(pids, p.PID)):
			unknown++
		}
	}
	return &copied, unknown
}
