package incident

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/history/recorder"
	"pg_stat_backtrace/worker/measure/clusterprofile"
	"pg_stat_backtrace/worker/pg/cluster"
)

// busyServer is a server with sessions that execute short statements all the time.
type busyServer struct {
	*pgtest.Server

	src          Source
	pids         []int
	transactions atomic.Int64
	usage        func() time.Duration // processor time of all its processes
}

func newBusyServer(b *testing.B, sessions int, conf ...string) *busyServer {
	b.Helper()
	group, usage := account(b)
	s := &busyServer{usage: usage, Server: pgtest.Start(b, pgtest.Newest(b), pgtest.Options{Conf: append([]string{
		"autovacuum = off", "shared_buffers = 32MB", "compute_query_id = on",
	}, conf...)})}
	children, err := process.Children(s.PostmasterPID())
	if err != nil {
		b.Fatal(err)
	}
	for _, pid := range append(children, s.PostmasterPID()) {
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			b.Fatal(err)
		}
	}
	s.Exec(b, "CREATE TABLE accounts AS SELECT n AS aid, 0 AS abalance FROM generate_series(1, 100000) n; "+
		"CREATE UNIQUE INDEX ON accounts (aid); ANALYZE accounts")
	if s.src.Server, err = cluster.ByDataDir(s.DataDir); err != nil {
		b.Fatal(err)
	}
	if s.src.Capturer, err = capture.New(capture.Config{}); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for i := range sessions {
		conn := s.Connect(b, "postgres", "postgres")
		s.pids = append(s.pids, int(conn.PgConn().PID()))
		working.Go(func() {
			var balance int
			for n := i; ctx.Err() == nil; n = (n*7919 + 13) % 100000 {
				err := conn.QueryRow(context.Background(), "SELECT abalance FROM accounts WHERE aid = $1", n+1).Scan(&balance)
				if err != nil {
					b.Error(err)
					return
				}
				s.transactions.Add(1)
			}
		})
	}
	b.Cleanup(func() { cancel(); working.Wait() })
	return s
}

