package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/doctor"
	"pg_stat_backtrace/worker/naming/debuginfod"
	"pg_stat_backtrace/worker/naming/symbolize"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
)

// symbolsFlags are the flags of the command symbols.
type symbolsFlags struct {
	dataDir string
	fetch   bool
	json    bool
	wide    bool
	dirs    []string
	remote  console.DebuginfodFlags
}

func newSymbols() *cobra.Command {
	var f symbolsFlags
	cmd := &cobra.Command{
		Use:   "symbols [PID|FILE]...",
		Short: "Say where the names of a stack come from, and how to get the rest",
		Long: `List the images of each process, or each ELF file: the share of its functions that
have a name, whether source lines are known, its build-id, and where the names
come from. Then say what to install or to configure for the missing ones. Without
arguments, the command looks at the postmaster of the server that -D, $PGDATA or
libpq's defaults lead to. A module that only backends load, such as plpgsql.so, is
listed for the PID of such a backend. Nothing is stopped.

FROM is .symtab (the image has all its symbols), "debug file" (an installed file),
debuginfod (a downloaded file), "Go's table" (which every Go program has),
.gnu_debugdata, .dynsym (exported functions only) or nothing. The functions are
those in the image's call frame information. With --fetch, missing debug files
are downloaded from the debuginfod servers first. Captures of this user, and a
worker with the same cache, use them later.`,
		Example: `  pg_stat_backtrace symbols -D /var/lib/postgresql/15/main
  pg_stat_backtrace symbols 4711
  pg_stat_backtrace symbols /usr/lib/postgresql/15/bin/postgres
  pg_stat_backtrace symbols --fetch --debuginfod https://debuginfod.debian.net 4711
  pg_stat_backtrace symbols --json 4711`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.dataDir, "pgdata", "D", "",
		"the server's data `DIRECTORY`, for its postmaster; default without arguments, PGHOST, PGHOSTADDR, PGPORT and PGSERVICE: $PGDATA")
	fs.BoolVar(&f.fetch, "fetch", false, "fetch the debug files that are missing, and wait for them")
	fs.BoolVar(&f.json, "json", false, "print JSON, a line for each process or file")
	fs.BoolVar(&f.wide, "wide", false, "print whole build-ids on a terminal too")
	fs.StringSliceVar(&f.dirs, "debug-dir", nil, console.DebugDirUsage)
	f.remote.Add(cmd)
	_ = cmd.MarkFlagDirname("pgdata")
	_ = cmd.MarkFlagDirname("debug-dir")
	return cmd
}

// subject is a process or a file whose symbols are examined.
type subject struct {
	pid  int // 0: a file
	file string
}

func (s subject) String() string {
	if s.pid != 0 {
		return fmt.Sprintf("process %d", s.pid)
	}
	return s.file
}

// subjects reads the arguments: a number is a process id, any other text is the name of a file.
func subjects(args []string) ([]subject, error) {
	all := make([]subject, 0, len(args))
	for _, arg := range args {
		switch {
		case arg == "":
			return nil, errors.New("an argument is empty")
		case strings.Trim(arg, "0123456789") != "":
			all = append(all, subject{file: arg})
		default:
			pid, err := strconv.ParseInt(arg, 10, 32)
			if err != nil || pid == 0 {
				return nil, fmt.Errorf("%q is not a process id (a file of that name is ./%s)", arg, arg)
			}
			all = append(all, subject{pid: int(pid)})
		}
	}
	return all, nil
}

// postmaster returns the process that the command examines without arguments.
func (f *symbolsFlags) postmaster(ctx context.Context, stderr io.Writer) (subject, error) {
	c, err := cluster.Find(ctx, cluster.Options{DataDir: f.dataDir})
	if err != nil && f.dataDir == "" { // libpq's defaults do not lead to a server
		dir := ""
		if err := console.TakeOnlyServer(&dir, false, stderr); err != nil {
			return subject{}, err
		}
		c, err = cluster.ByDataDir(dir)
	}
	if err != nil && f.dataDir != "" {
		return subject{}, err
	}
	if err != nil {
		return subject{}, fmt.Errorf("no server found: %w\n  Name its data directory (-D), a process or a file", err)
	}
	return subject{pid: c.PostmasterPID}, nil
}

// run examines all subjects, one after the other. If one fails, run reports the error on stderr, continues, and returns
// console.ErrReported at the end.
func (f *symbolsFlags) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	all, err := subjects(args)
	if err == nil && len(args) > 0 && f.dataDir != "" {
		err = errors.New("give either -D, or process ids and files, not both")
	}
	if err != nil {
		return console.Usage(err)
	}
	bar := console.NewProgress(stderr)
	client, err := f.remote.Client(bar.Event)
	if err != nil {
		return err
	}
	if client != nil {
		defer client.Close()
	} else if f.fetch {
		return console.Usage(fmt.Errorf("--fetch needs a debuginfod server: give --debuginfod URL, or set %s", debuginfod.EnvURLs))
	}
	if len(all) == 0 {
		one, err := f.postmaster(ctx, stderr)
		if err != nil {
			return err
		}
		all = append(all, one)
	}
	failed := false
	for i, s := range all {
		err := console.UntilInterrupt(ctx, time.Second, func() error { return f.one(ctx, s, client, bar, stdout, i > 0) })
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			failed = true
			console.Tellf(stderr, "%v", err)
		}
	}
	if failed || bar.Failed() {
		return console.ErrReported
	}
	return nil
}

