package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestNodeFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want int
	}{
		{[]string{"worker", "--all", "-D", "/srv/pgdata"}, exitUsage},
		{[]string{"worker", "--all", "--max-workers", "0"}, exitUsage},
		{[]string{"worker", "--all", "--supervised"}, exitUsage},
		{[]string{"worker", "--uid", "26", "-D", "/srv/pgdata"}, exitUsage},
		{[]string{"worker", "--below", "/srv", "-D", "/srv/pgdata"}, exitUsage},
	} {
		if code, out, errOut := run(t, c.args...); code != c.want {
			t.Errorf("%q: exit status %d, %s%s", c.args, code, out, errOut)
		}
	}
}

// TestAllRefusesOneServer: options that fit one server only are refused with --all, and options that fit every server
// are not. A worker that is not refused would serve the servers of this host, so the test does not run the command.
func TestAllRefusesOneServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags []string
		text  string
		want  string // part of the error; empty: accepted
	}{
		{text: "host=/run/postgresql", want: "host in CONNSTRING"},
		{text: "user=x hostaddr = 127.0.0.1", want: "hostaddr in CONNSTRING"},
		{text: "port=5433", want: "port in CONNSTRING"},
		{text: "service=main", want: "service in CONNSTRING"},
		{text: "postgresql://db1/postgres", want: "host in CONNSTRING"},
		{text: "postgresql:///postgres?port=5433", want: "port in CONNSTRING"},
		{flags: []string{"--export-cluster", "main"}, want: "--all and --export-cluster exclude each other"},
		{flags: []string{"--listen", "127.0.0.1:65530"}, want: "leaves no ports for 64 workers"},
		{flags: []string{"--listen", "127.0.0.1:65535", "--max-workers", "2"}, want: "leaves no ports for 2 workers"},
		{flags: []string{"--listen", "127.0.0.1"}, want: "must be HOST:PORT"},
		{flags: []string{"--listen", "127.0.0.1:65534", "--max-workers", "2"}},
		{text: "user=backtracer dbname=postgres"},
		{text: "host='' user=x"},
		{text: "postgresql://backtracer@/postgres"},
		{flags: []string{"--export-pyroscope", "http://127.0.0.1:4040"}},
	} {
		cmd := newWorker("1")
		if err := cmd.ParseFlags(append([]string{"--all"}, c.flags...)); err != nil {
			t.Fatal(err)
		}
		workers, err := cmd.Flags().GetInt(flagMaxWorkers)
		if err != nil {
			t.Fatal(err)
		}
		err = (&nodeFlags{all: true, max: workers}).check(cmd, []string{c.text})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q %q: %v, want %q", c.flags, c.text, err, c.want)
		}
	}
}

// TestPassedOn: the workers get the flags that were given, except those of the supervisor.
func TestPassedOn(t *testing.T) {
	t.Parallel()
	fs := pflag.NewFlagSet("worker", pflag.ContinueOnError)
	fs.Bool(flagAll, false, "")
	fs.String(flagListen, "", "")
	fs.String("listen-token-file", "", "")
	fs.StringSlice("debug-dir", nil, "")
	fs.Float64("rate", 1, "")
	fs.Int("burst", 1, "")
	given := []string{"--all", "--listen", ":1", "--debug-dir", "/a,/b", "--debug-dir", "/c", "--rate", "5",
		"--listen-token-file", "/t"}
	if err := fs.Parse(given); err != nil {
		t.Fatal(err)
	}
	for listener, want := range map[bool][]string{
		false: {"--debug-dir=/a", "--debug-dir=/b", "--debug-dir=/c", "--rate=5"}, true: {"--listen-token-file=/t"},
	} {
		got := passedOn(fs, func(name string) bool { return strings.HasPrefix(name, flagListen) == listener })
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("passed on: %q, want %q", got, want)
		}
	}
}

// TestPassedOnValues expects that the workers read the same values of a list as the supervisor, whatever characters these have.
func TestPassedOnValues(t *testing.T) {
	t.Parallel()
	parse := func(words ...string) (fs *pflag.FlagSet, csv, plain []string, err error) {
		fs = pflag.NewFlagSet("worker", pflag.ContinueOnError)
		fs.StringSliceVar(&csv, "record-redact", nil, "")
		fs.StringArrayVar(&plain, "debuginfod", nil, "")
		return fs, csv, plain, fs.Parse(words)
	}
	for given, want := range map[string]string{
		"app": "app", `"app,eu"`: "app,eu", `"say ""hi"""`: `say "hi"`, "\"two\nlines\"": "two\nlines", `""`: "",
	} {
		fs, _, _, err := parse("--record-redact="+given, "--debuginfod="+given)
		if err != nil {
			t.Fatal(given, err)
		}
		words := passedOn(fs, func(string) bool { return true })
		_, csv, plain, err := parse(words...)
		if err != nil || !slices.Equal(csv, []string{want}) || !slices.Equal(plain, []string{given}) {
			t.Errorf("%s: passed on as %q, read as %q and %q, %v", given, words, csv, plain, err)
		}
	}
}

func TestNthAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		address string
		slot    int
		want    string
	}{
		{"127.0.0.1:9188", 0, "127.0.0.1:9188"}, {"127.0.0.1:9188", 3, "127.0.0.1:9191"}, {"[::1]:9188", 1, "[::1]:9189"},
		{"127.0.0.1", 0, ""}, {"127.0.0.1:0", 0, ""}, {"127.0.0.1:http", 0, ""},
		{"127.0.0.1:65530", 5, "127.0.0.1:65535"}, {"127.0.0.1:65530", 6, ""},
	} {
		if got, err := nthAddress(c.address, c.slot); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("nthAddress(%q, %d) = %q, %v", c.address, c.slot, got, err)
		}
	}
}
