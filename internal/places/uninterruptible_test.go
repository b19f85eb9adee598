package places

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/disktest"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
)

// TestUninterruptibleBackend checks a backend in uninterruptible sleep, which cannot be stopped because a file system
// does not answer. The worker returns its stack without a stop, with its activity and its place in the kernel. When
// the file system answers, the backend continues.
func TestUninterruptibleBackend(t *testing.T) {
	needRoot(t)
	tree := copyTree(t, npm(t))
	file := disktest.MountSlow(t, openDir(t, "slow"))
	s := pgtest.Start(t, tree+"/bin", pgtest.Options{})
	s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
	(&elsewhere{Server: s}).serve(t, "-D", s.DataDir, s.DSN(s.User, "postgres"))
	reader := s.Connect(t, s.User, "postgres")
	pid := int(reader.PgConn().PID())
	contents := make(chan string, 1)
	go func() {
		var text string
		if err := reader.QueryRow(t.Context(), "SELECT pg_read_file($1)", file.Path).Scan(&text); err != nil {
			text = err.Error()
		}
		contents <- text
	}()
	t.Cleanup(file.Release)
	pgtest.Wait(t, "the backend sleeps uninterruptibly", func() bool {
		stat, err := process.ReadStat(pid)
		return err == nil && stat.State == 'D'
	})
	channel, err := process.WaitChannel(pid, pid)
	if err != nil || channel == "" {
		t.Errorf("wait channel %q, %v", channel, err)
	}
	want := []string{
		"[not stopped: in uninterruptible sleep, engine blocked] [in kernel: ", channel, " in PostgresMain+0x",
		"[query: SELECT pg_read_file($1)]",
	}
	byUser, err1 := s.AsServerUser(exec.Command(program, "capture", strconv.Itoa(pid))).CombinedOutput()
	byRoot, err2 := exec.Command(program, "capture", strconv.Itoa(pid)).CombinedOutput()
	if err1 != nil || err2 != nil {
		t.Error(err1, err2)
	}
	answers := map[string]string{
		"SQL": ask(t, s.Connect(t, s.User, "postgres"), pid), "the command line": string(byUser), "root": string(byRoot),
	}
	for who, answer := range answers {
		for _, text := range want {
			if !strings.Contains(answer, text) {
				t.Errorf("%s: no %q in\n%s", who, text, answer)
			}
		}
	}
	// Root sees the kernel's complete stack, the innermost function first.
	if first, _, _ := strings.Cut(answers["root"], "\n"); !strings.Contains(answers["root"], "filemap_read") {
		t.Errorf("by root: %s", first)
	}
	t.Logf("%s", byRoot)
	file.Release()
	if got := <-contents; got != disktest.SlowText {
		t.Errorf("the backend read %q", got)
	}
}