// account makes a control group, and returns its directory and how to read the processor time of its processes.
func account(b *testing.B) (dir string, usage func() time.Duration) {
	b.Helper()
	dir = fmt.Sprintf("/sys/fs/cgroup/cpuacct/test-%d", os.Getpid())
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.Skip("no control group: ", err)
	}
	b.Cleanup(func() { pgtest.Wait(b, "the end of the server", func() bool { return os.Remove(dir) == nil }) })
	return dir, func() time.Duration {
		text, err := os.ReadFile(filepath.Join(dir, "cpuacct.usage"))
		if err != nil {
			b.Fatal(err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		return time.Duration(n)
	}
}

// compare runs pairs of slices, one of which has work beside the server, and reports by how much the processor time of the server
// for each transaction differs. The order of the slices alternates.
func (s *busyServer) compare(b *testing.B, slice time.Duration, work func(time.Duration)) {
	b.Helper()
	measure := func(f func(time.Duration)) float64 {
		used, n := s.usage(), s.transactions.Load()
		f(slice)
		return (s.usage() - used).Seconds() / float64(s.transactions.Load()-n)
	}
	var differences []float64
	off := 0.0
	for i := range b.N {
		var with, without float64
		if i%2 == 0 {
			with, without = measure(work), measure(time.Sleep)
		} else {
			without, with = measure(time.Sleep), measure(work)
		}
		off += without
		differences = append(differences, 100*(with/without-1))
	}
	mean, squares := 0.0, 0.0
	for _, d := range differences {
		mean += d / float64(len(differences))
	}
	for _, d := range differences {
		squares += (d - mean) * (d - mean)
	}
	slices.Sort(differences)
	b.ReportMetric(differences[len(differences)/2], "median-%")
	b.ReportMetric(mean, "mean-%")
	b.ReportMetric(math.Sqrt(squares)/float64(len(differences)), "error-%")
	b.ReportMetric(1e6*off/float64(b.N), "us/transaction")
	b.ReportMetric(0, "ns/op")
}

// times calls f a number of times in a slice.
func times(n int, f func()) func(time.Duration) {
	return func(slice time.Duration) {
		end := time.Now()
		for range n {
			f()
			end = end.Add(slice / time.Duration(n))
			time.Sleep(time.Until(end))
		}
	}
}

// BenchmarkServer measures the processor time of a server beside the profile of an incident, and beside stacks of running
// sessions that are taken without a stop. Give the number of pairs of slices, such as -benchtime 40x.
func BenchmarkServer(b *testing.B) {
	s := newBusyServer(b, 2)
	ctx := b.Context()
	take := func() {
		for _, pid := range s.pids {
			_, _ = recorder.TakeStack(ctx, s.src.Capturer, s.src.Server, pid, 50*time.Millisecond) // it may sleep all the time
		}
	}
	for range 10 { // files are read once
		take()
	}
	b.Run("long control", func(b *testing.B) { s.compare(b, ProfileTime, time.Sleep) })
	b.Run("kernel profile", func(b *testing.B) {
		s.compare(b, ProfileTime, func(took time.Duration) {
			if p := TakeProfile(ctx, &s.src, nil, took); p.Method != ByKernel || p.Error != "" {
				b.Fatalf("%+v", p)
			}
		})
	})
	b.Run("programs in the kernel", func(b *testing.B) {
		var kernel, all time.Duration
		for range b.N {
			_, summary, err := clusterprofile.Collect(ctx, clusterprofile.Options{
				Cluster: &s.src.Server, Capturer: s.src.Capturer, Mode: clusterprofile.Wall, Rate: profileRate, Duration: ProfileTime,
				CostLimit: profileCost,
			})
			if err != nil {
				b.Fatal(err)
			}
			kernel, all = kernel+summary.KernelTime, all+summary.CPU
		}
		b.ReportMetric(100*kernel.Seconds()/all.Seconds(), "of-server-%")
		b.ReportMetric(0, "ns/op")
	})
	b.Run("sampled profile", func(b *testing.B) {
		s.compare(b, ProfileTime, func(took time.Duration) {
			var p Profile
			if err := p.sample(ctx, &s.src, nil, took, groups{}, time.Hour); err != nil || p.Stopped {
				b.Fatalf("%v, %+v", err, p)
			}
		})
	})
	const short = 300 * time.Millisecond
	b.Run("short control", func(b *testing.B) { s.compare(b, short, time.Sleep) })
	b.Run("stacks 10 times a second", func(b *testing.B) { s.compare(b, short, times(3, take)) })
	b.Run("stacks once a second", func(b *testing.B) { s.compare(b, time.Second, times(1, take)) })
}

// BenchmarkFallback measures the processor time of a server whose slots are all in use, beside a fallback connection.
func BenchmarkFallback(b *testing.B) {
	s := newBusyServer(b, 2, "max_connections = 6", "superuser_reserved_connections = 1", "max_wal_senders = 2")
	s.Exec(b, "CREATE ROLE worker LOGIN; CREATE ROLE spare LOGIN REPLICATION")
	for { // take the other slots
		conn, err := pgx.Connect(b.Context(), s.DSN("postgres", "postgres"))
		if err != nil {
			break
		}
		b.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	use := func(slice time.Duration) {
		changes := make(chan cluster.ConnState, 100)
		conn, err := cluster.NewConn(cluster.ConnOptions{
			ConnString: s.DSN("worker", "postgres"), Cluster: &s.src.Server, Check: s.src.Server.Welcome,
			Fallback: &cluster.Fallback{ConnString: "user=spare replication=database", Check: s.src.Server.Verify},
			OnChange: func(state cluster.ConnState) { changes <- state },
		})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(b.Context(), slice)
		defer cancel()
		done := make(chan struct{})
		go func() { defer close(done); _ = conn.Run(ctx) }()
		if state := <-changes; !state.Fallback || !state.Connected {
			b.Fatalf("%+v", state)
		}
		for ctx.Err() == nil {
			_ = conn.Query(ctx, func(ctx context.Context, c *pgx.Conn) error {
				_, err := c.Exec(ctx, "SELECT rolname, rolsuper FROM pg_roles WHERE rolname = 'worker'")
				return err
			})
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
		<-done
	}
	const slice = 5 * time.Second
	b.Run("control", func(b *testing.B) { s.compare(b, slice, time.Sleep) })
	b.Run("in use", func(b *testing.B) { s.compare(b, slice, use) })
}
