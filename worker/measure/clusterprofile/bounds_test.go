package clusterprofile

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/measure/clusterbpf"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/cluster"
)

// busyServer feeds a collector with the records of a busy server: the stack of one of its processes, with the addresses
// of many functions as the innermost frame.
type busyServer struct {
	collector *collector
	record    clusterbpf.Record
	leaves    []uint64
}

// newBusyServer starts a server, and takes the stack of a process that sleeps.
func newBusyServer(t *testing.T, mode Mode) *busyServer {
	t.Helper()
	bin := pgtest.BinDir(t)
	server := pgtest.Lend(t, bin, pgtest.Options{})
	pid := int(server.Connect(t, "postgres", "postgres").PgConn().PID())
	cluster, err := cluster.ByDataDir(server.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	o, err := Options{Cluster: &cluster, Mode: mode, Duration: time.Second}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	o.Mode = Wall // to take the stack
	c, err := newCollector(&o)
	if errors.Is(err, clusterbpf.ErrUnsupported) || errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.sampler.Close() })
	c.options.Mode = mode
	b := &busyServer{collector: c}
	if err := c.sampler.Start(time.Minute); err != nil {
		t.Skip(err)
	}
	if err := c.sampler.Seed(clusterbpf.Process{PID: pid}); err != nil {
		t.Fatal(err)
	}
	pgtest.Wait(t, "the session asleep", func() bool { // its last answer may still be on its way
		stat, err := process.ReadStat(pid)
		return err == nil && stat.State == 'S'
	})
	if err := c.sampler.ReadSleeper(pid); err != nil {
		t.Fatal(err)
	}
	if _, err := c.sampler.Read(time.Now().Add(time.Minute), func(r *clusterbpf.Record) {
		if r.Kind == clusterbpf.Sleeper && r.PID == pid {
			b.record = *r
			b.record.Stack = slices.Clone(r.Stack)
		}
	}); err != nil {
		t.Fatal(err)
	}
	c.sampler.Stop()
	if b.record.PID == 0 {
		t.Fatal("no stack of the session")
	}
	b.findLeaves(t, bin+"/postgres")
	b.findCaller(t)
	return b
}

// findLeaves finds the addresses of functions, and of the instruction after endbr64 there. At both, the stack pointer
// points to the return address.
func (b *busyServer) findLeaves(t *testing.T, program string) {
	t.Helper()
	file, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	bias := uint64(0)
	for _, s := range symbols {
		if s.Name == "my_wait_event_info" {
			bias = b.collector.server.target.WaitPointer - s.Value
		}
	}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Value != 0 && s.Size > 16 {
			b.leaves = append(b.leaves, bias+s.Value)
		}
	}
	slices.Sort(b.leaves)
	b.leaves = slices.Compact(b.leaves)
	if len(b.leaves) < 1000 {
		t.Fatalf("the server exports %d functions", len(b.leaves))
	}
}

const stackPointer, instruction = 19, 16 // in struct pt_regs

// findCaller makes the stack pointer point to the return address into a function of the server.
func (b *busyServer) findCaller(t *testing.T) {
	t.Helper()
	r := &b.record
	first := r.Registers[stackPointer]
	r.Registers[instruction] = b.leaves[0]
	for at := first; at < first+2048; at += 8 {
		r.Registers[stackPointer] = at
		key := b.collector.name(b.collector.processOf(r.PID, r.Started), r)
		if key.thread.Whole && len(key.thread.Frames) >= 8 {
			return
		}
	}
	t.Fatal("no return address in 2 kB of the stack of a session that waits for its client")
}

