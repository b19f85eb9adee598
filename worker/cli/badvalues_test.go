package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
)

// foreignWords are words of libraries and of system calls. They mean nothing to a user.
var foreignWords = regexp.MustCompile(`strconv|pflag|parse error|shorthand|invalid syntax|flag needs|invalid argument "|bad flag|[lf]?stat /|` +
	"failed to connect|`user=|dial unix|csv:|yaml:|json:|%!")

// checkWords expects errors for a person: without words of libraries, control characters and endless lines.
func checkWords(t *testing.T, words []string, errOut string) {
	t.Helper()
	longest := 1050
	for line := range strings.Lines(errOut) {
		if foreign := foreignWords.FindString(line); foreign != "" {
			t.Errorf("%.200q: %q in %.300q", words, foreign, line)
		}
		if len([]rune(line)) > longest {
			t.Errorf("%.200q: a line of %d characters", words, len([]rune(line)))
		}
		if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !render.VisibleRune(r) || unicode.IsControl(r) }) {
			t.Errorf("%.200q: control characters in %.300q", words, line)
		}
	}
}

func badValues() []string {
	return []string{"x", "", "-1", "--tree", "1.5", "10", "999999999999999999999", `a"b`, "\x1b[31m", "/nonexist", strings.Repeat("y", 10_000)}
}

// eachCommand calls visit for all commands without subcommands, with the words before their options.
func eachCommand(root *cobra.Command, visit func(cmd *cobra.Command, words []string)) {
	for _, c := range root.Commands() {
		switch {
		case c.HasSubCommands():
			eachCommand(c, visit)
		case c.Name() == "help" || c.Name() == "completion" || strings.HasPrefix(c.Name(), "__"):
		default:
			visit(c, strings.Fields(c.CommandPath())[1:])
		}
	}
}

// TestBadValues gives each option of each command bad values. No command gets far: no server has the directory, and the worker's
// connection string is wrong.
func TestBadValues(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("PGDATA", "")
	t.Setenv("STATE_DIRECTORY", "")
	stdin := os.Stdin // some commands read it
	t.Cleanup(func() { os.Stdin = stdin })
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = null.Close() })
	os.Stdin = null
	options := 0
	eachCommand(newRoot("test"), func(cmd *cobra.Command, words []string) {
		cmd.InitDefaultHelpFlag()
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" {
				return
			}
			options++
			for _, value := range badValues() {
				args := append(slices.Clone(words), "--"+f.Name+"="+value)
				switch {
				case cmd.Name() == "worker":
					args = append(args, "port=x")
				case cmd.Name() == "trace":
					args = append(args, "f")
				}
				if cmd.Flags().Lookup("pgdata") != nil && f.Name != "pgdata" && cmd.Name() != "worker" {
					args = append(args, "-D", "/none")
				}
				if f.Name == "pgdata" && value == "" || cmd.Name() == "rules" || f.Name == "all" {
					continue
				}
				_, _, errOut := run(t, args...)
				checkWords(t, args, errOut)
			}
		})
	})
	if options < 150 {
		t.Errorf("only %d options", options)
	}
	for _, c := range []string{
		"activity", "capture", "capture --core", "memory", "plan", "profile", "waits", "waits --trace", "symbols", "report", "decode",
		"decode --pid", "incident show --record-dir /none", "incident list --record-dir", "rules check", "rules list --rules",
		"trace -D /none", "worker", "history --record-dir", "top --connect", "top --pid", "--", "help", "incident", "-D",
	} {
		for _, value := range badValues() {
			if c == "worker" {
				if value == "10" || value == "" {
					continue // a worker would run
				}
				value = "port=" + value
			}
			args := append(strings.Fields(c), value)
			_, _, errOut := run(t, args...)
			checkWords(t, args, errOut)
		}
	}
}

