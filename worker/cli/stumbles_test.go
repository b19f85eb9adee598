package cli

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
)

// TestNoSuchProcess expects each command that takes a process id to say that the process does not exist.
func TestNoSuchProcess(t *testing.T) {
	t.Parallel()
	for _, words := range []string{
		"activity", "capture", "capture --nonstop", "capture --goroutines", "memory", "memory --tree", "memory --allocations", "plan",
		"plan -f json", "profile", "symbols", "top --batch --pid", "trace malloc", "waits", "waits --trace",
		"decode --pid",
	} {
		status, out, errOut := run(t, append(strings.Fields(words), "2147483647")...)
		if status != exitFailed || out != "" || errOut != "pg_stat_backtrace: there is no process 2147483647\n" {
			t.Errorf("%s: status %d, %q, %q", words, status, out, errOut)
		}
	}
}

// TestNoProcessID expects each command to refuse a text that is no process id.
func TestNoProcessID(t *testing.T) {
	t.Parallel()
	for _, words := range []string{
		"activity", "capture", "capture --nonstop", "memory", "memory --allocations", "plan", "profile", "symbols", "trace malloc", "waits",
	} {
		for _, pid := range []string{"0", "-1", "99999999999", ""} {
			status, out, errOut := run(t, append(strings.Fields(words), pid)...)
			if status != exitUsage || out != "" || !strings.Contains(errOut, "process id") && !strings.Contains(errOut, "an argument is empty") ||
				!strings.Contains(errOut, "--help") {
				t.Errorf("%s %q: status %d, %q, %q", words, pid, status, out, errOut)
			}
		}
	}
}

// TestKernelThread expects each command that takes a process id to say that the process is a thread of the kernel.
func TestKernelThread(t *testing.T) {
	t.Parallel()
	stat, err := process.ReadStat(2)
	if err != nil || stat.Flags&process.KernelThread == 0 {
		t.Skip("process 2 is no thread of the kernel here, as in a PID namespace")
	}
	for _, words := range []string{
		"activity", "capture", "capture --nonstop", "memory", "memory --allocations", "plan", "profile", "symbols", "trace malloc", "waits",
		"waits --trace",
	} {
		status, out, errOut := run(t, append(strings.Fields(words), "2")...)
		if status != exitFailed || out != "" || !strings.Contains(errOut, "process 2 (kthreadd) is a thread of the kernel") {
			t.Errorf("%s: status %d, %q, %q", words, status, out, errOut)
		}
	}
}

// TestOtherProcess expects the commands for servers to refuse a process of another program by its name.
func TestOtherProcess(t *testing.T) {
	t.Parallel()
	pid := sleeper(t)
	for _, words := range []string{"activity", "memory", "plan", "profile", "top --batch --pid", "waits", "waits --trace"} {
		status, out, errOut := run(t, append(strings.Fields(words), pid)...)
		if status != exitFailed || out != "" || !strings.Contains(errOut, "process "+pid+" (sleep) is no process of a PostgreSQL server") {
			t.Errorf("%s: status %d, %q, %q", words, status, out, errOut)
		}
	}
}

