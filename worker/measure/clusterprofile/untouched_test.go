package clusterprofile

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/internal/pgtest"
)

// TestUntouchedFrame samples a function whose frame is not in memory yet, which a copy of the stack must leave out.
func TestUntouchedFrame(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("testdata/room.c has instructions of x86_64")
	}
	dir := t.TempDir()
	for _, parent := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(parent, 0o755); err != nil { // the server's user loads the library
			t.Fatal(err)
		}
	}
	library := filepath.Join(dir, "room.so")
	command := exec.Command("gcc", "-O2", "-fno-builtin", "-fno-stack-clash-protection", "-fno-stack-protector", "-shared",
		"-fPIC", "-o", library, "testdata/room.c")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := pgtest.Start(t, pgtest.BinDir(t), pgtest.Options{Env: []string{"LD_PRELOAD=" + library}})
	conn := server.Connect(t, "postgres", "postgres")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := conn.Exec(context.WithoutCancel(ctx), "SELECT sin(1 + random())"); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	pid := int(conn.PgConn().PID())
	const wanted = 0.5 // seconds of processor time in the function
	all, whole, busy := 0, 0, 0.0
	for deadline := time.Now().Add(3 * time.Minute); busy < wanted && time.Now().Before(deadline); {
		p, _ := collect(t.Context(), t, Options{
			DataDir: server.DataDir, Mode: CPU, Rate: 199, Duration: 2 * time.Second, Filter: Filter{PIDs: []int{pid}},
		})
		for _, s := range p.Sample {
			if label(s, LabelPID) != strconv.Itoa(pid) || !has(s, "sin") {
				continue
			}
			all++
			if has(s, "dsin") && has(s, "PostmasterMain") {
				whole++
			}
		}
		busy += sum(p, CPU, func(s *profile.Sample) bool { return has(s, "sin") && has(s, "PostmasterMain") })
	}
	cancel()
	<-done
	t.Logf("%d of %d samples whole; %.3f s", whole, all, busy)
	if whole == 0 || whole != all || busy < wanted {
		t.Errorf("%d of %d samples reach the start of the program; %.3f s", whole, all, busy)
	}
}