// one examines one subject and prints the result. If further is set, it prints an empty line before the result.
func (f *symbolsFlags) one(
	ctx context.Context, s subject, client *debuginfod.Client, bar *console.Progress, stdout io.Writer, further bool,
) error {
	images, err := f.look(s, client)
	if err != nil {
		return describeError(s, err)
	}
	if f.fetch && fetchMissing(ctx, client, images, bar) {
		if images, err = f.look(s, client); err != nil {
			return describeError(s, err)
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	doctor.FindPackages(ctx, images)
	if f.json {
		return render.JSONEncoder(stdout).Encode(symbolsReport{PID: s.pid, File: s.file, Images: append([]doctor.SymbolImage{}, images...)})
	}
	if further {
		if _, err := fmt.Fprintln(stdout); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(stdout, "%s\n", render.VisibleLine(s.String())); err != nil {
		return err
	}
	width := 0
	if !f.wide {
		width = console.TerminalWidth(stdout)
	}
	if err := doctor.SymbolTable(stdout, images, width); err != nil {
		return err
	}
	advice := doctor.SymbolAdvice(images, f.again(s), client != nil && !f.fetch)
	if len(advice) == 0 {
		return nil
	}
	_, err = fmt.Fprintf(stdout, "To get the missing names and lines:\n    %s\n", strings.Join(advice, "\n    "))
	return err
}

// again returns a command line that examines only this subject, quoted for a shell.
func (f *symbolsFlags) again(s subject) string {
	words := []string{"pg_stat_backtrace", "symbols"}
	switch {
	case s.file != "":
		words = append(words, render.ShellWord(s.file))
	case f.dataDir != "":
		words = append(words, "-D", render.ShellWord(f.dataDir))
	default:
		words = append(words, strconv.Itoa(s.pid))
	}
	for _, dir := range f.dirs {
		words = append(words, "--debug-dir", render.ShellWord(dir))
	}
	return strings.Join(append(words, f.remote.Words()...), " ")
}

// symbolsReport has the images of a process or a file, and where the names of their functions come from.
type symbolsReport struct {
	PID    int                  `json:"pid,omitempty"`
	File   string               `json:"file,omitempty"`
	Images []doctor.SymbolImage `json:"images"`
}

func (f *symbolsFlags) look(s subject, client *debuginfod.Client) ([]doctor.SymbolImage, error) {
	o := doctor.SymbolOptions{DebugDirs: f.dirs}
	if client != nil {
		o.Fetched = client // set only if client is not nil: an interface with a nil *Client is not nil
	}
	if s.pid != 0 {
		return doctor.SymbolsOf(s.pid, o)
	}
	m, err := doctor.SymbolsOfFile(s.file, o)
	return []doctor.SymbolImage{m}, err
}

// describeError returns err with the name of the subject about which it is. For some errors, it adds a remedy.
func describeError(s subject, err error) error {
	switch {
	case errors.Is(err, process.ErrGone):
		return fmt.Errorf("%s", console.NoProcess(s.pid))
	case errors.Is(err, process.ErrDenied):
		return errors.New(console.DeniedProcess(s.pid))
	case errors.Is(err, symbolize.ErrCoreFile):
		return fmt.Errorf("%w\n  Print its stacks with: pg_stat_backtrace capture --core %s", err, render.ShellWord(s.file))
	case s.pid == 0 && errors.Is(err, fs.ErrNotExist) && !strings.Contains(s.file, "/"):
		return fmt.Errorf("%s is neither a process id nor a file in this directory", render.VisibleLine(s.file))
	case s.pid != 0 || !strings.Contains(err.Error(), s.file):
		return fmt.Errorf("%s: %w", s, err)
	}
	return err
}

// fetchMissing downloads the missing debug files of the images, one after the other. It returns whether it has downloaded any.
func fetchMissing(ctx context.Context, client *debuginfod.Client, images []doctor.SymbolImage, bar *console.Progress) bool {
	come := false
	for i := range images {
		m := &images[i]
		id := m.BuildID
		if m.FetchedFile != "" || m.MissingSupplement != "" {
			id = m.MissingSupplement
		}
		if m.Complete() || id == "" || ctx.Err() != nil {
			continue
		}
		bar.Begin(m.Name)
		_, err := client.Fetch(ctx, debuginfod.DebugInfo, id)
		bar.End(err)
		come = come || err == nil
	}
	return come
}
