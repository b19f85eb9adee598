package render

import (
	"regexp"
	"slices"
	"strings"

	"pg_stat_backtrace/worker/moment/phrases"
	"pg_stat_backtrace/worker/naming/backtrace"
	"pg_stat_backtrace/worker/report/visible"
)

// serverMains are the outermost functions of PostgreSQL's processes. Their names are known on stripped servers too.
//
//nolint:gochecknoglobals // a table
var serverMains = []string{
	"PostgresMain", "PostmasterMain", "AuxiliaryProcessMain", "AuxiliaryProcessMainCommon", "BackgroundWorkerMain",
	"StartBackgroundWorker", "AutoVacWorkerMain", "AutoVacLauncherMain", "CheckpointerMain", "BackgroundWriterMain",
	"WalWriterMain", "StartupProcessMain", "WalReceiverMain", "PgArchiverMain", "SysLoggerMain", "IoWorkerMain",
	"WalSummarizerMain", "PgstatCollectorMain",
}

// isServerMain reports whether a function is one of serverMains. A compiler may have added a suffix to its name.
func isServerMain(function string) bool {
	name, _, _ := strings.Cut(function, ".")
	return slices.Contains(serverMains, name)
}

var rowOf = regexp.MustCompile(`\(\d+,\d+\)`)

// Phrase returns in a DBA's words what a PostgreSQL process did, from the stack of its first thread. It returns the zero value
// if the trace is not of a server process, or if there is no phrase for the stack.
func Phrase(t *backtrace.Trace) phrases.Phrase {
	if len(t.Threads) == 0 {
		return phrases.Phrase{}
	}
	frames := t.Threads[0].Frames
	in := phrases.Input{WaitType: t.Wait.Class, WaitEvent: t.Wait.Event, Functions: make([]string, 0, len(frames))}
	if s := t.Session; s != nil {
		in.BackendType, in.Major = s.Type, s.Major
		if s.Holder != "" {
			in.Fields = map[string]string{"holder": s.Holder, "mode": s.Mode}
		}
	}
	server, hasRow := false, false
	for i := range frames {
		in.Functions = append(in.Functions, frames[i].Function)
		server = server || isServerMain(frames[i].Function)
		for _, l := range frames[i].Levels {
			// Only the row that the process waits for: another level can be of something further outwards.
			if l.Kind == backtrace.Tuple && t.Wait.Class == "Lock" && !hasRow && l.Relation != "" {
				if in.Fields == nil {
					in.Fields = make(map[string]string)
				}
				in.Fields["relation"], in.Fields["tuple"], hasRow = visible.Line(l.Relation), rowOf.FindString(l.Text), true
			}
		}
	}
	if !server {
		return phrases.Phrase{}
	}
	return phrases.Match(in)
}
