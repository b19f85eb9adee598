package cli

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/report/units"
)

// recordFlags are the flags of the recorder, as texts.
type recordFlags struct {
	period, keep, size, minFree, stacks string
}

func (f *recordFlags) add(cmd *cobra.Command, c *worker.RecordConfig) {
	fs := cmd.Flags()
	fs.StringVar(&f.period, console.FlagRecord, "1s",
		"record what each session does every `TIME`, or off; needs --record-dir, or systemd's StateDirectory=")
	fs.StringVar(&c.Dir, console.FlagRecordDir, "",
		"record the history below `DIRECTORY` (default systemd's $STATE_DIRECTORY, else nothing is recorded)")
	fs.StringVar(&f.keep, "record-keep", "7d", "remove recorded hours that are `OLDER` than this, such as 7d or 36h")
	fs.StringVar(&f.size, "record-size", "1GB", "remove the oldest recorded hours beyond `SIZE`; with --all, of all servers")
	fs.StringVar(&f.minFree, "record-min-free", "1GB", "record nothing that would leave less than `SIZE` free in the file system")
	fs.StringVar(&c.Texts, "record-query-text", "normalized",
		"record `TEXTS` of queries: normalized (without values and comments), all, or off")
	fs.StringSliceVar(&c.Redact, "record-redact", nil, "record no texts of queries of `ROLE` (may be given several times)")
	fs.StringVar(&f.stacks, "record-stacks", "on", "`STACKS` of sessions that run or wait, taken without stopping them: on or off")
	fs.StringVar(&c.Rules, console.FlagRules, "",
		"read changes of the rules for incidents from `FILE`, or off for no incidents (default: the built-in rules, see \"rules list\")")
	_ = cmd.MarkFlagDirname(console.FlagRecordDir)
	_ = cmd.MarkFlagFilename(console.FlagRules, "yaml", "yml")
	_ = cmd.RegisterFlagCompletionFunc("record-query-text",
		cobra.FixedCompletions(worker.RecordTexts(), cobra.ShellCompDirectiveNoFileComp))
}

// config sets c from the flags, and checks them. With --all, only Period and Dir of c are used.
func (f *recordFlags) config(cmd *cobra.Command, n *nodeFlags, c *worker.RecordConfig) error {
	given := cmd.Flags().Changed
	var err error
	if c.Period, err = parsePeriod(f.period); err != nil {
		return fmt.Errorf("--record: %w", err)
	}
	if c.Keep, err = parseAge(f.keep); err != nil {
		return fmt.Errorf("--record-keep: %w", err)
	}
	if c.Size, err = positiveSize(f.size); err != nil {
		return fmt.Errorf("--record-size: %w", err)
	}
	switch {
	case c.Keep < limits.MinRecordKeep:
		return fmt.Errorf("--record-keep must be at least %s, not %s", units.Age(limits.MinRecordKeep), f.keep)
	case c.Size < limits.MinRecordSize:
		return fmt.Errorf("--record-size must be at least %s, not %s", units.Size(limits.MinRecordSize), f.size)
	}
	if c.MinFree, err = positiveSize(f.minFree); err != nil {
		return fmt.Errorf("--record-min-free: %w", err)
	}
	switch f.stacks {
	case "on", "off":
		c.Stacks = f.stacks == "on"
	default:
		return fmt.Errorf("--record-stacks must be on or off, not %q", f.stacks)
	}
	c.Shared, c.RulesOptional = n.supervised, n.supervised
	if c.Dir == "" && !n.supervised { // a supervised worker gets its folder from the supervisor
		c.Dir, _, _ = strings.Cut(os.Getenv("STATE_DIRECTORY"), ":")
	}
	if c.Dir == "" && given(console.FlagRecord) && c.Period > 0 && !n.supervised {
		return errors.New("--record needs a directory: give it with --record-dir")
	}
	if c.Dir == "" && !n.supervised {
		for _, name := range recordOptions() {
			if given(name) {
				return fmt.Errorf("--%s has no effect without --record-dir, or systemd's StateDirectory=", name)
			}
		}
	}
	return c.Check()
}

// recordOptions are the options of a recorder.
func recordOptions() []string {
	return []string{"record-keep", "record-size", "record-min-free", "record-query-text", "record-redact", "record-stacks", console.FlagRules}
}

func parsePeriod(s string) (time.Duration, error) {
	if s == "off" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is neither off nor a time such as 1s", s)
	}
	return d, nil
}

// parseAge reads a duration that must be positive. Besides Go's units, a number of days such as 7d is accepted.
func parseAge(s string) (time.Duration, error) {
	const day, most = 24 * time.Hour, 100 * 365
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n <= 0 || n > most {
			return 0, fmt.Errorf("%q is not a number of days", s)
		}
		return time.Duration(n) * day, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a time such as 7d or 36h", s)
	}
	return d, nil
}

func positiveSize(s string) (int64, error) {
	n, err := console.ParseSize(s)
	if err == nil && n == 0 {
		err = errors.New("the size must be positive")
	}
	return n, err
}
