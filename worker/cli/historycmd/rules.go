package historycmd

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/history/command"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/host"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/table"
	"pg_stat_backtrace/worker/report/units"
)

const rulesLong = `Print or check the rules by which a worker that records decides that a stall is an
incident. The rules are built in. A file in YAML changes them or switches them off:

  rules:
    lock_wait: {after: 30s}
    connections: {above: 95}
    starved: off
  incidents: {cooldown: 10m, per_hour: 12, keep: 100, size: 200MB}
  webhook: {url: "https://alerts.example.com/hook", timeout: 5s}
  command: {run: [/usr/local/bin/page-dba, --team, dba], timeout: 10s}

Give the file to the worker with --rules. It must belong to root or to the worker's
user, and only its owner may be able to write to it. The worker reads it again at
SIGHUP. If it has an error, the old rules stay. The command gets each alert as JSON on
standard input. It runs without a shell and without capabilities, for at most 10 seconds.`

// NewRules returns the command rules.
func NewRules() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rules COMMAND",
		Short: "Print or check the rules for incidents",
		Long:  rulesLong,
		Example: `  pg_stat_backtrace rules list
  pg_stat_backtrace rules check /etc/pg_stat_backtrace/rules.yaml`,
		Args: console.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return console.Usage(errors.New("give a command: list or check"))
		},
	}
	var file, format string
	list := &cobra.Command{
		Use:   "list [--rules FILE]",
		Short: "Print the rules",
		Long:  "Print the built-in rules, or with --rules the rules with the changes of a file.",
		Example: `  pg_stat_backtrace rules list
  pg_stat_backtrace rules list --rules /etc/pg_stat_backtrace/rules.yaml`,
		Args: console.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != console.FormatText && format != console.FormatJSON {
				return console.Usage(fmt.Errorf("--format must be text or json, not %q", format))
			}
			c := rules.Default()
			if file != "" {
				var err error
				if c, err = rules.Load(file); err != nil {
					return err
				}
			}
			return printRules(cmd.OutOrStdout(), &c, format)
		},
	}
	list.Flags().StringVar(&file, console.FlagRules, "", "print the rules with the changes of `FILE`")
	list.Flags().StringVarP(&format, "format", "f", console.FormatText, "`FORMAT` of the result: text or json")
	check := &cobra.Command{
		Use:     "check FILE",
		Short:   "Check a file of rules",
		Long:    "Check a file of rules as the worker does, also its owner and permissions. Run the command as the worker's user.",
		Example: `  pg_stat_backtrace rules check /etc/pg_stat_backtrace/rules.yaml`,
		Args:    console.UsageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := rules.Load(args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is valid\n", render.VisibleLine(args[0]))
			return err
		},
	}
	cmd.AddCommand(list, check, newCommandHelper())
	return cmd
}

// newCommandHelper returns the hidden command that a worker starts as a process if the file of rules has a command for alerts.
func newCommandHelper() *cobra.Command {
	return &cobra.Command{
		Use:    worker.CommandHelper + " FILE",
		Short:  "Run the command of a file of rules for alerts from standard input (started by the worker)",
		Hidden: true,
		Args:   console.UsageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			host.AbortOnCrash()
			return command.Serve(cmd.InOrStdin(), cmd.OutOrStdout(), func() (rules.Command, error) {
				c, err := rules.Load(args[0])
				return c.Command, err
			})
		},
	}
}

// RulesDocument has the rules for incidents and the limits of incidents, as the built-in rules and the file of rules together
// define them.
type RulesDocument struct {
	Rules []rulesEntry `json:"rules"`
	// Cooldown is the time for which a cause must have been absent before it can be an incident again.
	Cooldown float64 `json:"cooldown_seconds"`
	// Budget is the largest number of incidents in an hour. Keep is the largest number of incidents that are kept.
	Budget int `json:"per_hour"`
	Keep   int `json:"keep"`
	// Size is the largest size of all incidents together.
	Size int64 `json:"size_bytes"`
	// Webhook is set if alerts are sent to an address.
	Webhook bool `json:"webhook"`
	// Command is the program that runs for each alert, without its arguments; absent: none.
	Command string `json:"command,omitempty"`
}

type rulesEntry struct {
	Name string `json:"name"`
	Off  bool   `json:"off"`
	// After is the time for which the situation must last; absent: the rule has no time.
	After float64 `json:"after_seconds,omitempty"`
	// Above is the percentage from which on the rule applies; absent: the rule has no percentage.
	Above int    `json:"above_percent,omitempty"`
	About string `json:"about"`
}

func printRules(out io.Writer, c *rules.Config, format string) error {
	if format == console.FormatJSON {
		d := RulesDocument{Rules: []rulesEntry{}, Cooldown: c.Cooldown.Seconds(),
			Budget: c.Budget, Keep: c.Keep, Size: c.Size, Webhook: c.Webhook.URL != ""}
		if len(c.Command.Run) > 0 {
			d.Command = c.Command.Run[0]
		}
		for _, r := range c.Rules {
			d.Rules = append(d.Rules, rulesEntry{r.Name, r.Off, r.After.Seconds(), r.Above, r.About})
		}
		return render.JSONEncoder(out).Encode(d)
	}
	w := table.Fit(out, table.Options{Width: console.TerminalWidth(out)}, []table.Column{{}, {}, {Least: 20, Wrap: true}})
	w.Row("rule", "incident", "meaning")
	for i := range c.Rules {
		w.Row(c.Rules[i].Name, c.Rules[i].Threshold(), c.Rules[i].About)
	}
	if _, err := w.Flush(); err != nil {
		return err
	}
	hook := "none"
	if c.Webhook.URL != "" {
		hook = "yes" // not the address, which may have a password
	}
	program := "none"
	if len(c.Command.Run) > 0 {
		program = render.VisibleLine(c.Command.Run[0]) // without the arguments, which may contain a password
	}
	_, err := fmt.Fprintf(out, "\ncool-down %s; at most %d incidents an hour; at most %d are kept, of %s; webhook: %s; command: %s\n",
		c.Cooldown, c.Budget, c.Keep, units.Size(c.Size), hook, program)
	return err
}
