package places

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
)

// program is the worker's program, built once, in a directory that the servers' user can enter.
var program string

func TestMain(m *testing.M) { os.Exit(pgtest.RunWithProgram(m, &program)) }

// needRoot skips a test that mounts file systems or drops capabilities.
func needRoot(t *testing.T, tools ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make namespaces and mounts")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	if out, err := exec.Command("unshare", "-m", "true").CombinedOutput(); err != nil {
		t.Skipf("this root may not make a mount namespace: %v: %s", err, out)
	}
}

// copyTree copies the server's installation, with the extension in it, and returns its new root. The installation
// must be one tree. Debian's is spread over the file system, and cannot be copied.
func copyTree(t *testing.T, binDir string) string {
	t.Helper()
	from := filepath.Dir(binDir)
	extension := filepath.Join("share", "postgresql", "extension")
	if _, err := os.Stat(filepath.Join(from, extension)); err != nil {
		t.Skipf("%s is no installation in one tree: %v", from, err)
	}
	to := openDir(t, "tree")
	run(t, "cp", "-aL", from+"/.", to) // the caller may change and remove files: none must be a link to the original
	own, err := filepath.Glob("../../sql/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(own, "../../pg_stat_backtrace.control") {
		run(t, "install", "-m", "644", file, filepath.Join(to, extension))
	}
	return to
}

// openDir makes a directory that everybody can enter; it is removed with the test.
func openDir(t *testing.T, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", name) // above t.TempDir is a directory that is root's alone
	if err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func run(t *testing.T, name string, arguments ...string) string {
	t.Helper()
	out, err := exec.Command(name, arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, out)
	}
	return string(out)
}

// frame is a frame in the command line's output.
type frame struct {
	Address  string `json:"address"`
	Function string `json:"function"`
	Offset   string `json:"offset"`
	Module   string `json:"module"`
}

func (f frame) String() string {
	return f.Address + " " + f.Function + "+" + f.Offset + " (" + f.Module + ")"
}

func text(frames []frame) string {
	var b strings.Builder
	for _, f := range frames {
		fmt.Fprintln(&b, f)
	}
	return b.String()
}

// stack captures a process by the command line, run as the server's user, or by the command in front.
func stack(t *testing.T, s *pgtest.Server, pid int, front ...string) []frame {
	t.Helper()
	arguments := append(slices.Clone(front), program, "capture", "--timeout", "1m", "--format", "json", "--no-context", strconv.Itoa(pid))
	command := exec.Command(arguments[0], arguments[1:]...)
	if len(front) == 0 {
		command = s.AsServerUser(command)
	}
	var told strings.Builder
	command.Stderr = &told
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, told.String())
	}
	var answer struct {
		Threads []struct {
			StopReason string  `json:"stop_reason"`
			Frames     []frame `json:"frames"`
		} `json:"threads"`
	}
	if err := json.Unmarshal(out, &answer); err != nil || len(answer.Threads) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	if reason := answer.Threads[0].StopReason; reason != "end of stack" {
		t.Errorf("the stack ends with: %s", reason)
	}
	return answer.Threads[0].Frames
}

// same compares two stacks of one sleeping process. With missing, names may be missing that only a library's symbol
// table contains. No name may differ.
func same(t *testing.T, what string, got, want []frame, missing bool) {
	t.Helper()
	equal := len(got) == len(want)
	lost := 0
	for i := 0; equal && i < len(want); i++ {
		w := want[i]
		if missing && got[i].Function == "" && w.Module != "postgres" {
			w.Function, w.Offset = "", ""
			lost++
		}
		equal = got[i] == w
	}
	if !equal {
		t.Errorf("%s:\n%s\nwant\n%s", what, text(got), text(want))
	}
	t.Logf("%s: %d frames, %d names of libraries missing", what, len(got), lost)
}

// complete checks that a stack of a sleeping backend is whole and has the names that every build has.
func complete(t *testing.T, what string, frames []frame) {
	t.Helper()
	all := text(frames)
	for _, name := range []string{"WaitLatch+", "plpgsql_call_handler+", "PostgresMain+", "PostmasterMain+", "main+"} {
		if !strings.Contains(all, name) {
			t.Errorf("%s: no %s in\n%s", what, name, all)
		}
	}
}

// sleeper starts a backend that sleeps in a PL/pgSQL function until the server ends. It returns the backend's pid in
// SQL.
func sleeper(t *testing.T, s *pgtest.Server) int {
	t.Helper()
	s.Exec(t, `CREATE OR REPLACE FUNCTION sleeps() RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(600); END'`)
	c := s.Connect(t, s.User, "postgres")
	pid := int(c.PgConn().PID())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.PgConn().Exec(t.Context(), "SELECT sleeps()").ReadAll()
	}()
	t.Cleanup(func() { <-ended }) // before the session is closed
	asks := s.Connect(t, s.User, "postgres")
	pgtest.Wait(t, "the backend sleeps", func() bool {
		var event string
		err := asks.QueryRow(t.Context(),
			"SELECT coalesce(wait_event, '') FROM pg_stat_activity WHERE pid = $1", pid).Scan(&event)
		return err == nil && event == "PgSleep"
	})
	return pid
}

// each runs test for the newest server, or for all servers if PGSB_TEST_PLACES is "all". The tested behaviour is the
// same for every version, and the tests are slow.
func each(t *testing.T, test func(t *testing.T, binDir string)) {
	t.Helper()
	if os.Getenv("PGSB_TEST_PLACES") == "all" {
		pgtest.Each(t, test)
		return
	}
	binDir := slices.MaxFunc(pgtest.BinDirs(t), func(a, b string) int {
		return cmp.Compare(pgtest.Major(t, a), pgtest.Major(t, b))
	})
	t.Run(pgtest.Version(t, binDir), func(t *testing.T) { test(t, binDir) })
}