// TestWrongUse expects an error of use with what to do.
func TestWrongUse(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"help nosuch":               `there is no command "nosuch"` + "\nTry \"pg_stat_backtrace --help\"",
		"help activty":              `there is no command "activty"; did you mean activity?`,
		"help incident tske":        `there is no command "incident tske"; did you mean take?`,
		"incident tske":             `there is no command "incident tske"; did you mean take?`,
		"rules lst":                 `there is no command "rules lst"; did you mean list?`,
		"top 4711":                  "for one session: top --pid 4711",
		"history 4711":              `history takes no arguments, but got "4711"`,
		"doctor 4711":               "doctor examines a server, not a process",
		"incident show":             `wrong number of arguments, 0: the usage is "pg_stat_backtrace incident show`,
		"activity -D /a 1":          "give either -D or process ids, not both",
		"plan -D /a 1":              "give either -D or process ids, not both",
		"waits -D /a -D /b":         "-D is given twice",
		"history --pgdata=/a -D /b": "-D is given twice",
		"waits -d 10 1":             "write 10s, 500ms or 2m",
		"waits -d 1d 1":             "the units are ms, s, m and h",
		"memory -f csv 1":           "--format csv prints the processes of a server",
		"worker port=x":             "pg_stat_backtrace: invalid connection settings: invalid port",
		"waits --trace 0":           "--trace needs a process id, not 0",
		"waits --trace x":           `--trace must be a number, not "x"`,
		"decode --pid x":            `--pid must be a number, not "x"`,
		"profile --rate x 1":        `--rate must be a number, not "x"`,
		"waits -d x 1":              `--duration must be a time such as 10s, 500ms or 2m, not "x"`,
		"capture --threads=x 1":     `--threads takes no value, but has "x"`,
		"worker --uid=x --all":      `--uid must be a number, not "x"`,
		"activity --pgdata=":        "-D is empty: name a data directory",
		"worker --pgdata=":          "-D is empty: name a data directory",
		"trace 0 1":                 `"0" is neither a function nor a process id`,
	} {
		status, out, errOut := run(t, strings.Fields(words)...)
		if status != exitUsage || out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%s: status %d, %q, %q; want %q", words, status, out, errOut, want)
		}
	}
	if status, out, _ := run(t, "help", "incident", "take"); status != exitOK || !strings.Contains(out, "pg_stat_backtrace incident take [-D") {
		t.Errorf("help incident take: status %d, %q", status, out)
	}
}

