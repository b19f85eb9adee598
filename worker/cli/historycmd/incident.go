package historycmd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/history/incident"
	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/history/rules"
	"pg_stat_backtrace/worker/history/store"
	"pg_stat_backtrace/worker/host/buildcache"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/table"
	"pg_stat_backtrace/worker/report/units"
)

// incidentFlags are the flags of the command incident.
type incidentFlags struct {
	recordDir, dataDir, cluster string
	output, format, texts, note string
	profile                     time.Duration
	redact                      []string
}

const incidentLong = `An incident is a file of everything that is known about a stall of a server at the
time at which the worker noticed it: the reason, which session blocks which, with
their stacks, the five minutes before, and the state of server and host. A worker
that records writes incidents by itself (see "rules"). They are in the directory
incidents of the history, each as a page (.html) and as JSON.

The command "take" makes an incident now. It needs no worker and no session.`

// NewIncident returns the command incident.
func NewIncident(version string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "incident COMMAND",
		Short: "Print incidents, or take one now",
		Long:  incidentLong,
		Example: `  pg_stat_backtrace incident take -D /var/lib/postgresql/15/main -o incident.html
  pg_stat_backtrace incident list --record-dir /var/lib/pg_stat_backtrace
  pg_stat_backtrace incident show --record-dir /var/lib/pg_stat_backtrace last
  pg_stat_backtrace incident bundle --record-dir /var/lib/pg_stat_backtrace last -o incident.zip`,
		Args: console.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return console.Usage(errors.New("give a command: take, list, show or bundle"))
		},
	}
	cmd.AddCommand(newIncidentTake(version), newIncidentList(), newIncidentShow(), newIncidentBundle())
	return cmd
}

const takeLong = `Read what the sessions of a server do, take the stacks of those that run or wait,
and print it all with the state of server and host. No process is stopped, and no
session is needed. Run the command as root or as the server's user.

With -o FILE the result is a page, or JSON if FILE ends in .json. Only the owner
of a new file can read it. Without -o, the command prints the most important parts.

With --record-dir, the result also has the five minutes before. Then the command
samples all processes for 10 s (--profile), and adds where their time went. It uses
programs in the kernel if it may load them (CAP_BPF, CAP_PERFMON), and otherwise looks
several times a second. Both end early if they cost too much.`

func newIncidentTake(version string) *cobra.Command {
	var f incidentFlags
	cmd := &cobra.Command{
		Use:   "take [-D DIRECTORY] [-o FILE]",
		Short: "Make an incident of what a server does now",
		Long:  takeLong,
		Example: `  pg_stat_backtrace incident take -D /var/lib/postgresql/15/main
  pg_stat_backtrace incident take -D /srv/pgdata --record-dir /var/lib/pg_stat_backtrace -o incident.html`,
		Args: console.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := worker.RecordConfig{Texts: f.texts}
			if err := c.Check(); err != nil {
				return console.Usage(err)
			}
			if f.profile < 0 || f.profile > maxIncidentProfile {
				return console.Usage(fmt.Errorf("--profile must be a time from 0 to %s", maxIncidentProfile))
			}
			if err := console.TakeOnlyServer(&f.dataDir, false, cmd.ErrOrStderr()); err != nil {
				return err
			}
			return f.take(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), version)
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.dataDir, "pgdata", "D", "", "the server's data `DIRECTORY`; default: $PGDATA, else the only server of this host")
	fs.StringVarP(&f.output, "output", "o", "", "write to `FILE`: a page, or JSON if the name ends in .json")
	fs.StringVar(&f.recordDir, console.FlagRecordDir, "", "the `DIRECTORY` to which a worker records (default $STATE_DIRECTORY)")
	fs.StringVar(&f.texts, "record-query-text", "normalized",
		"keep `TEXTS` of queries: normalized (without values and comments), all, or off")
	fs.StringSliceVar(&f.redact, "record-redact", nil, "keep no texts of queries of `ROLE` (may be given several times)")
	fs.StringVar(&f.note, "note", "", "put a `TEXT` into the result")
	fs.DurationVar(&f.profile, "profile", incident.ProfileTime, "sample the processes for a `TIME`; 0: not at all")
	_ = cmd.MarkFlagDirname("pgdata")
	_ = cmd.MarkFlagDirname(console.FlagRecordDir)
	return cmd
}

