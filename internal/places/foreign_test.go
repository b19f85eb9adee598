package places

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
)

// foreign starts the server of the folder $TREE, in a chroot, with its files in $ROOM, which the folder has as /srv.
const foreign = `cd "$TREE"; mount -t proc none proc; mount --rbind /dev dev
mount -t tmpfs none dev/shm; chmod 1777 dev/shm
mount --bind "$ROOM" srv
$ENTER "$BIN/initdb" -D /srv/data -U postgres -A trust --no-sync --no-locale --encoding=UTF8
exec $ENTER "$BIN/postgres" -D /srv/data -k /srv -c listen_addresses= -c port=5432`

// Another distribution's server, in a folder made by debootstrap: scripts/check-foreign.sh.
func TestForeign(t *testing.T) {
	root, binDir := os.Getenv("PGSB_FOREIGN_ROOT"), os.Getenv("PGSB_FOREIGN_BINDIR")
	if root == "" {
		t.Skip("PGSB_FOREIGN_ROOT is not set: make check-foreign")
	}
	needRoot(t, "unshare", "chroot")
	files, err := filepath.Glob("../../sql/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	share, err := filepath.Glob(filepath.Join(root, "usr/share/postgresql/*/extension"))
	if err != nil || len(share) != 1 {
		t.Fatalf("%v: %v", share, err)
	}
	for _, file := range append(files, "../../pg_stat_backtrace.control") {
		run(t, "install", "-m", "644", file, share[0])
	}
	s := startForeign(t, root, binDir)
	s.Exec(t, "CREATE EXTENSION pg_stat_backtrace")
	target := sleeper(t, s.Server)
	dir := fmt.Sprintf("/proc/%d/root%s", s.postmaster, s.dataDir)
	s.serve(t, "-D", dir, "user=postgres dbname=postgres sslmode=disable")
	got := ask(t, s.Connect(t, "postgres", "postgres"), target)
	t.Log("\n" + got)
	for _, name := range []string{
		"epoll_wait+0x", "WaitLatch+0x", "PostgresMain+0x", "PostmasterMain+0x", "(plpgsql.so)", "PL/pgSQL function sleeps()",
	} {
		if !strings.Contains(got, name) {
			t.Errorf("no %s", name)
		}
	}
	s.agree(t, root, got)
}

// exported is a line with the name of a function of the server's program.
var exported = regexp.MustCompile(`(?m) in (\w+)\+0x[0-9a-f]+ \(postgres\)`)

// agree compares a stack with the exported symbols of the folder's own program.
func (s *elsewhere) agree(t *testing.T, root, stack string) {
	program, err := filepath.Glob(filepath.Join(root, "usr/lib/postgresql/*/bin/postgres"))
	if err != nil || len(program) != 1 {
		t.Fatalf("%v: %v", program, err)
	}
	symbols := run(t, "readelf", "--dyn-syms", "--wide", program[0])
	names := 0
	for _, m := range exported.FindAllStringSubmatch(stack, -1) {
		if m[1] == "postgres" {
			continue // no name
		}
		names++
		if !regexp.MustCompile(`(?m) FUNC .* ` + m[1] + `$`).MatchString(symbols) {
			t.Errorf("%s does not export %s", program[0], m[1])
		}
	}
	figure.Printf(t, "%d names of postgres, all of them exported by %s", names, program[0])
}

func startForeign(t *testing.T, root, binDir string) *elsewhere {
	t.Helper()
	passwd, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	if err != nil {
		t.Fatal(err)
	}
	account := regexp.MustCompile(`(?m)^postgres:[^:]*:(\d+):(\d+):`).FindSubmatch(passwd)
	if account == nil {
		t.Fatal("the folder has no user postgres")
	}
	user := fmt.Sprintf("%s:%s", account[1], account[2])
	files := openDir(t, "foreign")
	run(t, "chown", user, files)
	s := &elsewhere{dataDir: "/srv/data", Server: &pgtest.Server{
		DataDir: filepath.Join(files, "data"), SocketDir: files, Port: 5432, User: "postgres",
	}}
	launch := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-euc", foreign)
	launch.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TREE=" + root, "ROOM=" + files, "BIN=" + binDir,
		fmt.Sprintf("ENTER=chroot --userspec=%s --groups= %s", user, root),
	}
	launch.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var log strings.Builder
	launch.Stdout, launch.Stderr = &log, &log
	if err := launch.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = launch.Process.Signal(syscall.SIGQUIT)
		_ = launch.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	for range 6 { // initdb takes its time
		if accepts(t, s.Server) {
			break
		}
	}
	s.postmaster = s.findPostmaster(t)
	return s
}

// accepts waits some seconds for the server to accept connections.
func accepts(t *testing.T, s *pgtest.Server) bool {
	t.Helper()
	run(t, "sleep", "5")
	c, err := pgx.Connect(t.Context(), s.DSN(s.User, "postgres"))
	if err == nil {
		_ = c.Close(t.Context())
	}
	return err == nil
}
