package incident

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/pg/cluster"
)

// killedVariable has the test's program do some work until it is killed. Its value is a killedWork.
const killedVariable = "PGSB_TEST_KILLED"

type killedWork struct {
	Kind, DataDir, DSN string
	PIDs               []int
}

// The kinds of work.
const (
	killedKernel   = "kernel profile"
	killedSamples  = "sampled profile"
	killedStacks   = "stacks of running sessions"
	killedFallback = "fallback connection"
)

const killedUnsupported = "unsupported"

// TestKilledLeavesServerAlone kills a program with SIGKILL while it works beside a server. Afterwards, the processes of the server
// must run, and none may be traced or stopped. No BPF program, WAL sender or replication slot may be left.
func TestKilledLeavesServerAlone(t *testing.T) {
	if text := os.Getenv(killedVariable); text != "" {
		workUntilKilled(t, text)
	}
	rounds := 2
	if pgtest.Full() {
		rounds = 25
	}
	s := pgtest.Start(t, pgtest.Newest(t), pgtest.Options{Conf: []string{
		"autovacuum = off", "max_connections = 8", "superuser_reserved_connections = 1", "max_wal_senders = 2", "compute_query_id = on",
	}})
	s.Exec(t, "CREATE ROLE worker LOGIN; CREATE ROLE spare LOGIN REPLICATION")
	monitor := s.Connect(t, "postgres", "postgres")
	const sessions = 2
	var counts [sessions]atomic.Int64
	work := killedWork{DataDir: s.DataDir, DSN: s.DSN("worker", "postgres")}
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for i := range sessions {
		conn := s.Connect(t, "postgres", "postgres")
		work.PIDs = append(work.PIDs, int(conn.PgConn().PID()))
		working.Go(func() {
			for ctx.Err() == nil {
				if _, err := conn.Exec(context.Background(), "SELECT count(*) FROM generate_series(1, 1000)"); err != nil {
					t.Error(err)
					return
				}
				counts[i].Add(1)
			}
		})
	}
	t.Cleanup(func() { cancel(); working.Wait() })
	pgtest.Wait(t, "a server without a free slot", func() bool {
		conn, err := pgx.Connect(t.Context(), s.DSN("postgres", "postgres"))
		if err == nil {
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
		}
		return err != nil
	})
	for _, kind := range []string{killedKernel, killedSamples, killedStacks, killedFallback} {
		t.Run(kind, func(t *testing.T) {
			work.Kind = kind
			for round := range rounds {
				left := killAtWork(t, &work, time.Duration(round)*7*time.Millisecond)
				for i := range counts {
					n := counts[i].Load()
					pgtest.Wait(t, "further statements of a session", func() bool { return counts[i].Load() > n+1 })
				}
				s.Untouched(t)
				for _, object := range left {
					pgtest.Wait(t, object.String()+" to be freed", func() bool { return !object.Exists(t) })
				}
				pgtest.Wait(t, "the end of the walsender", func() bool {
					var senders, slots int
					err := monitor.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'), "+
						"(SELECT count(*) FROM pg_replication_slots)").Scan(&senders, &slots)
					if err != nil || slots != 0 {
						t.Fatalf("%d replication slots, %v", slots, err)
					}
					return senders == 0
				})
			}
		})
	}
}

// killAtWork starts the work, kills it some time after it has begun, and returns its programs and links in the kernel.
func killAtWork(t *testing.T, w *killedWork, after time.Duration) []pgtest.KernelObject {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, "-test.run", "^TestKilledLeavesServerAlone$")
	c.Env = append(os.Environ(), killedVariable+"="+string(text))
	c.Stderr = os.Stderr
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Wait() }()
	defer func() { _ = c.Process.Kill() }()
	word, err := bufio.NewReader(out).ReadString('\n')
	if word = strings.TrimSpace(word); word == killedUnsupported {
		t.Skip("no programs in the kernel")
	}
	if err != nil || word != "begun" {
		t.Fatalf("%q, %v", word, err)
	}
	var objects []pgtest.KernelObject
	if w.Kind == killedKernel {
		pgtest.Wait(t, "programs in the kernel", func() bool {
			objects = pgtest.KernelObjects(t, c.Process.Pid)
			return pgtest.HasLink(objects)
		})
	}
	time.Sleep(after) // another moment each time
	if w.Kind == killedKernel {
		objects = pgtest.KernelObjects(t, c.Process.Pid)
	}
	return objects
}

// workUntilKilled does not return.
func workUntilKilled(t *testing.T, text string) {
	t.Helper()
	var w killedWork
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.ByDataDir(w.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	capturer, err := capture.New(capture.Config{})
	if err != nil {
		t.Fatal(err)
	}
	src := Source{Server: c, Capturer: capturer}
	begun := sync.OnceFunc(func() { fmt.Println("begun") })
	ctx := context.Background()
	switch w.Kind {
	case killedKernel:
		if err := clusterbpf.Check(); err != nil {
			fmt.Println(killedUnsupported)
			os.Exit(0)
		}
		begun()
		if p := TakeProfile(ctx, &src, nil, time.Hour); p.Error != "" || p.Method != ByKernel {
			t.Fatalf("%+v", p)
		}
	case killedSamples:
		begun()
		var p Profile
		t.Fatal(p.sample(ctx, &src, nil, time.Hour, groups{}, time.Hour))
	case killedStacks:
		for {
			for _, pid := range w.PIDs {
				if _, err := recorder.TakeStack(ctx, capturer, c, pid, time.Second); err == nil {
					begun()
				}
			}
		}
	case killedFallback:
		conn, err := cluster.NewConn(cluster.ConnOptions{
			ConnString: w.DSN, Cluster: &c, Check: c.Welcome,
			Fallback: &cluster.Fallback{ConnString: "user=spare replication=database", Check: c.Verify},
			OnChange: func(state cluster.ConnState) {
				if state.Fallback && state.Connected {
					begun()
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = conn.Run(ctx) }()
		for {
			_ = conn.Query(ctx, func(ctx context.Context, c *pgx.Conn) error {
				_, err := c.Exec(ctx, "SELECT count(*) FROM pg_class")
				return err
			})
		}
	}
	time.Sleep(time.Hour)
}