// directory adds the flags that choose the directory with the stored incidents.
func (f *incidentFlags) directory(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&f.recordDir, console.FlagRecordDir, "",
		"the `DIRECTORY` to which the worker records (default $STATE_DIRECTORY, or with -D where its worker records)")
	fs.StringVarP(&f.dataDir, "pgdata", "D", "", "the server's data `DIRECTORY`, if the history has several servers; "+
		"default without --record-dir: $PGDATA")
	fs.StringVar(&f.cluster, "cluster", "", "the server's system `IDENTIFIER`, if the history has several servers")
	_ = cmd.MarkFlagDirname(console.FlagRecordDir)
	_ = cmd.MarkFlagDirname("pgdata")
}

func newIncidentList() *cobra.Command {
	var f incidentFlags
	cmd := &cobra.Command{
		Use:   "list --record-dir DIRECTORY",
		Short: "Print the incidents of a server, the newest last",
		Long: `Print the incidents of a server, the newest last: the name, how long the incident
lasted, and the reason. "no end seen" means that it has not ended, or that its
worker ended first. "ended" means that the clock was set back meanwhile. An end is
known when its cause has been absent for the cool-down of the rules. The worker and the
server may be down.`,
		Example: `  pg_stat_backtrace incident list --record-dir /var/lib/pg_stat_backtrace`,
		Args:    console.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.format != console.FormatText && f.format != console.FormatJSON {
				return console.Usage(fmt.Errorf("--format must be text or json, not %q", f.format))
			}
			return f.list(cmd.OutOrStdout())
		},
	}
	f.directory(cmd)
	cmd.Flags().StringVarP(&f.format, "format", "f", console.FormatText, "`FORMAT` of the result: text, or json (a line each)")
	return cmd
}

func newIncidentShow() *cobra.Command {
	var f incidentFlags
	cmd := &cobra.Command{
		Use:   "show --record-dir DIRECTORY ID",
		Short: "Print an incident",
		Long:  "Print an incident. ID is a name that the command list prints, or the word last.",
		Example: `  pg_stat_backtrace incident show --record-dir /var/lib/pg_stat_backtrace last
  pg_stat_backtrace incident show --record-dir /var/lib/pg_stat_backtrace 20261128T030012Z-lock_wait-3f2a -f html -o incident.html`,
		Args: console.UsageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch f.format {
			case console.FormatText, console.FormatJSON, console.FormatHTML:
			default:
				return console.Usage(fmt.Errorf("--format must be text, json or html, not %q", f.format))
			}
			i, err := f.read(args[0])
			if err != nil {
				return err
			}
			return f.write(cmd.OutOrStdout(), func(out io.Writer) error { return printIncident(out, i, f.format) })
		},
	}
	f.directory(cmd)
	cmd.ValidArgsFunction = f.complete
	cmd.Flags().StringVarP(&f.format, "format", "f", console.FormatText, "`FORMAT` of the result: text, json or html")
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "write to `FILE` instead of standard output")
	return cmd
}

// maxIncidentProfile is the longest profile of an incident.
const maxIncidentProfile = 10 * time.Minute

const bundleLong = `Write an incident for somebody else to a zip file: without texts of queries, and with
numbers in place of the names of databases, users, applications, clients, functions
and directories. The file also has a list of what was removed. Read it before
you pass it on: names of C functions, modules and settings stay.`

func newIncidentBundle() *cobra.Command {
	var f incidentFlags
	cmd := &cobra.Command{
		Use:     "bundle --record-dir DIRECTORY ID -o FILE",
		Short:   "Write an incident without names and texts to a zip file",
		Long:    bundleLong,
		Example: `  pg_stat_backtrace incident bundle --record-dir /var/lib/pg_stat_backtrace last -o incident.zip`,
		Args:    console.UsageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.output == "" {
				return console.Usage(errors.New("give the name of the zip file with -o"))
			}
			i, err := f.read(args[0])
			if err != nil {
				return err
			}
			return f.write(cmd.OutOrStdout(), func(out io.Writer) error { return incident.Bundle(out, i) })
		},
	}
	f.directory(cmd)
	cmd.ValidArgsFunction = f.complete
	cmd.Flags().StringVarP(&f.output, "output", "o", "", "write to `FILE`")
	return cmd
}

