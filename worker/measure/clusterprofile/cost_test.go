package clusterprofile

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"testing"
	"time"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/worker/pg/cluster"
)

// BenchmarkSwitch measures how long the programs in the kernel take for a context switch of a server process, with two
// sessions that execute the shortest statements. "plain" takes no stacks.
func BenchmarkSwitch(b *testing.B) {
	bin := pgtest.BinDir(b)
	server := pgtest.Start(b, bin, pgtest.Options{Conf: []string{"compute_query_id = on"}})
	cluster, err := cluster.ByDataDir(server.DataDir)
	if err != nil {
		b.Fatal(err)
	}
	located, err := locate(cluster)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	defer func() { cancel(); working.Wait() }()
	for range 2 {
		c := server.Connect(b, "postgres", "postgres")
		working.Go(func() {
			for ctx.Err() == nil {
				_, _ = c.Exec(context.WithoutCancel(ctx), "SELECT 1")
			}
		})
	}
	for name, spacing := range map[string]time.Duration{"plain": time.Hour, "stacks": time.Second / stacksOff * 2} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				measureSwitch(b, located, spacing)
			}
		})
	}
}

// measureSwitch follows the switches for a second.
func measureSwitch(b *testing.B, s *server, spacing time.Duration) {
	b.Helper()
	sampler, err := clusterbpf.Load(s.target, clusterbpf.Options{
		Switches: true, StackPeriod: time.Second / DefaultRate, StackSpacing: spacing, Processes: 2*s.procs + 64,
		RingSize: ringSize, RedZone: redZone,
	})
	if errors.Is(err, clusterbpf.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		b.Skip(err)
	}
	if err != nil {
		b.Fatal(err)
	}
	defer sampler.Close()
	if err := sampler.Start(time.Minute); err != nil {
		b.Fatal(err)
	}
	stacks := 0
	for range 10 {
		time.Sleep(100 * time.Millisecond)
		if _, err := sampler.Read(time.Now().Add(time.Minute), func(r *clusterbpf.Record) {
			if r.Kind == clusterbpf.Off {
				stacks++
			}
		}); err != nil {
			b.Fatal(err)
		}
	}
	sampler.Stop()
	n, err := sampler.Counters()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(n.Time.Nanoseconds())/float64(n.Runs), "ns/switch")
	b.ReportMetric(float64(n.Runs), "switches/s")
	b.ReportMetric(float64(stacks), "stacks/s")
}