// TestDataDirectories expects a remedy for directories without a server.
func TestDataDirectories(t *testing.T) {
	t.Parallel()
	stopped, empty := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"PG_VERSION": "18\n", "postmaster.pid": "2147483647\n" + stopped + "\n1700000000\n5432\n/tmp\n\n 1 2\nready   \n",
	} {
		if err := os.WriteFile(filepath.Join(stopped, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, words := range []string{"activity", "top --batch", "plan", "capture", "memory", "waits", "trace f", "profile", "symbols", "incident take"} {
		for dir, want := range map[string]string{
			stopped: "no server is running: postmaster.pid names process 2147483647, which does not run. Start the server, or",
			empty:   "not a PostgreSQL data directory",
			"/none": "the directory /none does not exist",
		} {
			status, out, errOut := run(t, append(strings.Fields(words), "-D", dir)...)
			if status != exitFailed || out != "" || !strings.Contains(errOut, want) {
				t.Errorf("%s -D %s: status %d, %q, %q", words, dir, status, out, errOut)
			}
		}
	}
	for _, words := range []string{"history", "incident list", "incident show last"} {
		status, _, errOut := run(t, append(strings.Fields(words), "-D", stopped)...)
		if status != exitFailed || !strings.Contains(errOut, "no worker records the history of "+stopped) {
			t.Errorf("%s: status %d, %q", words, status, errOut)
		}
	}
}

// TestTakeDataDir compares when $PGDATA is used.
func TestTakeDataDir(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{
		"activity": "/env", "activity 1": "", "activity -D /own": "/own", "capture": "/env", "capture --core x": "", "plan": "/env",
		"memory --allocations 1": "", "trace malloc": "/env", "trace malloc 1": "", "top": "/env", "top --all": "", "top --pid 1": "",
		"top --connect http://h": "", "waits --trace 1": "", "history": "/env", "history --record-dir /r": "", "history --cluster 1": "",
		"incident take --record-dir /r": "/env", "incident show last": "/env", "doctor": "/env", "doctor port=1": "", "worker": "/env",
		"worker port=1": "", "worker --all": "", "symbols": "/env", "symbols /bin/sh": "", "version": "",
	} {
		for _, host := range []string{"", "/run"} {
			root := newRoot("test")
			cmd, rest, err := root.Find(strings.Fields(words))
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if err != nil {
				t.Fatal(words, err)
			}
			var told strings.Builder
			env := func(name string) string { return map[string]string{"PGDATA": "/env", "PGHOST": host}[name] }
			if err := takeDataDir(cmd, cmd.Flags().Args(), env, &told); err != nil {
				t.Fatal(words, err)
			}
			wanted := want
			if host != "" && want == "/env" && slices.Contains([]string{"doctor", "symbols", "worker"}, cmd.Name()) {
				wanted = ""
			}
			got := ""
			if f := cmd.Flags().Lookup("pgdata"); f != nil {
				got = f.Value.String()
			}
			if got != wanted || (told.String() == "pg_stat_backtrace: taking the server of $PGDATA: -D /env\n") != (wanted == "/env") {
				t.Errorf("%s: -D %s, want %q; %q", words, got, wanted, told.String())
			}
		}
	}
}

// checkCSV compares the header and the columns of CSV.
func checkCSV(t *testing.T, s *pgtest.Server) {
	t.Helper()
	for words, want := range map[string]string{
		"waits --method sampled --duration 300ms": "since,seconds,method,wait_event_type,wait_event,calls,total_time_ms,avg_time_us,max_time_us",
		"memory": "time,pid,backend_type,database,user,state,anonymous_bytes,swapped_bytes,contexts_bytes,largest_context,largest_context_bytes,problem,query,application_name",
	} {
		settles(t, func() string { // on a busy machine, a short time may have no reading
			status, out, errOut := run(t, append(strings.Fields(words), "-f", "csv", "-D", s.DataDir)...)
			rows, err := csv.NewReader(strings.NewReader(out)).ReadAll() // each row must have the same number of cells
			if status != exitOK || err != nil || len(rows) == 0 || strings.Join(rows[0], ",") != want {
				t.Errorf("%s: status %d, %v, %s%s", words, status, err, out, errOut)
			} else if len(rows) < 3 {
				return fmt.Sprintf("%s: %d rows", words, len(rows))
			}
			return ""
		})
	}
}

// checkChosenActivity expects the chosen process only, and with --tree also its blocker.
func checkChosenActivity(t *testing.T, pids map[string]int) {
	t.Helper()
	shop := strconv.Itoa(pids["shop"])
	status, out, errOut := run(t, "activity", "--format", "json", shop)
	var got struct {
		Sessions []struct{ PID int }
		Blocking []any
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || status != exitOK || len(got.Sessions) != 1 || got.Sessions[0].PID != pids["shop"] ||
		len(got.Blocking) != 1 {
		t.Errorf("activity %s: status %d, %v, %s%s", shop, status, err, out, errOut)
	}
	settles(t, func() string {
		_, out, _ := run(t, "activity", "--tree", shop)
		if !strings.Contains(out, strconv.Itoa(pids["nightly"])+" ") || !strings.Contains(out, " nightly ") || strings.Contains(out, " billing ") {
			return fmt.Sprintf("the tree of %s: %s", shop, out)
		}
		return ""
	})
	settles(t, func() string {
		_, out, _ := run(t, "plan", strconv.Itoa(pids["vacuum"]))
		if strings.Contains(out, "no statement") || !strings.Contains(out, ": a utility command\nVACUUM on parts reports") {
			return "the plan of the vacuum: " + out
		}
		return ""
	})
	settles(t, func() string {
		_, out, _ := run(t, "activity", "--tree", strconv.Itoa(pids["checkout"]))
		if !strings.Contains(out, "\nsynchronous_standby_names is \"gone\"\n") {
			return "the tree of a commit that waits for a standby: " + out
		}
		return ""
	})
	candidate := fmt.Sprintf(`\n  may hold it: %d \S+@postgres reader idle in transaction, transaction .*, state .*\n  its query: SELECT 1\n`, pids["reader"])
	settles(t, func() string {
		_, out, _ := run(t, "activity", "--tree", strconv.Itoa(pids["vacuum"]))
		if !regexp.MustCompile(candidate).MatchString(out) {
			return fmt.Sprintf("the tree of the vacuum: %s; want %s", out, candidate)
		}
		return ""
	})
}

// runAs runs a command in another process, as the user with this id.
func runAs(t *testing.T, program string, uid uint32, words ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errOut strings.Builder
	command := exec.CommandContext(t.Context(), program)
	command.Env = append(os.Environ(), topVariable+"="+strings.Join(words, "\n"))
	command.Stdout, command.Stderr, command.Dir = &out, &errOut, "/"
	if uid != 0 {
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	_ = command.Run() // its exit status is compared
	return command.ProcessState.ExitCode(), out.String(), errOut.String()
}

// checkWithoutRights runs the commands as a user without rights. Each has to say on one line whose server it is, and which
// command may read it.
func checkWithoutRights(t *testing.T, s *pgtest.Server, pid int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Log("not compared: only root can become a user without rights")
		return
	}
	uid, _ := s.OSUser()
	owner, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	process := strconv.Itoa(pid)
	dir, err := os.MkdirTemp("", "cli") // that every user may enter
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "self")
	self, err := os.ReadFile("/proc/self/exe")
	if err = errors.Join(err, os.Chmod(dir, 0o755), pgtest.WriteProgram(program, self)); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{
		"activity -D DATA", "activity PID", "top --batch -D DATA", "top --batch --pid PID", "plan -D DATA", "plan PID", "capture -D DATA",
		"capture PID", "capture --nonstop PID", "memory -D DATA", "memory PID", "memory --allocations PID", "waits -D DATA", "waits PID",
		"waits --trace PID", "waits --stacks 1/1 -D DATA", "trace malloc -D DATA", "trace malloc PID", "profile -D DATA", "profile PID",
		"symbols -D DATA", "symbols PID", "history -D DATA", "incident take -D DATA", "incident list -D DATA", "worker -D DATA",
	} {
		want := "belongs to user " + owner.Username + ", and user "
		if strings.Contains(words, "DATA") { // the unprivileged user may not see whose it is
			want = " may not read " + s.DataDir + ". Run the command as its owner or as root: sudo pg_stat_backtrace"
		}
		words = strings.NewReplacer("DATA", s.DataDir, "PID", process).Replace(words)
		status, out, errOut := runAs(t, program, nobody, strings.Fields(words)...)
		if status != exitFailed || out != "" || strings.Count(errOut, "\n") != 1 || !strings.Contains(errOut, want) ||
			!strings.Contains(errOut, "sudo") || strings.Contains(errOut, "/proc/") {
			t.Errorf("%s: status %d, %q, %q", words, status, out, errOut)
		}
	}
	for _, words := range []string{"activity", "capture", "symbols", "memory"} { // without -D, the arguments are right
		status, out, errOut := runAs(t, program, nobody, words)
		if status != exitFailed || out != "" || !strings.Contains(errOut, ": this user may examine no server: ") || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s without -D: status %d, %q, %q", words, status, out, errOut)
		}
	}
}

// TestEnvironmentInHelp expects each command that takes $PGDATA for a missing -D to say that in its help.
func TestEnvironmentInHelp(t *testing.T) {
	t.Parallel()
	commands := newRoot("test").Commands()
	for len(commands) > 0 {
		c := commands[0]
		commands = append(commands[1:], c.Commands()...)
		if f := c.Flags().Lookup("pgdata"); f != nil && !strings.Contains(f.Usage, "$PGDATA") {
			t.Errorf("%s: -D is %q", c.CommandPath(), f.Usage)
		}
	}
}

// checkEnvironment expects the server of $PGDATA.
func checkEnvironment(t *testing.T, s *pgtest.Server) {
	t.Helper()
	t.Run("PGDATA", func(t *testing.T) {
		t.Setenv("PGDATA", s.DataDir)
		status, out, errOut := run(t, "activity", "--no-phrases")
		if status != exitOK || !strings.HasPrefix(out, s.DataDir+": ") || errOut != "pg_stat_backtrace: taking the server of $PGDATA: -D "+s.DataDir+"\n" {
			t.Errorf("status %d, %q, %q", status, out, errOut)
		}
	})
}

// examples returns the examples of all commands.
func examples(c *cobra.Command) (list []string) {
	for line := range strings.Lines(c.Example) {
		list = append(list, strings.TrimSpace(line))
	}
	for _, sub := range c.Commands() {
		list = append(list, examples(sub)...)
	}
	return list
}

// shellWords splits a line as a shell does, without variables.
func shellWords(line string) (words []string) {
	for _, m := range regexp.MustCompile(`'([^']*)'|"([^"]*)"|(\S+)`).FindAllStringSubmatch(line, -1) {
		words = append(words, m[1]+m[2]+m[3])
	}
	return words
}

// exampleCommand returns the command of an example with the server, the processes and the files of this test, and with shorter
// times. It returns "" for an example that needs something else.
func exampleCommand(line string, o *outputs, pids map[string]int) string {
	for _, other := range []string{" worker", " decode", "--connect ", "--core ", "https://", "host=", "rules.yaml", "/usr/lib/"} {
		if !strings.HasPrefix(line, "pg_stat_backtrace ") || strings.Contains(line, other) && !strings.Contains(line, "| pg_stat_backtrace decode") {
			return ""
		}
	}
	line, _, _ = strings.Cut(line, " | ")
	line, _, _ = strings.Cut(line, " > ")
	line = strings.NewReplacer("/var/lib/postgresql/15/main", o.server.DataDir, "/srv/pgdata", o.server.DataDir, "/var/lib/pg_stat_backtrace", o.recorded,
		"$(pgrep -f 'postgres: .* SELECT')", "4712", "20261128T030012Z-lock_wait-3f2a", "last", "--since 03:00 --until 03:05", "--since -1h",
		"-n 1000 -i 10ms", "-n 3 -i 10ms", "-n 100 -i 20ms", "-n 3 -i 20ms", "--repeat 1000", "--repeat 3", " --watch 2s", "", "-n 3", "-n 1",
		"user=postgres", "'host="+o.server.SocketDir+" user="+o.server.User+"'").Replace(line)
	line = regexp.MustCompile(`\b4711\b`).ReplaceAllString(line, strconv.Itoa(pids["report"]))
	line = regexp.MustCompile(`\b4712\b`).ReplaceAllString(line, strconv.Itoa(pids["etl"]))
	line = regexp.MustCompile(`--duration \S+`).ReplaceAllString(line, "--duration 300ms")
	words := strings.Fields(line)
	switch timed := !strings.Contains(line, "--duration"); {
	case len(words) < 2:
	case words[1] == "top":
		line += " --batch -n 1" // otherwise it prints until an interrupt
	case timed && (slices.Contains([]string{"profile", "waits", "trace"}, words[1]) || strings.Contains(line, "--allocations")):
		line += " --duration 300ms"
	case strings.Contains(line, "incident take"):
		line += " --profile 100ms"
	}
	return line
}

// checkExamples runs the examples of the help. An example may find nothing on this server.
func checkExamples(t *testing.T, o *outputs, pids map[string]int) {
	t.Helper()
	t.Run("examples", func(t *testing.T) {
		t.Chdir(t.TempDir())
		nothing := regexp.MustCompile(`no samples|no stack|has no goroutines|no static probe|no function of that name|no record|no history is recorded|servers run on this host|while they were read|has no label|CAP_BPF`)
		if status, _, errOut := run(t, "profile", "-f", "pprof", "-d", "300ms", "-o", "profile.pb.gz", strconv.Itoa(pids["report"])); status != exitOK {
			t.Log(errOut) // without rights
		}
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		ran := 0
		for _, line := range examples(Commands("test")) {
			command := exampleCommand(line, o, pids)
			if command == "" {
				continue
			}
			words := shellWords(command)[1:]
			var status int
			var errOut string
			if words[0] == "doctor" { // it becomes the server's user
				status, _, errOut = runAs(t, self, 0, words...)
			} else {
				status, _, errOut = run(t, words...)
			}
			if status != exitOK && !nothing.MatchString(errOut) {
				t.Errorf("%s\nas %s\nstatus %d, %s", line, command, status, errOut)
			}
			ran++
		}
		if ran < 60 {
			t.Errorf("only %d examples ran", ran)
		}
	})
}