// dir returns the directory of the server's incidents.
func (f *incidentFlags) dir() (*incident.Dir, error) {
	h := historyFlags{recordDir: recordDirOf(f.recordDir, f.dataDir), dataDir: f.dataDir, cluster: f.cluster}
	switch {
	case h.recordDir == "":
		return nil, noRecordDir(f.dataDir)
	case f.dataDir != "" && f.cluster != "":
		return nil, console.Usage(errors.New("-D and --cluster exclude each other"))
	}
	id, err := h.systemID()
	if err != nil {
		return nil, err
	}
	if _, err := store.OpenReader(h.recordDir, id); err != nil { // only to check that the directory has a history of this server
		return nil, err
	}
	return &incident.Dir{Path: incident.DirOf(h.recordDir, id)}, nil
}

func (f *incidentFlags) stateDir() string {
	return cmp.Or(f.recordDir, strings.Split(os.Getenv("STATE_DIRECTORY"), ":")[0])
}

// read reads the incident with this name; "last": the newest incident.
func (f *incidentFlags) read(id string) (*incident.Incident, error) {
	d, err := f.dir()
	if err != nil {
		return nil, err
	}
	if id == "last" {
		list, err := d.List()
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			return nil, fmt.Errorf("%w in %s", incident.ErrNotFound, d.Path)
		}
		id = list[len(list)-1].ID
	}
	return d.Read(id)
}

