package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/doctor"
	"pg_stat_backtrace/worker/pg/cluster"
)

func newDoctor(version string) *cobra.Command {
	o := doctor.Options{Version: version}
	format := console.FormatText
	cmd := &cobra.Command{
		Use:   "doctor [CONNSTRING]",
		Short: "Say whether captures will work here, and what to do if not",
		Long: `Check the kernel's settings, the rights of this user, the server, the worker, the
extension, and the server's symbols. Capture one process of the server. The first
line is the verdict. A line for each finding follows, with its remedy: FAIL (captures
do not work), warn (to mend), n/a (a feature is not available here), ok. Run the
command as root, or as the user that runs the worker. Without -D, a connection
string, PGHOST, PGPORT or PGSERVICE, the command takes the only server of this host.
The exit status is 1 if captures will not work.`,
		Example: `  pg_stat_backtrace doctor
  pg_stat_backtrace doctor -D /var/lib/postgresql/15/main
  pg_stat_backtrace doctor "host=/run/postgresql dbname=app"`,
		Args: console.UsageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if o.ConnString = args[0]; strings.Trim(args[0], "0123456789") == "" && args[0] != "" {
					return console.Usage(errors.New("doctor examines a server, not a process: give -D or a connection string"))
				}
			}
			if format != console.FormatText && format != console.FormatJSON {
				return console.Usage(fmt.Errorf("--format must be text or json, not %q", format))
			}
			if err := cluster.CheckConnString(o.ConnString); err != nil {
				return console.Usage(err)
			}
			if dir := doctorsServer(o.DataDir, o.ConnString, os.Getenv, console.AllServers); dir != o.DataDir {
				console.Tellf(cmd.ErrOrStderr(), "taking the only server of this host: -D %s", dir)
				o.DataDir = dir
			}
			if several := serversToChoose(&o, os.Getenv); several != nil {
				console.Tellf(cmd.ErrOrStderr(), "%v\nWithout -D, the command checks the server of libpq's defaults.", several)
			}
			if o.DataDir != "" && format == console.FormatText { // the checks of the host would hide the error
				if _, err := cluster.ByDataDir(o.DataDir); errors.Is(err, cluster.ErrNotDataDir) {
					return err
				}
			}
			progress := newProgressLine(cmd.ErrOrStderr())
			o.Progress = func(subject string) { progress.show("checking " + subject + " ...") }
			o.Servers = func() []string {
				dirs, _, _ := console.AllServers()
				return dirs
			}
			found := doctor.Examine(cmd.Context(), o)
			progress.clear()
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			var err error
			if out := cmd.OutOrStdout(); format == console.FormatJSON {
				err = found.JSON(out)
			} else {
				err = found.Text(out, console.TerminalWidth(out))
			}
			if err == nil && !found.Works() {
				err = console.ErrReported
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&o.DataDir, "pgdata", "D", "",
		"the server's data `DIRECTORY`; default without CONNSTRING, PGHOST, PGHOSTADDR, PGPORT and PGSERVICE: $PGDATA")
	_ = cmd.MarkFlagDirname("pgdata")
	cmd.Flags().StringVarP(&format, "format", "f", console.FormatText, "`FORMAT` of the result: text or json")
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions([]string{console.FormatText, console.FormatJSON}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// doctorsServer returns the data directory of the server that the command examines. This is dataDir if it is given. If arguments
// and environment choose no server, it is the data directory of the host's only server. An empty result means that libpq's
// connection settings choose the server.
func doctorsServer(dataDir, connString string, env func(string) string, servers func() ([]string, int, error)) string {
	if dataDir != "" || connString != "" {
		return dataDir
	}
	for _, name := range []string{"PGHOST", "PGHOSTADDR", "PGPORT", "PGSERVICE"} {
		if env(name) != "" {
			return ""
		}
	}
	found, denied, err := servers()
	if err != nil || denied > 0 || len(found) != 1 {
		return ""
	}
	return found[0]
}

// serversToChoose returns an error that lists the servers of this host, if there are several and the user has chosen none.
func serversToChoose(o *doctor.Options, env func(string) string) error {
	if o.DataDir != "" || o.ConnString != "" || env("PGHOST")+env("PGHOSTADDR")+env("PGPORT")+env("PGSERVICE") != "" {
		return nil
	}
	found, denied, err := console.AllServers()
	if err != nil || len(found)+denied <= 1 {
		return nil //nolint:nilerr // the command itself reports this error later
	}
	_, several := console.ChooseServer(found, denied)
	return several
}

// A progressLine shows the current step of the command in one line of a terminal. It writes nothing to a file or a pipe.
type progressLine struct {
	w     io.Writer
	shown bool
}

func newProgressLine(w io.Writer) *progressLine {
	if file, ok := w.(*os.File); ok && console.IsTerminal(file) {
		return &progressLine{w: w}
	}
	return &progressLine{w: io.Discard}
}

// eraseLine is the terminal's control sequence that moves to the first column and erases the line.
const eraseLine = "\r\x1b[K"

func (p *progressLine) show(text string) {
	p.shown = true
	_, _ = io.WriteString(p.w, eraseLine+text)
}

func (p *progressLine) clear() {
	if p.shown {
		_, _ = io.WriteString(p.w, eraseLine)
	}
}
