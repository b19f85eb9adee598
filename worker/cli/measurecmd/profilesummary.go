package measurecmd

import (
	"fmt"
	"io"
	"strings"
	"time"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/measure/clusterprofile"
	"pg_stat_backtrace/worker/report/units"
)

// shellQuoted returns a word quoted for a shell.
func shellQuoted(word string) string {
	if word != "" && strings.Trim(word, wordCharacters) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// wordCharacters are the characters that need no quotes in a shell.
const wordCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-"

// noSamples adds advice to err, which says that the profile has no samples.
// unseen are sentences about what the filter names and no process has.
func noSamples(err error, mode clusterprofile.Mode, filter string, unseen []string) error {
	switch {
	case len(unseen) > 0:
		return fmt.Errorf("%w of %s\n%s", err, filter, strings.Join(unseen, "\n"))
	case filter != "":
		return fmt.Errorf("%w of %s\nTry without the filter", err, filter)
	case mode == clusterprofile.CPU:
		return fmt.Errorf("%w: no process of the server had a processor\nTry --mode wall, or a longer --duration", err)
	}
	return err
}

// leastCPU is the smallest processor time of a server for which the command prints the share of the BPF programs in it. With
// less time, the share would mean nothing.
const leastCPU = 100 * time.Millisecond

// tellSummary prints how complete the profile is.
func tellSummary(stderr io.Writer, s *clusterprofile.Summary) {
	runnable := ""
	if s.Runnable > 0 {
		runnable = fmt.Sprintf(", %.3f s of this waiting for a processor", s.Runnable.Seconds())
	}
	console.Tellf(stderr, "%s of %s in %.1f s, %.1f %% of them labelled; %.3f s on the processor, %.3f s off it%s",
		units.Count(s.Taken, "stack"), units.Count(s.Processes, "process"), s.Took.Seconds(), 100*s.LabelledShare(),
		s.CPU.Seconds(), s.OffCPU.Seconds(), runnable)
	if s.CPU >= leastCPU {
		console.Tellf(stderr, "programs in the kernel took about %s, %.2f %% of the server's processor time",
			s.KernelTime.Round(10*time.Microsecond), 100*s.KernelTime.Seconds()/s.CPU.Seconds())
	}
	for i, note := range s.Notes() {
		if i > 0 { // the first note is the share of labelled samples, which was printed above
			console.Tellf(stderr, "%s", note)
		}
	}
}