// complete returns the names of the newest incidents, for the completion in a shell.
func (f *incidentFlags) complete(_ *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const most = 50
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	found := []cobra.Completion{"last\tthe newest incident"}
	if d, err := f.dir(); err == nil {
		list, _ := d.List()
		for _, e := range slices.Backward(list) {
			if len(found) <= most {
				found = append(found, e.ID)
			}
		}
	}
	found = slices.DeleteFunc(found, func(c cobra.Completion) bool { return !strings.HasPrefix(c, word) })
	return found, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// IncidentLine is the JSON of one incident of "incident list".
type IncidentLine struct {
	ID   string    `json:"id"`
	Time time.Time `json:"time,omitzero"`
	// Ended is absent until the incident has ended, and if the worker ended before.
	Ended  *time.Time    `json:"ended,omitempty"`
	Reason rules.Finding `json:"reason"`
	Size   int64         `json:"size_bytes"`
	// Problem says why the file cannot be read. Then Time and Reason are not known.
	Problem string `json:"problem,omitempty"`
}

func (f *incidentFlags) list(out io.Writer) error {
	d, err := f.dir()
	if err != nil {
		return err
	}
	list, err := d.List()
	if err != nil {
		return err
	}
	if f.format == console.FormatText && len(list) == 0 {
		_, err := fmt.Fprintf(out, "no incidents in %s\n", render.VisibleLine(d.Path))
		return err
	}
	w := table.Fit(out, table.Options{Width: console.TerminalWidth(out), NoHeader: true}, []table.Column{{}, {}, {Least: 20, Wrap: true}})
	w.Row("incident", "lasted", "reason")
	enc := render.JSONEncoder(out)
	for _, e := range list {
		line, lasted, headline := IncidentLine{ID: e.ID, Size: e.Size}, "", ""
		i, err := d.Read(e.ID)
		if err != nil {
			line.Problem = err.Error()
		} else {
			line.Time, line.Ended, line.Reason, headline = i.Time, i.Ended, i.Reason, i.Headline()
			switch lasted = "no end seen"; {
			case i.Ended == nil:
			case units.Ahead(*i.Ended, i.Reason.Since): // the clock was set back meanwhile
				lasted = "ended"
			default:
				lasted = "lasted " + units.Age(i.Ended.Sub(i.Reason.Since))
			}
		}
		if f.format == console.FormatJSON {
			if err := enc.Encode(&line); err != nil {
				return err
			}
			continue
		}
		w.Row(line.ID, lasted, cmp.Or(line.Problem, headline))
	}
	_, err = w.Flush()
	return err
}

// write calls the callback produce with the output that the flags choose. If this is a new file, only its owner can
// read it.
func (f *incidentFlags) write(stdout io.Writer, produce func(io.Writer) error) error {
	const others = 0o077
	defer unix.Umask(unix.Umask(others))
	out, err := console.CreateOutput(f.output, stdout)
	if err != nil {
		return err
	}
	defer out.Discard()
	if err := produce(out); err != nil {
		return err
	}
	return out.Commit()
}

func printIncident(out io.Writer, i *incident.Incident, format string) error {
	switch format {
	case console.FormatHTML:
		_, err := out.Write(incident.Page(i))
		return err
	case console.FormatJSON:
		var b bytes.Buffer
		enc := render.JSONEncoder(&b)
		enc.SetIndent("", " ")
		if err := enc.Encode(i); err != nil {
			return err
		}
		_, err := out.Write(b.Bytes())
		return err
	}
	return incident.Text(out, i)
}

// take makes an incident, a report of what the server does now, and writes it to the output.
func (f *incidentFlags) take(ctx context.Context, out, stderr io.Writer, version string) error {
	c, err := cluster.ByDataDir(f.dataDir)
	if err != nil {
		return err
	}
	console.Tellf(stderr, "reading the sessions of %s, and taking their stacks without stopping them", c.DataDir)
	const linesWait = 2 * time.Second
	capturer, err := capture.New(capture.Config{LinesWait: linesWait, AwaitNames: true, Kept: buildcache.Own})
	if err != nil {
		return err
	}
	now := time.Now()
	look, notes, err := recorder.New(recorder.Options{
		DataDir: c.DataDir, Texts: recorder.Texts(f.texts), Redact: f.redact,
		Server: func() (cluster.Cluster, error) { return c, nil },
	}).Snapshot(now)
	if err != nil {
		return err
	}
	src := incident.Source{Server: c, StateDir: f.stateDir(), Capturer: capturer, Proof: console.ProvenPlans(c.DataDir), Program: version}
	i := incident.Collect(ctx, src, incident.ByPerson(now, f.note), look)
	if f.profile > 0 {
		console.Tellf(stderr, "sampling all processes for %s, to see where their time goes (--profile 0 leaves this out)", f.profile)
		i.Profile = incident.TakeProfile(ctx, &src, nil, f.profile)
	}
	for _, n := range notes {
		i.Missing = append(i.Missing, "sessions: "+n)
	}
	format := console.FormatText
	switch {
	case f.output != "" && strings.EqualFold(filepath.Ext(f.output), ".json"):
		format = console.FormatJSON
	case f.output != "" && f.output != "-":
		format = console.FormatHTML
	}
	if err := f.write(out, func(w io.Writer) error { return printIncident(w, i, format) }); err != nil {
		return err
	}
	if format != console.FormatText { // the text has the missing parts
		for _, m := range i.Missing {
			console.Tellf(stderr, "missing: %s", render.VisibleLine(m))
		}
	}
	f.tellNext(stderr, format)
	return nil
}

// tellNext prints on stderr where the result is, and how to look at it.
func (f *incidentFlags) tellNext(stderr io.Writer, format string) {
	path, err := filepath.Abs(f.output)
	if err != nil {
		path = f.output
	}
	switch {
	case f.output == "" || f.output == "-":
		console.Tellf(stderr, "this is the most important part; for all of it as a page: pg_stat_backtrace incident take -D %s -o incident.html",
			render.ShellWord(f.dataDir))
	case format == console.FormatHTML:
		console.Tellf(stderr, "wrote %s: open it in a browser, for example with: xdg-open %s", path, render.ShellWord(path))
	default:
		console.Tellf(stderr, "wrote %s; why it was taken: jq .reason %s", path, render.ShellWord(path))
	}
}