// feed adds records, each with another address in the innermost frame or another query.
func (b *busyServer) feed(n int, kind clusterbpf.Kind) {
	c, r := b.collector, b.record
	r.Kind, r.Flags = kind, r.Flags|clusterbpf.Consistent
	r.State = uint32(c.server.waits.Target.Layout.Running)
	for i := range n {
		r.Registers[instruction] = b.leaves[i/2%len(b.leaves)] + uint64(i%2) // one byte on, within endbr64 or push
		r.QueryID = uint64(1 + i/(2*len(b.leaves)))
		r.Number, r.At = uint64(i), uint64(i)*1000
		c.add(&r)
		if kind == clusterbpf.Off {
			c.addWaits(&clusterbpf.WaitTime{
				PID: r.PID, Started: r.Started, QueryID: r.QueryID, Event: r.Event, State: r.State, Took: time.Microsecond,
				Delay: time.Microsecond / 2,
			})
		}
	}
}

// heap is the memory in use.
func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// sums are the sums of the values of all samples.
func sums(p *profile.Profile) []int64 {
	values := make([]int64, len(p.SampleType))
	for _, s := range p.Sample {
		for i, v := range s.Value {
			values[i] += v
		}
	}
	return values
}

// TestMemoryIsBounded feeds more different stacks than there is room for. The memory must be bounded, and the sums
// exact. It takes one of two modes by default.
func TestMemoryIsBounded(t *testing.T) {
	const n, most = 300_000, 120 << 20
	selected := figure.Share(t, 2)
	for i, mode := range []Mode{CPU, OffCPU} {
		if !selected(i) {
			continue
		}
		kind := map[Mode]clusterbpf.Kind{CPU: clusterbpf.Running, OffCPU: clusterbpf.Off}[mode]
		t.Run(string(mode), func(t *testing.T) {
			b := newBusyServer(t, mode)
			c := b.collector
			before := heap()
			b.feed(n, kind)
			entries := len(c.cpu)
			for _, w := range c.off {
				entries += 1 + len(w.stacks)
			}
			collected := heap() - before
			for _, p := range c.processes {
				p.on = c.period(p.samples)
			}
			p := c.profile(context.Background())
			if err := p.Write(io.Discard); err != nil {
				t.Fatal(err)
			}
			built := heap() - before
			t.Logf("%d functions, %d entries, %d samples; %d MB, then %d MB; %s", len(b.leaves), entries, len(p.Sample),
				collected>>20, built>>20, c.summary.Notes())
			if collected > most || built > most {
				t.Errorf("%d MB of stacks, %d MB with the profile", collected>>20, built>>20)
			}
			want := []int64{n, n * time.Microsecond.Nanoseconds()}
			if mode == CPU {
				want[1] = c.period(n).Nanoseconds()
			}
			got := sums(p)
			if diff := got[1] - want[1]; got[0] != want[0] || diff > int64(entries) || -diff > int64(entries) {
				t.Errorf("the sums are %d, want %d", got, want)
			}
			if notes := fmt.Sprint(c.summary.Notes()); !strings.Contains(notes, "too many different stacks") {
				t.Errorf("the notes are %s", notes)
			}
			runtime.KeepAlive(c)
		})
	}
}

// TestStacksAreShortened: if there is no room for a stack with its exact address, it counts as a stack with the start
// of its function. If there is no room for that stack either, it counts without a stack.
func TestStacksAreShortened(t *testing.T) {
	b := newBusyServer(t, CPU)
	c := b.collector
	clear(c.cpu)
	c.base = capture.NewStackSpace(c.server.cluster.PostmasterPID, c.server.cluster.PostmasterStart, c.base.Maps)
	c.stacks = c.options.Capturer.StackNamer(capture.StackNamerOptions{MaxBytes: 256 << 10, CompleteLater: true})
	b.leaves = b.leaves[:400]
	const n = 800
	b.feed(n, clusterbpf.Running)
	exact, starts, joined := 0, 0, 0
	for key, count := range c.cpu {
		switch {
		case key.thread == capture.TooManyStacks:
			joined += count
		case key.thread.Frames[0].Offset == 0:
			starts += count
		default:
			exact += count
		}
	}
	if exact+starts+joined != n || exact == 0 || joined == 0 || c.summary.Joined != joined || c.summary.Shortened == 0 ||
		c.summary.Shortened > starts-exact {
		t.Errorf("%d exact, %d of starts, %d joined; %+v", exact, starts, joined, c.summary)
	}
}
