package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/worker/pg/cluster"
)

// TestByProcess finds the server of a session, also after the session has changed to another directory.
func TestByProcess(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("needs gcc")
	}
	pgtest.One(t, func(t *testing.T, bin string) {
		s := pgtest.Start(t, bin, pgtest.Options{})
		conn := s.Connect(t, s.User, "postgres")
		pid := int(conn.PgConn().PID())
		dir := t.TempDir()
		for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		library := filepath.Join(dir, "elsewhere.so")
		source := filepath.Join(dir, "elsewhere.c")
		text := "int chdir(const char *);\n__attribute__((constructor)) static void go(void) { (void) !chdir(\"/\"); }\n"
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), gcc, "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, process := range []int{pid, s.PostmasterPID()} {
			if c, err := cluster.ByProcess(process); err != nil || c.PostmasterPID != s.PostmasterPID() {
				t.Errorf("process %d: %v, %v", process, c, err)
			}
		}
		// The server runs the constructor, and then refuses the library.
		_ = conn.PgConn().Exec(t.Context(), "LOAD '"+library+"'").Close()
		if c, err := cluster.ByProcess(pid); err != nil || c.PostmasterPID != s.PostmasterPID() {
			t.Errorf("a session in another directory: %v, %v", c, err)
		}
		if _, err := cluster.ByDataDir(filepath.Join("/proc", strconv.Itoa(pid), "cwd")); err == nil {
			t.Error("the session has not changed to another directory")
		}
		if c, err := cluster.ByProcess(os.Getpid()); err == nil {
			t.Errorf("this program belongs to %v", c)
		}
	})
}