// TestMistakes compares the words for mistakes of use.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"waits --trace --duration 5s": `--trace needs a value, but the option "--duration" follows`,
		"waits --duration":            "--duration needs a value: --duration TIME",
		"waits -d":                    "--duration needs a value: --duration TIME",
		"waits -5s":                   `waits has no option -5, as in "-5s"`,
		"waits -5":                    "-5 is neither an option nor a process id",
		"waits -x":                    "waits has no option -x",
		"waits --=x":                  `"--=x" is no option`,
		"plan --query-width 1.5":      `--query-width must be a whole number, not "1.5"`,
		"plan --query-width 99999999999999999999": `--query-width must be a number nearer to 0, not "99999999999999999999"`,
		`trace f --debug-dir a"b`:                 `--debug-dir has a quotation mark at a wrong place: "a\"b"`,
		"plan -D /nonexist":                       "the directory /nonexist does not exist",
	} {
		_, _, errOut := run(t, strings.Fields(words)...)
		if first, _, _ := strings.Cut(errOut, "\n"); first != "pg_stat_backtrace: "+want {
			t.Errorf("%s: %q, want %q", words, errOut, want)
		}
	}
}

// TestHelpOfOptions expects a word in capitals for the value of each option, and defaults as a user would write them.
func TestHelpOfOptions(t *testing.T) {
	t.Parallel()
	eachCommand(newRoot("test"), func(cmd *cobra.Command, words []string) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			value, _ := pflag.UnquoteUsage(f)
			if !f.Hidden && f.Value.Type() != "bool" && value != strings.ToUpper(value) {
				t.Errorf("%s: --%s %s", words, f.Name, value)
			}
		})
		if usage := cmd.Flags().FlagUsages(); strings.Contains(usage, "(default [") {
			t.Errorf("%s: a default in brackets in\n%s", words, usage)
		}
	})
}

// TestServersBelow gives the directory above a server's data directory. The error names this server only.
func TestServersBelow(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	other := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	for _, words := range []string{"activity", "doctor", "waits"} {
		status, out, errOut := run(t, words, "-D", filepath.Dir(s.DataDir))
		if status != exitFailed || out != "" || !strings.Contains(errOut, "not a PostgreSQL data directory") ||
			!strings.Contains(errOut, "Servers below it:\n  -D "+s.DataDir+"\n") || strings.Contains(errOut, other.DataDir) {
			t.Errorf("%s: status %d, %q, %q", words, status, out, errOut)
		}
		status, out, errOut = run(t, words, "-D", "/nonexist")
		if status != exitFailed || out != "" || !strings.HasPrefix(errOut, "pg_stat_backtrace: the directory /nonexist does not exist\n  Servers of this host:") {
			t.Errorf("%s -D /nonexist: status %d, %q, %q", words, status, out, errOut)
		}
	}
}

// TestConnectWords compares the words for connections that fail.
func TestConnectWords(t *testing.T) {
	s := pgtest.Lend(t, pgtest.BinDir(t), pgtest.Options{})
	connect := func(settings string) error {
		config, err := pgx.ParseConfig(settings)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := cluster.Connect(context.Background(), config)
		if err == nil {
			_ = conn.Close(context.Background())
		}
		return err
	}
	missing := t.TempDir()
	for settings, want := range map[string]string{
		fmt.Sprintf("host=%s port=5432 user=joe dbname=shop", missing): fmt.Sprintf(
			"cannot connect as user joe to database shop: %s/.s.PGSQL.5432: no such file or directory", missing),
		"host=127.0.0.1 port=1 user=joe dbname=shop": "cannot connect as user joe to database shop: 127.0.0.1:1: connection refused",
		s.DSN("nobody_here", "postgres"): "cannot connect as user nobody_here to database postgres: " +
			`FATAL: role "nobody_here" does not exist (SQLSTATE 28000)`,
	} {
		err := connect(settings)
		var driver *pgconn.ConnectError
		if err == nil || err.Error() != want || !errors.As(err, &driver) {
			t.Errorf("%s: %v, want %s", settings, err, want)
		}
	}
}

// TestTellfIsBounded expects the begin and the end of an endless line.
func TestTellfIsBounded(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	status := Main("test", []string{strings.Repeat("ä", 5000)}, os.Stdout, &b)
	line, _, _ := strings.Cut(b.String(), "\n")
	if n := len([]rune(line)); status != exitUsage || n > 1050 || n < 500 || !strings.Contains(line, "ä…ä") {
		t.Errorf("status %d, %d characters: %s", status, n, line)
	}
}
