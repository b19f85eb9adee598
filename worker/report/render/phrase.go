package render

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"pg_stat_backtrace/worker/moment"
	"pg_stat_backtrace/worker/naming/backtrace"
)

// serverMains are the main functions of PostgreSQL's processes. Their names are known on stripped servers too.
//
//nolint:gochecknoglobals // read only
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

// Phrase describes in words for a DBA what a PostgreSQL process did. It derives the words from the stack of the
// process's first thread. It returns the zero value if the trace is not of a server process, or if there is no phrase
// for the stack.
func Phrase(t *backtrace.Trace) moment.Phrase {
	if len(t.Threads) == 0 {
		return moment.Phrase{}
	}
	frames := t.Threads[0].Frames
	in := moment.PhraseInput{WaitType: t.Wait.Class, WaitEvent: t.Wait.Event, Functions: functionsOf(frames)}
	if s := t.Session; s != nil {
		in.BackendType, in.Major = s.Type, s.Major
		if s.Mode != "" {
			in.Fields = map[string]string{"mode": s.Mode}
			for name, value := range map[string]string{"holder": s.Holder, "ahead": s.Ahead, "relation": s.Relation} {
				if value != "" {
					in.Fields[name] = value
				}
			}
		}
	}
	hasRow := false
	for i := range frames {
		for _, l := range frames[i].Levels {
			// Use only the innermost level with a row, and only during a wait for a lock: outer levels belong to other rows.
			if l.Kind == backtrace.Tuple && t.Wait.Class == "Lock" && !hasRow && l.Relation != "" {
				if in.Fields == nil {
					in.Fields = make(map[string]string)
				}
				in.Fields["relation"], in.Fields["tuple"], hasRow = VisibleLine(l.Relation), rowOf.FindString(l.Text), true
			}
		}
	}
	if !slices.ContainsFunc(in.Functions, isServerMain) {
		return moment.Phrase{}
	}
	return moment.MatchPhrase(in)
}

// PlainPhrase describes what a process of a server did, without names of objects. It is for readers that may not see
// these names, and for labels, since the number of different texts is bounded. The result is empty in the cases in
// which the result of Phrase is empty.
func PlainPhrase(frames []backtrace.Frame, wait backtrace.Wait, backendType string, major int) string {
	in := moment.PhraseInput{
		Functions: functionsOf(frames), WaitType: wait.Class, WaitEvent: wait.Event, BackendType: backendType, Major: major,
	}
	if !slices.ContainsFunc(in.Functions, isServerMain) {
		return ""
	}
	return moment.MatchPhrase(in).Text
}

func functionsOf(frames []backtrace.Frame) []string {
	names := make([]string, len(frames))
	for i := range frames {
		names[i] = frames[i].Function
	}
	return names
}

// Function returns the innermost function of a procedural language on the stack of the first thread, with the line, such as
// "total(integer) line 3"; empty: there is no such function.
func Function(t *backtrace.Trace) string {
	if len(t.Threads) == 0 {
		return ""
	}
	frames := t.Threads[0].Frames
	for i := range frames {
		for _, l := range frames[i].Levels {
			switch {
			case l.Function == "":
			case l.Line > 0:
				return fmt.Sprintf("%s line %d", l.Function, l.Line)
			default:
				return l.Function
			}
		}
	}
	return ""
}
